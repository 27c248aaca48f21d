"""What the scheduler puts into a batch, and what it leaves waiting."""

from __future__ import annotations

import pytest

from lmpoold.protocol.hashing import chain_hashes
from tests.unit.schedule_worker import (
    PROMPT,
    Worker,
    names,
    prefix_digests,
    request,
    root_of,
    rows,
    undisturbed,
)


@pytest.mark.better(18)
def test_decodes_come_before_prefills_and_count_against_the_budget():
    worker = Worker(20, max_batched_tokens=10)
    worker.add(request("a", [0] * 3, arrival=0), request("b", [1] * 5, arrival=1))
    assert rows(worker.step()) == [("a", 0, 3), ("b", 0, 5)]
    worker.add(request("c", [2] * 20, arrival=2))
    batch = worker.step()
    assert rows(batch) == [("a", 3, 1), ("b", 5, 1), ("c", 0, 8)]
    assert [len(batch.decodes), len(batch.prefills), len(batch.samples)] == [2, 1, 2]


@pytest.mark.better(5)
def test_a_long_prompt_is_computed_in_chunks_and_samples_once_at_its_end():
    worker = Worker(20, max_batched_tokens=8)
    worker.add(request("a", [0] * 18))
    batches = [worker.step() for _ in range(4)]
    assert [rows(batch) for batch in batches] == [
        [("a", 0, 8)],
        [("a", 8, 8)],
        [("a", 16, 2)],
        [("a", 18, 1)],
    ]
    assert [len(batch.samples) for batch in batches] == [0, 0, 1, 1]


def test_a_begun_prefill_goes_on_before_the_next_one_begins():
    worker = Worker(40, max_batched_tokens=8)
    worker.add(request("a", [0] * 20))
    worker.step()
    worker.add(request("b", [1] * 20, priority=1, arrival=1))
    assert rows(worker.step()) == [("a", 8, 8)]
    assert rows(worker.step()) == [("a", 16, 4), ("b", 0, 4)]
    assert rows(worker.step()) == [("a", 20, 1), ("b", 4, 7)]


@pytest.mark.better(18)
def test_a_begun_prefill_gets_a_token_a_step_beside_the_most_decodes_there_can_be():
    worker = Worker(40, max_num_seqs=3, max_batched_tokens=3)
    worker.add(request("a", [0], max_tokens=9), request("b", [1], arrival=1, max_tokens=9))
    worker.add(request("c", [2] * 5, arrival=2))
    assert rows(worker.step()) == [("a", 0, 1), ("b", 0, 1), ("c", 0, 1)]
    assert rows(worker.step()) == [("a", 1, 1), ("b", 1, 1), ("c", 1, 1)]


def test_a_cached_prefix_is_not_computed_again():
    worker = Worker(20)
    worker.add(request("a", PROMPT, max_tokens=1))
    worker.drain()
    again = request("b", PROMPT, arrival=1)
    worker.add(again)
    assert rows(worker.step()) == [("b", 8, 2)]
    assert again.cached_tokens == 8


@pytest.mark.better(5)
def test_a_wholly_cached_prompt_recomputes_its_last_token_and_writes_nothing():
    worker = Worker(20)
    worker.add(request("a", PROMPT[:8], max_tokens=1))
    worker.drain()
    again = request("b", PROMPT[:8], arrival=1)
    worker.add(again)
    batch = worker.step()
    (chunk,) = batch.prefills
    assert (chunk.start, chunk.length, chunk.write_from) == (7, 1, 8)
    assert (chunk.samples, again.cached_tokens) == (True, 7)
    worker.drain()
    assert worker.finished["b"] == undisturbed(request("b", PROMPT[:8]), 80)


def test_generated_blocks_are_found_by_the_next_turn():
    worker = Worker(20)
    worker.add(request("a", PROMPT, max_tokens=8))
    worker.drain()
    told, _ = worker.finished["a"]
    worker.add(request("b", [*told, 1, 2], arrival=1))
    assert rows(worker.step()) == [("b", 16, 4)]


@pytest.mark.better(16)
@pytest.mark.bar(20)
def test_equal_prompts_arriving_together_compute_their_prefix_once():
    worker = Worker(40)
    worker.add(*(request(f"r{n}", PROMPT, arrival=n, max_tokens=1) for n in range(4)))
    assert rows(worker.step()) == [("r0", 0, 10)]
    assert rows(worker.step()) == [(f"r{n}", 8, 2) for n in (1, 2, 3)]
    assert worker.computed_tokens == 10 + 3 * 2


def test_one_that_waits_for_its_sibling_does_not_hold_up_others():
    worker = Worker(40)
    worker.add(
        request("a", PROMPT, arrival=0),
        request("b", PROMPT, arrival=1),
        request("c", [3] * 6, arrival=2),
    )
    assert names(worker.step()) == ["a", "c"]


