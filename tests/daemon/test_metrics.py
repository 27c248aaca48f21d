"""Figures of the pool and of routing, as a scrape shows them."""

import urllib.request

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from lmpoold.daemon.metrics import PlannerMetrics, RouterMetrics
from lmpoold.protocol.errors import ConfigError, DecodeError
from lmpoold.protocol.messages import Output
from lmpoold.protocol.state import Lease, PoolState, read_lease, read_link
from lmpoold.protocol.transfer import PlanRow
from lmpoold.protocol.views import Counts, Ended, RouteCall, Routed
from lmpoold.shell.metrics import PoolCollector, Scraped, show_metrics
from tests.unit.test_render import rank_row
from workers.core.batch import Batch, Chunk
from workers.daemon.metrics import WorkerMetrics
from workers.daemon.report import StepReport

NAME = "ab" * 16


def plan(phase, why, age_ms):
    return PlanRow("p", phase, "copy", why, 0, 1, 4, age_ms, 100, "-")


def values(registry):
    lines = generate_latest(registry).decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def shown(state, **options):
    registry = CollectorRegistry()
    collector = PoolCollector(**options)
    collector.state = state
    registry.register(collector)
    return values(registry)


def test_plans_are_shown_by_phase_and_reason_with_the_age_of_the_oldest():
    plans = (plan("execute", "fetch", 1500), plan("execute", "fetch", 200))
    plans += (plan("execute", "background", 4000), plan("abort", "fetch", 30_000))
    found = shown(PoolState(plans=plans))
    assert found['lmpool_plans{phase="execute",why="fetch"}'] == "2.0"
    assert found['lmpool_plans{phase="execute",why="background"}'] == "1.0"
    assert found['lmpool_plan_oldest_seconds{phase="execute"}'] == "4.0"
    assert found['lmpool_plan_oldest_seconds{phase="abort"}'] == "30.0"


def test_quota_of_leases_is_summed_by_rank():
    leases = (Lease(NAME, 3, 0, {0: 16, 1: 2}), Lease(NAME, 9, 0, {1: 5}))
    found = shown(PoolState(leases=leases))
    assert found["lmpool_leases"] == "2.0"
    assert found['lmpool_lease_quota{rank="0"}'] == "16.0"
    assert found['lmpool_lease_quota{rank="1"}'] == "7.0"


def test_ranks_show_tokens_as_counters_and_no_ratio():
    found = shown(PoolState(ranks=(rank_row(rank=3, prompt_tokens=1000, cached_tokens=250),)))
    assert found['lmpool_rank_prompt_tokens_total{rank="3"}'] == "1000.0"
    assert found['lmpool_rank_cached_tokens_total{rank="3"}'] == "250.0"
    assert not [name for name in found if "rate" in name or "ratio" in name]


def test_a_server_that_is_away_is_shown_and_nothing_else():
    assert shown(None) == {"lmpool_server_up": "0.0", "lmpool_leases": "0.0"}


def test_of_several_lmpoold_only_the_leader_shows_the_pool():
    registry = CollectorRegistry()
    planner = PlannerMetrics(registry)
    assert "lmpool_server_up" not in values(registry)
    planner.leads(leading=True)
    planner.pool.state = PoolState(parked=3)
    assert values(registry)["lmpool_pool_parked"] == "3.0"
    assert values(registry)["lmpool_planner_leads"] == "1.0"
    planner.leads(leading=False)
    assert "lmpool_pool_parked" not in values(registry)


def test_routed_tokens_count_what_was_asked_and_what_was_matched():
    registry = CollectorRegistry()
    router = RouterMetrics(registry, 16)
    calls = [RouteCall(name, "9-0", 100, 3, [], "c", "{}", "1") for name in "abcd"]
    replies = [Routed("a", "routed", 0, 4, 3), Routed("b", "routed", 1, 0, 7)]
    replies += [Routed("c", "parked"), Routed("d", "refused", detail="overloaded")]
    router.routed(calls, replies, 0.0004)
    router.refused("invalid_request")
    found = values(registry)
    assert found["lmpool_router_prompt_tokens_total"] == "200.0"
    assert found["lmpool_router_matched_tokens_total"] == "64.0"
    assert found['lmpool_router_requests_total{outcome="routed"}'] == "2.0"
    assert found['lmpool_router_requests_total{outcome="parked"}'] == "1.0"
    assert found['lmpool_router_requests_total{outcome="refused"}'] == "2.0"
    assert found['lmpool_router_refused_total{code="overloaded"}'] == "1.0"
    assert found['lmpool_router_refused_total{code="invalid_request"}'] == "1.0"
    assert found['lmpool_router_route_seconds_bucket{le="0.0005"}'] == "1.0"


