import json
import random

import pytest
from click.testing import CliRunner

from benchmarks.sim.__main__ import figures, main
from benchmarks.sim.ablate import main as ablate
from benchmarks.sim.bounds import ceiling
from benchmarks.sim.engine import DEFAULT
from benchmarks.sim.pool import virtual_library
from benchmarks.sim.run import Outcome, Setup, simulate
from benchmarks.sim.worker import SimRequest, SimWorker
from benchmarks.traces import Trace, TraceRequest
from lmpoold.protocol.hashing import chain_hashes, domain_root
from workers.core.reclaim import DEFAULT_POLICY, POLICIES

BLOCK = 512
ROOT = domain_root("test", 1)


def conversations(count: int, turns: int, gap_s: float) -> Trace:
    """Users who come back with a longer prompt, interleaved; ids never repeat between them."""
    draw, requests, fresh = random.Random(7), [], 0
    for user in range(count):
        blocks: tuple[int, ...] = ()
        for turn in range(turns):
            new = draw.randrange(2, 6)
            blocks += tuple(range(fresh, fresh + new))
            fresh += new
            arrival_s = turn * gap_s + user * gap_s / count
            requests.append(TraceRequest(arrival_s, len(blocks) * BLOCK + 9, 40, blocks))
    return Trace("toy", BLOCK, tuple(sorted(requests, key=lambda r: r.arrival_s)))


def setup(router: str, **changes) -> Setup:
    changes = {"workers": 3, "blocks": 256, "policy": DEFAULT_POLICY, "engine": DEFAULT} | changes
    return Setup(router=router, **changes)


def seen(outcome: Outcome) -> list[tuple]:
    return [(r.id, r.rank, r.cached_tokens, r.first_token_s, r.finished_s)
            for r in outcome.requests]  # fmt: skip


async def test_two_runs_of_one_seed_are_equal_to_the_last_digit_and_another_seed_differs():
    trace = conversations(12, 4, 2.0)
    first = await simulate(trace, setup("kv", seed=1))
    assert seen(first) == seen(await simulate(trace, setup("kv", seed=1)))
    other = await simulate(trace, setup("kv", seed=2))
    assert [r.rank for r in other.requests] != [r.rank for r in first.requests]


async def test_the_pool_finds_what_it_holds_and_round_robin_does_not():
    trace = conversations(11, 4, 2.0)
    routed = await simulate(trace, setup("kv"))
    blind = await simulate(trace, setup("round_robin"))
    assert routed.reuse == pytest.approx(ceiling(trace), abs=0.01)
    assert blind.reuse < 0.8 * routed.reuse
    assert figures(routed)["ttft_ms"]["mean"] < figures(blind)["ttft_ms"]["mean"]
    assert max(blind.routed) - min(blind.routed) <= 1


async def test_least_load_spreads_by_work_alone():
    trace = conversations(30, 1, 0.001)
    outcome = await simulate(trace, setup("least_load"))
    assert min(outcome.routed) >= 7


async def test_requests_that_find_no_room_wait_and_are_served():
    trace = conversations(40, 1, 0.001)
    outcome = await simulate(trace, setup("kv", workers=1, blocks=24))
    assert outcome.parked > 0
    assert all(request.finished_s > 0 for request in outcome.requests)


async def test_blocks_cut_into_eight_give_nearly_the_same_reuse():
    trace = conversations(20, 4, 3.0)
    whole = await simulate(trace, setup("kv", workers=2, blocks=96))
    fine = await simulate(trace.finer(8), setup("kv", workers=2, blocks=96 * 8))
    assert 0 < whole.reuse < ceiling(trace), "the caches are meant to be too small"
    assert fine.reuse == pytest.approx(whole.reuse, abs=0.03)


def test_only_the_clock_of_the_library_is_replaced():
    assert "'TIME'" not in virtual_library()
    assert "sim:clock" in virtual_library()


def worker(**changes) -> SimWorker:
    settings = {"blocks": 64, "block_tokens": BLOCK, "policy": POLICIES["lru"], "root": ROOT,
                "budget_tokens": 2048, "seats": 8, "longest_run_s": 10.0} | changes  # fmt: skip
    return SimWorker(0, DEFAULT, **settings)


def ask(number: int, ids: tuple[int, ...], output_tokens: int = 1) -> SimRequest:
    tokens = len(ids) * BLOCK + 1
    return SimRequest(f"q{number}", 0.0, tokens, output_tokens, ids, chain_hashes(ids, 1, ROOT))


