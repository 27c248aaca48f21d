"""Resuming, load as routing sees it, and limits that are refused."""

from __future__ import annotations

import pytest

from lmpoold.protocol.views import Counts
from tests.unit.schedule_worker import (
    PROMPT,
    Worker,
    names,
    request,
    rows,
    undisturbed,
)
from workers.core.sequence import Sequence


def test_a_resumed_sequence_goes_on_where_it_was():
    worker = Worker(20)
    tokens, reason = undisturbed(request("a", PROMPT, max_tokens=6), 80)
    worker.add(request("a", tokens[:13], prompt=10, max_tokens=6))
    batch = worker.schedule()
    results = worker.complete(batch, worker.run(batch))
    assert [(result.index, result.token) for result in results] == [(3, tokens[13])]
    worker.drain()
    assert worker.finished["a"] == (tokens, reason)


def test_an_outsider_with_all_blocks_makes_everybody_wait_and_loses_nobody():
    worker = Worker(4, size=2, max_model_len=8)
    worker.add(request("a", [0, 0, 0, 0], size=2))
    worker.step()
    outside = worker.pool.allocate(2)
    assert rows(worker.step()) == []
    assert worker.preempted == ["a"]
    assert not worker.scheduler.idle
    worker.pool.release(outside, worker.now_s)
    worker.drain()
    assert worker.finished["a"] == undisturbed(request("a", [0, 0, 0, 0]), 8)


def test_load_counts_what_is_spoken_for():
    worker = Worker(20, max_num_seqs=1, max_batched_tokens=8)
    assert worker.scheduler.load(0.5) == Counts(20, 0, 0, 0, 0)
    worker.add(request("a", [0] * 18, max_tokens=4), request("b", [1] * 6, arrival=1))
    assert worker.scheduler.load(0.5) == Counts(11, 0, 18 + 6 + 4, 0, 2)
    worker.step()  # 8 of 18 computed; 5 blocks held, one more to come; b wants 3
    assert worker.scheduler.load(0.5) == Counts(11, 0, 6 + 2, 10 + 2, 2)
    for _ in range(2):
        worker.step()
    assert worker.scheduler.load(0.5) == Counts(11, 0, 8, round(0.5 * 3), 2)


def test_blocks_that_the_waiting_need_beyond_the_free_ones_come_off_the_reclaimable():
    worker = Worker(6, max_num_seqs=1)
    worker.add(request("a", [0] * 12, max_tokens=1))
    worker.drain()
    assert (worker.pool.free, worker.pool.reclaimable) == (3, 3)
    worker.add(request("b", [1] * 16, max_tokens=1))
    assert worker.scheduler.load(1.0) == Counts(0, 2, 17, 0, 1)
    worker.scheduler.abort("b")
    worker.add(request("c", [0] * 14, max_tokens=1))
    assert worker.scheduler.load(1.0) == Counts(2, 3, 3, 0, 1)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
        (
            {"max_batched_tokens": 7},
            r"max_batched_tokens \(7\) must be at least max_num_seqs \(8\)",
        ),
        ({"max_model_len": 81}, r"max_model_len \(81\) .* 80 tokens .* lower max_model_len"),
        ({"max_model_len": 1}, "between 2 and"),
    ],
)
def test_limits_that_contradict_each_other_are_refused(limits: dict[str, int], words: str):
    with pytest.raises(ValueError, match=words):
        Worker(20, **limits)


@pytest.mark.parametrize(
    ("sequence", "words"),
    [
        (request("a", [0]), "already here"),
        (request("b", [0] * 80), "80 tokens leave no room"),
        (request("b", [0] * 6, prompt=2), "the limit is 6"),
        (request("b", []), "prompt tokens"),
        (request("b", [0], prompt=2), "2 prompt tokens among 1"),
    ],
)
def test_a_sequence_that_cannot_run_is_refused(sequence: Sequence, words: str):
    worker = Worker(20)
    worker.add(request("a", [0]))
    with pytest.raises(ValueError, match=words):
        worker.add(sequence)
    worker.scheduler.check()


def test_equal_places_in_line_are_told_apart():
    worker = Worker(20)
    worker.add(*(request(name, [0]) for name in "abc"))
    left = worker.scheduler.abort("b")
    assert left is not None
    assert names(worker.step()) == ["a", "c"]


def test_every_sampling_row_needs_a_token():
    worker = Worker(20)
    worker.add(request("a", [0]))
    with pytest.raises(ValueError, match="1 rows sample, got 0"):
        worker.scheduler.complete(worker.schedule(), [], 0.0)


@pytest.mark.better(9)
def test_a_crowd_of_siblings_is_not_walked_through_every_step():
    worker = Worker(60, max_num_seqs=3)
    worker.add(*(request(f"r{n}", [0] * 20, arrival=n, max_tokens=1) for n in range(9)))
    worker.add(request("other", [1], arrival=99, max_tokens=1))
    assert names(worker.step()) == ["r0"]
    worker.drain()
    assert len(worker.finished) == 10