def test_only_the_shared_part_is_waited_for():
    worker = Worker(40, max_batched_tokens=8)
    worker.add(
        request("a", [0] * 24, arrival=0),
        request("b", [0] * 8 + [1] * 8, arrival=1),
    )
    assert rows(worker.step()) == [("a", 0, 8)]
    assert rows(worker.step()) == [("a", 8, 8)]
    assert rows(worker.step()) == [("a", 16, 8)]
    assert rows(worker.step()) == [("a", 24, 1), ("b", 8, 7)]


def test_when_the_sibling_is_aborted_the_next_one_computes_the_prefix():
    worker = Worker(40, max_batched_tokens=8)
    worker.add(*(request(f"r{n}", [0] * 20, arrival=n) for n in range(3)))
    worker.step()
    worker.scheduler.abort("r0")
    assert rows(worker.step()) == [("r1", 8, 8)]
    worker.drain()
    assert worker.finished.keys() == {"r1", "r2"}


def test_when_the_sibling_is_preempted_nobody_waits_for_it():
    worker = Worker(7, max_num_seqs=4, max_batched_tokens=5)
    worker.add(request("first", [0] * 7, priority=1, max_tokens=16))
    worker.step()
    worker.step()
    worker.add(request("writer", [1] * 11, arrival=1, max_tokens=1))
    worker.add(request("reader", [1] * 9, arrival=2, max_tokens=1))
    assert rows(worker.step()) == [("first", 7, 1), ("writer", 0, 4)]
    outside = worker.pool.allocate(2)
    assert names(worker.step()) == ["first"]
    assert worker.preempted == ["writer"]
    worker.pool.release(outside, worker.now_s)
    worker.scheduler.abort("writer")
    assert rows(worker.step()) == [("first", 9, 1), ("reader", 4, 4)]
    worker.drain()


def test_the_lowest_priority_then_the_latest_arrival_loses_its_blocks():
    worker = Worker(6, size=2)
    low_new = (("low", 1, -1), ("new", 2, 0))
    worker.add(request("old", [0], size=2, max_tokens=11))
    for name, arrival, priority in low_new:
        tokens = [arrival]
        worker.add(request(name, tokens, size=2, arrival=arrival, priority=priority, max_tokens=11))
    assert names(worker.step()) == ["old", "new", "low"]
    worker.drain()
    assert worker.preempted[:2] == ["low", "new"]
    assert "old" not in worker.preempted
    assert list(worker.finished) == ["old", "new", "low"]
    for tokens, reason in worker.finished.values():
        assert (tokens, reason) == undisturbed(request("", tokens[:1], max_tokens=11), 12)


def test_a_preempted_sequence_keeps_its_tokens_its_place_and_its_usage():
    worker = Worker(4, size=2)
    a, b, c = (request(n, [i], size=2, arrival=i, max_tokens=6) for i, n in enumerate("abc"))
    worker.add(a, b, c)
    while not worker.preempted:
        emitted = list(b.tokens)
        batch = worker.step()
    assert worker.preempted == ["b"]
    assert names(batch) == ["a"]  # and nobody is admitted in such a step
    assert (b.tokens, b.block_table, b.computed) == (emitted, [], 0)
    while b.admissions == 1:
        assert c.admissions == 0
        worker.step()
    assert b.computed > b.cached_tokens == 0
    worker.drain()
    assert worker.finished["b"] == undisturbed(request("b", [1], max_tokens=6), 8)


def test_a_step_that_preempts_admits_nobody():
    worker = Worker(6, size=2, max_num_seqs=2)
    worker.add(request("a", [0], size=2, priority=1, max_tokens=11))
    worker.add(request("b", [1] * 6, size=2, arrival=1, max_tokens=6))
    worker.step()
    worker.add(request("c", [2], size=2, arrival=2, priority=1, max_tokens=1))
    while not worker.preempted:
        batch = worker.step()
    assert (worker.preempted, names(batch)) == (["b"], ["a"])
    assert names(worker.step()) == ["a", "c"]
    worker.drain()


def test_the_first_that_does_not_fit_stops_the_line_until_blocks_are_there():
    worker = Worker(6, max_model_len=24)
    worker.add(request("runs", [0] * 9, arrival=0))
    worker.step()
    worker.add(request("big", [1] * 14, arrival=1), request("small", [2], arrival=2))
    assert names(worker.step()) == ["runs"]
    worker.add(request("urgent", [3], arrival=3, priority=1))
    assert names(worker.step()) == ["runs", "urgent"]
    while "runs" not in worker.finished:
        worker.step()
    assert "small" not in worker.finished
    worker.drain()
    assert list(worker.finished) == ["runs", "urgent", "big", "small"]


def test_admission_leaves_every_running_sequence_a_block_to_grow_into():
    worker = Worker(5)
    worker.add(request("a", [0] * 4, arrival=0, max_tokens=8))
    worker.step()
    worker.add(request("b", [1] * 9, arrival=1, max_tokens=1))
    assert names(worker.step()) == ["a"]  # takes its second block; three are left, b needs three
    worker.scheduler.abort("b")
    worker.add(request("c", [1] * 8, arrival=2, max_tokens=1))
    assert names(worker.step()) == ["a", "c"]
    worker.drain()
    assert worker.preempted == []