def drain(worker: SimWorker) -> None:
    while worker.ends_s is not None:
        now_s = worker.ends_s
        worker.end(now_s)
        worker.begin(now_s)
        worker.pool.check()


def test_a_request_waits_for_the_prefix_that_another_is_computing():
    one, same = ask(0, (1, 2, 3, 4, 5)), ask(1, (1, 2, 3, 4, 5))
    busy = worker()
    busy.take(one, 0.0)
    busy.take(same, 0.0)
    drain(busy)
    assert one.cached_tokens == 0
    assert same.cached_tokens == 5 * BLOCK


def test_a_run_of_decode_steps_ends_when_somebody_comes():
    busy = worker()
    decoding, late = ask(0, (1,), 1000), ask(1, (2,))
    busy.take(decoding, 0.0)
    now_s = busy.ends_s
    busy.end(now_s)
    busy.begin(now_s)
    assert busy.ends_s > now_s + 0.5, "nothing else to do: hundreds of steps as one"
    busy.take(late, now_s + 0.1)
    assert now_s + 0.1 <= busy.ends_s < now_s + 0.11
    drain(busy)
    assert late.first_token_s < decoding.finished_s
    assert decoding.emitted == 1000


def test_one_request_alone_takes_as_long_as_its_steps():
    alone, request = worker(), ask(0, (1, 2), 3)
    alone.take(request, 0.0)
    drain(alone)
    prefill_s = DEFAULT.prefill_s(1025, 0, alone=True)
    decodes_s = DEFAULT.decode_step_s(1, 1026) + DEFAULT.decode_step_s(1, 1027)
    assert request.first_token_s == pytest.approx(prefill_s)
    assert request.finished_s == pytest.approx(prefill_s + decodes_s, rel=1e-6)


@pytest.fixture
def trace_file(tmp_path):
    path = tmp_path / "my_conversation.jsonl"
    rows = [{"timestamp": r.arrival_s * 1000, "input_length": r.input_tokens,
             "output_length": r.output_tokens, "hash_ids": list(r.blocks)}
            for r in conversations(6, 3, 1.0).requests]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_block_sizes_and_parts_of_the_rule_are_tried_one_at_a_time(trace_file, tmp_path):
    arguments = [str(trace_file), "--workers", "4", "--cache-tokens", "65536", "--seeds", "1",
                 "--out", str(tmp_path)]  # fmt: skip
    for kind in ("--blocks", "--rules"):
        result = CliRunner().invoke(ablate, [*arguments, kind], catch_exceptions=False)
        assert result.exit_code == 0, result.output
    blocks = json.loads((tmp_path / "sim-blocks-conversation-4.json").read_text())
    names = [row["name"] for row in blocks["rows"]]
    assert names == [f"blocks of {size} tokens" for size in (16, 64, 256, 512)]
    parts = json.loads((tmp_path / "sim-ablations-conversation-4.json").read_text())
    reuse = {row["name"]: row["seeds"][0]["reuse"] for row in parts["rows"]}
    assert reuse["round robin"] < reuse["the whole rule"] <= parts["ceiling"]


def test_the_command_writes_what_an_archive_needs(trace_file, tmp_path):
    path = trace_file
    arguments = [str(path), "--workers", "2", "--policy", "credit", "--policy", "lfu",
                 "--set", "w_prefill=2", "--out", str(tmp_path)]  # fmt: skip
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "sim-conversation-2.json").read_text())
    assert 0 <= written["round_robin_reuse"] <= written["reuse"] <= written["ceiling"] < 1
    assert written["constants"] == {"w_prefill": 2}
    assert written["policies"].keys() == {"lfu"}
    wrong = CliRunner().invoke(main, [str(path), "--set", "w_nothing=1"])
    assert wrong.exit_code == 2
    assert "w_nothing is no constant" in wrong.output


async def test_late_reports_and_no_reservations_send_a_burst_to_few_workers():
    trace = conversations(60, 1, 0.0005)
    both = await simulate(trace, setup("kv"))
    neither = await simulate(trace, setup("kv", stale_s=1.0, reserve=False))
    assert max(both.routed) - min(both.routed) < max(neither.routed) - min(neither.routed)
    assert all(request.finished_s > 0 for request in neither.requests)
