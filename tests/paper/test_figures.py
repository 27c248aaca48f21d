"""Figures of a trial, and their intervals."""

import json

import pytest

from benchmarks.paper.intervals import interval, numbers, percentile, summary
from benchmarks.paper.metrics import Sample, trial_figures
from benchmarks.paper.result import ResultError, ResultFile
from benchmarks.paper.table import gains, table


def sample(number, **changes):
    values = {
        "phase": "all", "group": 0, "sent_s": 0.0, "first_s": 1.0, "last_s": 2.0, "tokens": 5,
        "prompt_tokens": 100, "cached_tokens": 64, "blocks": 6, "rank": 0, "hit": 4, "deepest": 4,
        "reason": "prefix_hit",
    }  # fmt: skip
    return Sample(id=f"q{number}", **values | changes)


def figures(samples, plans=(), **changes):
    options = {"reuse_phase": "all", "slas_ms": (2500.0, 500.0), "ranks": 2} | changes
    return trial_figures(samples, plans, **options)


def test_percentiles_lie_between_neighbours_in_proportion():
    assert percentile([10.0, 20.0], 0.5) == 15.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.9) == pytest.approx(3.7)
    assert percentile([7.0], 0.95) == 7.0


def test_the_interval_of_five_values_is_that_of_student():
    found = interval([10.0, 12.0, 11.0, 13.0, 9.0])
    assert found["mean"] == 11.0
    assert found["std"] == pytest.approx(1.5811, abs=1e-4)
    assert found["ci95"] == pytest.approx(2.776 * 1.5811 / 5**0.5, abs=1e-3)
    assert interval([3.0]) == {"mean": 3.0}


def test_a_reason_that_never_came_up_counts_as_nothing():
    found = summary([{"reasons": {"prefix_hit": 4}}, {"reasons": {}}, {"ranks": [{"x": 1}]}])
    assert found["reasons.prefix_hit"]["mean"] == pytest.approx(4 / 3)
    assert "ranks" not in found
    assert numbers({"a": {"b": 1}, "c": True}) == {"a.b": 1.0}


def test_a_slow_request_counts_for_throughput_and_not_for_goodput():
    found = figures([sample(0), sample(1, rank=1, last_s=4.0, first_s=3.0)])
    assert found["throughput_tok_s"] == 10 / 4
    assert found["goodput_tok_s"] == 5 / 4
    assert found["sla_sweep"] == {"2500": 5 / 4, "500": 0.0}
    assert found["ttft_ms"]["mean"] == 2000.0
    assert found["tpot_ms"]["mean"] == pytest.approx(250.0)
    assert found["busiest_rank_share"] == 0.5


def test_one_token_has_no_time_between_tokens():
    found = figures([sample(0, tokens=1, last_s=1.0)])
    assert found["tpot_ms"] == {}


def test_a_promise_that_the_worker_did_not_find_is_stale():
    found = figures([sample(0), sample(1, cached_tokens=0), sample(2, hit=0, deepest=3)])
    assert found["route"]["stale_route_hit_rate"] == 0.5
    assert found["route"]["routed_to_prefix_owner_rate"] == pytest.approx(2 / 3)
    assert found["route"]["route_matched_block_ratio"] == pytest.approx(8 / 18)
    assert found["workers"]["prefill_uncached_tokens"] == 36 + 100 + 36


def test_blocks_of_plans_that_failed_did_not_move():
    plan = {"why": "foreground", "outcome": "finalize", "blocks": "7", "freed": "3",
            "publish_us": "2000", "cost_us": "3000"}  # fmt: skip
    found = figures([sample(0)], [plan, plan | {"outcome": "aborted"}])["transfers"]
    assert found["plans"] == {"foreground:aborted": 1, "foreground:finalize": 1}
    assert (found["transfer_blocks"], found["released_blocks"], found["copied_blocks"]) == (7, 3, 4)
    assert found["cost_error_ms"]["mean"] == 1.0


def trial(**changes):
    return figures([sample(0), sample(1)]) | {"answers": "aa bb"} | changes


def test_an_interrupted_run_is_taken_up_where_it_was(tmp_path):
    path, arguments = tmp_path / "r.json", {"seed": 0, "slas": (1.0, 2.0)}
    first = ResultFile(path, "routing-1x", arguments, {})
    first.add("multi-gpu", trial())
    again = ResultFile(path, "routing-1x", arguments, {})
    assert again.done("multi-gpu") == 1
    assert again.done("lmpool") == 0
    again.add("lmpool", trial(answers="aa cc", throughput_tok_s=10.0))
    found = again.finish()
    assert found == json.loads(path.read_text())
    assert found["results"]["lmpool"]["trials"][0]["same_answers_share"] == 0.5
    assert found["metadata"]["complete"] is True
    assert ResultFile(path, "routing-1x", arguments, {}).done("multi-gpu") == 0, "a new run"


def test_the_beginning_of_another_run_is_not_taken_up(tmp_path):
    path = tmp_path / "r.json"
    ResultFile(path, "routing-1x", {"seed": 0}, {}).add("lmpool", trial())
    with pytest.raises(ResultError, match=r"another arguments.*--fresh"):
        ResultFile(path, "routing-1x", {"seed": 1}, {})
    assert ResultFile(path, "routing-1x", {"seed": 1}, {}, fresh=True).done("lmpool") == 0


def test_tables_say_what_each_mode_gained_over_round_robin(tmp_path):
    file = ResultFile(tmp_path / "r.json", "load-skew", {}, {})
    file.add("multi-gpu", trial())
    for throughput in (9.0, 11.0):
        file.add("lmpool", trial(throughput_tok_s=throughput))
    found = file.finish()
    lines = table(found).splitlines()
    assert len(lines) == 4
    assert "10.0±12.7" in lines[3]
    assert gains(found) == "lmpool against multi-gpu: tok/s +100.0%, TTFT +0.0%, TPOT +0.0%"
