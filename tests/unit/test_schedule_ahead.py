"""A batch chosen while the one before it is under way."""

from __future__ import annotations

import pytest

from tests.unit.schedule_worker import PROMPT, Worker, names, next_token, request, undisturbed


def ahead(blocks: int, size: int = 4, **limits: int) -> Worker:
    return Worker(blocks, size, lookahead=1, **limits)


def test_a_row_names_the_token_that_the_step_under_way_will_draw():
    worker = ahead(20, max_batched_tokens=8)
    worker.add(request("a", [0] * 2), request("b", [1] * 12, arrival=1))
    worker.launch()
    batch = worker.launch()  # b's first chunk drew nothing, a's is the only token on its way
    assert [(c.start, c.length, c.after) for c in batch.rows] == [(2, 1, 0), (6, 6, None)]
    worker.land()
    batch = worker.launch()
    assert [(c.sequence.request_id, c.start, c.after) for c in batch.rows] == [
        ("a", 3, 0),
        ("b", 12, 1),
    ]
    assert [chunk.output_index for chunk in batch.rows] == [2, 1]
    worker.drain()


def test_a_token_that_is_known_is_not_waited_for():
    worker = ahead(20)
    worker.add(request("a", PROMPT))
    worker.launch()
    worker.land()
    (chunk,) = worker.launch().rows
    assert (chunk.start, chunk.after) == (10, None)
    worker.drain()


def test_nothing_is_computed_past_the_last_token_that_is_allowed():
    worker = ahead(20)
    worker.add(request("a", [0] * 4, max_tokens=2))
    assert [names(worker.launch()) for _ in range(2)] == [["a"], ["a"]]
    worker.land()
    assert names(worker.launch()) == []
    worker.drain()
    assert worker.computed_tokens == 4 + 1
    assert worker.finished["a"][1] == "length"


def test_the_row_of_one_that_ended_is_dropped_and_holds_its_blocks_until_it_is_done():
    worker = ahead(20)
    tokens = next(
        t for n in range(99) if next_token(t := [0] * 3 + [n % 4, n // 4 % 4, n // 16]) == 3
    )
    worker.add(request("a", tokens, max_tokens=9, ignore_eos=False))
    worker.launch()
    worker.launch()
    (last,) = worker.land()
    assert (last.token, last.finish_reason) == (3, "stop")
    assert worker.scheduler.idle
    assert worker.pool.available == 20 - 2
    assert worker.land() == []
    assert worker.pool.available == 20
    assert worker.pool.reclaimable == 1  # the block that the dropped row wrote to is nobody's


def test_one_aborted_under_way_holds_its_blocks_until_the_newest_step_is_done():
    worker = ahead(20)
    worker.add(request("a", PROMPT), request("b", [1], arrival=1))
    worker.launch()
    worker.launch()
    worker.scheduler.abort("a")
    held = worker.pool.available
    assert [result.sequence.request_id for result in worker.land()] == ["b"]
    assert worker.pool.available == held
    worker.add(request("a", PROMPT, arrival=2))
    assert [result.sequence.request_id for result in worker.land()] == ["b"]
    assert worker.pool.available == held + 3
    worker.drain()
    assert worker.finished["a"] == undisturbed(request("a", PROMPT), 80)


def test_a_block_is_found_by_others_only_when_its_tokens_are_known():
    worker = ahead(20, max_num_seqs=2)
    worker.add(request("a", PROMPT[:3], max_tokens=9))
    worker.launch()
    worker.launch()  # writes the first block's last slot
    assert worker.pool.drain_changes().puts == {}
    worker.land()
    assert worker.pool.drain_changes().puts == {}
    worker.land()
    assert len(worker.pool.drain_changes().puts) == 1
    worker.drain()


def test_a_twin_of_a_published_block_goes_when_no_step_reads_it_any_more():
    worker = ahead(20)
    worker.add(
        *(request(name, PROMPT[:2], arrival=at, max_tokens=9) for at, name in enumerate("ab"))
    )
    while not worker.pool.reclaimable and worker.pool.drain_changes().puts == {}:
        worker.launch()
        if len(worker.under_way) > 1:
            free = worker.pool.free
            worker.land()
    assert worker.pool.free == free  # b reads its own copy in the step under way
    worker.launch()
    worker.land()
    assert worker.pool.free == free + 1
    worker.drain()


def test_nobody_is_preempted_for_a_step_chosen_by_guess():
    worker = ahead(4, size=2)
    worker.add(*(request(n, [i], size=2, arrival=i, max_tokens=6) for i, n in enumerate("ab")))
    batch = worker.launch()
    while batch.rows:
        if len(worker.under_way) > 1:
            worker.land()
        batch = worker.launch()
    assert (len(worker.under_way), worker.preempted) == (1, [])
    worker.land()
    assert names(worker.launch()) == ["a"]
    assert worker.preempted == ["b"]
    worker.drain()
    for at, name in enumerate("ab"):
        assert worker.finished[name] == undisturbed(request(name, [at], max_tokens=6), 8)


def test_batches_complete_in_their_order_and_no_more_than_two_are_under_way():
    worker = ahead(20)
    worker.add(request("a", [0], max_tokens=9))
    first, second = worker.launch(), worker.launch()
    with pytest.raises(ValueError, match="complete the oldest"):
        worker.scheduler.schedule(0.0)
    with pytest.raises(ValueError, match="in the order"):
        worker.scheduler.complete(second, [0], 0.0)
    worker.scheduler.complete(first, [0], 0.0)
    with pytest.raises(ValueError, match="in the order"):
        worker.scheduler.complete(first, [0], 0.0)


def test_a_lookahead_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="0 or 1"):
        Worker(20, lookahead=2)
