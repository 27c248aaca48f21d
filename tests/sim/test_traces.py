import json
from pathlib import Path

import pytest

from benchmarks.sim.bounds import ceiling, one_cache
from benchmarks.traces import Trace, TraceError, TraceRequest, read_sessions, read_trace
from workers.core.reclaim import POLICIES


def lines(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def mooncake(at_ms: int, tokens: int, ids: list[int]) -> dict:
    return {"timestamp": at_ms, "input_length": tokens, "output_length": 7, "hash_ids": ids}


def test_a_mooncake_row_keeps_its_complete_blocks_and_comes_in_order_of_arrival(tmp_path):
    path = lines(tmp_path / "t.jsonl", mooncake(2500, 1030, [0, 5, 6]), mooncake(0, 100, [9]))
    trace = read_trace(path)
    assert trace.block_tokens == 512
    assert trace.requests == (TraceRequest(0.0, 100, 7, ()), TraceRequest(2.5, 1030, 7, (0, 5)))
    assert trace.faster(2).requests[1].arrival_s == 1.25


def test_a_session_keeps_what_its_lane_had_and_shares_nothing_with_another(tmp_path):
    path = lines(
        tmp_path / "s.jsonl",
        {"s": "a", "a": 0, "t": 0.0, "in": 200, "out": 3, "k": 0, "r": [[1, 3]]},
        {"s": "a", "a": 0, "t": 10.0, "in": 256, "out": 3, "k": 2, "r": [[7, 2]]},
        {"s": "b", "a": 0, "t": 0.0, "in": 200, "out": 3, "k": 0, "r": [[1, 3]]},
    )
    trace = read_sessions(path, window_s=1.0, seed=4)
    one, other, longer = sorted(trace.requests, key=lambda request: len(request.blocks))
    assert longer.blocks[:2] in (one.blocks[:2], other.blocks[:2])
    assert not set(one.blocks) & set(other.blocks)
    assert len(set(longer.blocks)) == 4
    assert read_trace(path).block_tokens == 64
    only = read_sessions(path, sessions=1)
    assert len(only.requests) == 2
    assert only.requests[1].arrival_s - only.requests[0].arrival_s == pytest.approx(10.0)


def test_an_azure_trace_gives_arrivals_and_lengths_and_no_sharing(tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,1500,44\n"
        "2023-11-16 18:15:50.9305900,1500,1\n"
    )
    trace = read_trace(path)
    assert [r.arrival_s for r in trace.requests] == [0.0, pytest.approx(4.25)]
    assert [r.blocks for r in trace.requests] == [(0, 1), (2, 3)]
    assert ceiling(trace) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello\n", "neither a Mooncake trace"),
        ('{"hash_ids": [1]}\n', "t.jsonl:1: not a row of a Mooncake trace"),
        ('{"hash_ids": [1], \n', "t.jsonl:1: not JSON"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nx,1,1\n", "t.jsonl:2: not a row of an Azure"),
        ('{"s": "a", "k": 0}\n', "t.jsonl:1: not a row of a session"),
    ],
)
def test_a_file_that_is_no_trace_says_where_and_why(tmp_path, text, said):
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError, match=said):
        read_trace(path)


CHAIN = Trace(
    "chain",
    4,
    (
        TraceRequest(0.0, 16, 1, (1, 2, 3, 4)),
        TraceRequest(1.0, 16, 1, (1, 2, 3, 9)),
        TraceRequest(2.0, 16, 1, (1, 2, 3, 4)),
    ),
)


def test_the_ceiling_counts_prefixes_and_leaves_the_last_token_to_be_computed():
    assert ceiling(CHAIN) == (0 + 12 + 15) / 48


def test_a_run_of_blocks_joined_is_the_same_only_after_the_same_blocks():
    pairs = CHAIN.coarser(2).requests
    assert pairs[0].blocks == pairs[2].blocks
    assert pairs[0].blocks[0] == pairs[1].blocks[0]
    assert pairs[0].blocks[1] != pairs[1].blocks[1]
    again = Trace("t", 4, (TraceRequest(0.0, 16, 1, (1, 1, 1, 1)),)).coarser(2)
    assert len(set(again.requests[0].blocks)) == 2


def test_finer_blocks_hold_the_same_content():
    fine = CHAIN.finer(2)
    assert fine.block_tokens == 2
    assert ceiling(fine) == ceiling(CHAIN)
    assert ceiling(fine.coarser(2)) == ceiling(CHAIN)


def test_one_cache_with_room_for_all_reaches_the_ceiling_and_a_small_one_does_not():
    for policy in POLICIES.values():
        assert one_cache(CHAIN, 5, policy) == ceiling(CHAIN)
        assert one_cache(CHAIN, 4, policy) < ceiling(CHAIN)