def test_a_running_sequence_that_has_all_its_blocks_keeps_none_from_others():
    worker = Worker(5)
    worker.add(request("a", [0] * 4, arrival=0, max_tokens=5))
    worker.step()
    worker.step()
    worker.add(request("b", [1] * 9, arrival=1, max_tokens=1))
    assert names(worker.step()) == ["a", "b"]


def test_seats_are_bounded():
    worker = Worker(40, max_num_seqs=2)
    worker.add(*(request(f"r{n}", [n], arrival=n) for n in range(3)))
    assert names(worker.step()) == ["r0", "r1"]
    worker.drain()
    assert list(worker.finished) == ["r0", "r1", "r2"]


@pytest.mark.better(16)
def test_sequences_that_generate_the_same_block_end_up_sharing_it():
    worker = Worker(20)
    a, b = (request(n, PROMPT[:2], arrival=i, max_tokens=9) for i, n in enumerate("ab"))
    worker.add(a, b)
    for _ in range(4):
        worker.step()
    assert a.tokens == b.tokens
    assert a.block_table[0] == b.block_table[0]
    assert a.block_table[1] != b.block_table[1]
    worker.drain()


@pytest.mark.better(16)
def test_a_hash_collision_costs_a_recompute_and_nothing_else():
    worker = Worker(20)
    stolen = list(chain_hashes([1] * 12, 4, root_of("", 4)))
    worker.add(request("a", [1] * 12, max_tokens=9))
    worker.step()
    for n in range(3):
        fake = request(f"f{n}", [2] * 12, arrival=n + 1, max_tokens=9)
        fake.hashes = list(stolen)
        worker.add(fake)
    assert rows(worker.step())[1:] == [(f"f{n}", 0, 12) for n in range(3)]
    worker.drain()
    for n in range(3):
        assert worker.finished[f"f{n}"] == undisturbed(request("f", [2] * 12, max_tokens=9), 80)


def test_nobody_waits_for_a_writer_whose_name_was_taken_meanwhile():
    worker = Worker(20, max_batched_tokens=8)
    fake, ones = request("fake", [2] * 12, max_tokens=20), prefix_digests(root_of("", 4), [1] * 4)
    fake.hashes = list(chain_hashes([1] * 12, 4, fake.root))
    worker.add(fake)
    batch = worker.schedule()
    (block,) = worker.pool.allocate(1)
    worker.pool.publish(block, fake.hashes[0], fake.root, 0, [1] * 4, worker.now_s)
    worker.kv |= {(block, slot): digest for slot, digest in enumerate(ones)}
    worker.complete(batch, worker.run(batch))
    worker.add(request("true", [1] * 12, arrival=1))
    assert names(worker.step()) == ["fake", "true"]
    assert worker.scheduler.abort("fake") is fake


def test_a_collision_that_takes_more_blocks_than_there_are_waits():
    worker = Worker(6)
    worker.add(request("a", [1] * 12, max_tokens=9))
    worker.step()
    fake = request("fake", [2] * 12, arrival=1, max_tokens=1)
    fake.hashes = list(chain_hashes([1] * 12, 4, root_of("", 4)))
    worker.add(fake)
    assert names(worker.step()) == ["a"]
    worker.drain()
    assert worker.finished["fake"] == undisturbed(request("f", [2] * 12, max_tokens=1), 24)


def test_a_stopped_sequence_is_gone_and_its_blocks_are_cached():
    worker = Worker(20)
    worker.add(request("a", PROMPT))
    assert worker.scheduler.stop("a") is None  # it waits
    worker.step()
    stopped = worker.scheduler.stop("a")
    assert stopped is not None
    assert stopped.output_tokens == 1
    assert worker.scheduler.idle
    assert worker.scheduler.stop("a") is worker.scheduler.abort("a") is None
    assert (worker.pool.reclaimable, worker.pool.free) == (2, 18)


def test_a_sequence_aborted_under_way_gets_no_result_and_its_name_is_free_again():
    worker = Worker(20)
    worker.add(request("a", PROMPT), request("b", [1], arrival=1))
    batch = worker.schedule()
    sampled = worker.run(batch)
    worker.scheduler.abort("a")
    worker.add(request("a", PROMPT, arrival=2))
    assert [result.sequence.request_id for result in worker.complete(batch, sampled)] == ["b"]
    worker.drain()
    assert worker.finished["a"] == undisturbed(request("a", PROMPT), 80)


def test_a_chunk_aborted_under_way_is_not_published():
    worker = Worker(20, max_batched_tokens=8)
    worker.add(request("a", [0] * 20))
    batch = worker.schedule()
    worker.scheduler.abort("a")
    worker.complete(batch, [])
    assert worker.pool.free == 20