def test_a_port_shows_metrics_and_is_free_again_when_closed():
    registry = CollectorRegistry()
    PlannerMetrics(registry)
    assert show_metrics(registry, "127.0.0.1", None) is None
    scraped = Scraped(registry, "127.0.0.1", 0)
    with urllib.request.urlopen(f"http://127.0.0.1:{scraped.port}/metrics") as answer:
        assert b"lmpool_planner_leads 0.0" in answer.read()
    with pytest.raises(ConfigError, match="--metrics-port"):
        Scraped(registry, "127.0.0.1", scraped.port)
    port = scraped.port
    scraped.close()
    Scraped(registry, "127.0.0.1", port).close()


def test_leases_and_links_are_read_as_the_functions_write_them():
    assert read_lease(NAME, "3 1790000000000 0:17:16 1:18:2") == Lease(
        NAME, 3, 1790000000000, {0: 16, 1: 2}
    )
    link = read_link("2>3", "1500.5 12.25")
    assert (link.source, link.destination, link.fixed_us, link.block_us) == (2, 3, 1500.5, 12.25)
    for broken in ("3", "x y", "3 4 0:1"):
        with pytest.raises(DecodeError):
            read_lease(NAME, broken)
    for name, text in (("2-3", "1 2"), ("2>3", "1"), ("2>x", "1 2")):
        with pytest.raises(DecodeError):
            read_link(name, text)


class Progress:
    """What metrics look at of a sequence."""

    def __init__(self, request_id):
        self.request_id = request_id


def worker():
    registry = CollectorRegistry()
    return registry, WorkerMetrics(registry)


def report(outputs=(), ended=()):
    return StepReport(epoch="1", counts=Counts(9, 3, 0, 0, 2), outputs=outputs, ended=ended)


def test_a_request_is_measured_from_its_arrival_to_its_step_its_token_and_its_end():
    registry, metrics = worker()
    metrics.arrived("a")
    chunk = Chunk(Progress("a"), 0, 16, samples=False, write_from=0)
    metrics.launched(Batch((), (chunk,), ()))
    metrics.launched(Batch((), (chunk,), ()))
    metrics.stepped(16, 3, 0.004)
    assert values(registry)["lmpool_worker_queue_seconds_count"] == "1.0"
    assert values(registry)["lmpool_worker_ttft_seconds_count"] == "0.0"
    metrics.reported(report([("c", Output("a", 0, 5, "x"))]))
    assert values(registry)["lmpool_worker_ttft_seconds_count"] == "1.0"
    metrics.reported(report([("c", Output("a", 1, 6, "y"))]))
    last = Output("a", 2, 7, "z", finish_reason="stop")
    metrics.reported(report([("c", last)], [Ended("a", 1, "1-0", "done", "stop", 20, 16, 3)]))
    found = values(registry)
    assert found["lmpool_worker_ttft_seconds_count"] == "1.0"
    assert found["lmpool_worker_tpot_seconds_count"] == "1.0"
    assert found["lmpool_worker_prompt_tokens_total"] == "20.0"
    assert found["lmpool_worker_cached_tokens_total"] == "16.0"
    assert found["lmpool_worker_output_tokens_total"] == "3.0"
    assert found['lmpool_worker_requests_total{state="done"}'] == "1.0"
    assert found['lmpool_worker_step_tokens_total{kind="prefill"}'] == "16.0"
    assert found['lmpool_worker_step_tokens_total{kind="decode"}'] == "3.0"
    assert found["lmpool_worker_free_blocks"] == "9.0"


def test_a_request_that_moves_on_is_forgotten_and_an_error_is_no_first_token():
    registry, metrics = worker()
    metrics.arrived("gone")
    metrics.arrived("late")
    metrics.left("gone")
    chunk = Chunk(Progress("gone"), 0, 16, samples=False, write_from=0)
    metrics.launched(Batch((), (chunk,), ()))
    refusal = Output("late", 0, error="timeout_error", code="deadline_exceeded", message="late")
    ended = Ended("late", 1, "1-0", "failed", "deadline_exceeded", 20, 0, 0)
    metrics.reported(report([("c", refusal)], [ended]))
    found = values(registry)
    assert found["lmpool_worker_queue_seconds_count"] == "0.0"
    assert found["lmpool_worker_ttft_seconds_count"] == "0.0"
    assert found["lmpool_worker_tpot_seconds_count"] == "0.0"
    assert found['lmpool_worker_requests_total{state="failed"}'] == "1.0"
