"""The scheduler in front of a simulated model that notices every wrong slot."""

from __future__ import annotations

import zlib
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lmpoold.protocol.hashing import PrefixHash, chain_hashes, domain_root
from lmpoold.protocol.request import Sampling
from lmpoold.protocol.views import Counts
from workers.core.batch import Batch, StepResult
from workers.core.blocks import BlockId, BlockPool
from workers.core.schedule import Scheduler
from workers.core.sequence import Sequence, finish_reason

VOCABULARY = 4
STOP = frozenset({3})


def next_token(tokens: list[int]) -> int:
    """What the simulated model samples: a function of everything before, as in greedy decoding."""
    return zlib.crc32(bytes(tokens)) // 7 % VOCABULARY


def prefix_digests(root: PrefixHash, tokens: list[int]) -> list[int]:
    """What the K/V at each position stands for: the token there and all before it."""
    digests, digest = [], zlib.crc32(root.encode())
    for token in tokens:
        digest = zlib.crc32(bytes([token]), digest)
        digests.append(digest)
    return digests


def root_of(salt: str, size: int) -> PrefixHash:
    return domain_root("model", size, salt)


def request(
    name: str,
    tokens: list[int],
    *,
    size: int = 4,
    prompt: int | None = None,
    priority: int = 0,
    arrival: int = 0,
    salt: str = "",
    **sampling: object,
) -> Sequence:
    return Sequence(
        request_id=name,
        attempt=1,
        prompt_tokens=len(tokens) if prompt is None else prompt,
        tokens=list(tokens),
        sampling=Sampling(**{"max_tokens": 4, "ignore_eos": True, **sampling}),
        priority=priority,
        arrival=arrival,
        deadline_ms=0,
        root=root_of(salt, size),
    )


def undisturbed(sequence: Sequence, max_model_len: int) -> tuple[list[int], str]:
    """All tokens that a sequence has in the end when nobody else is there, and why it ends."""
    alone = request("alone", sequence.tokens, prompt=sequence.prompt_tokens)
    alone.sampling = sequence.sampling
    while True:
        alone.tokens.append(next_token(alone.tokens))
        if reason := finish_reason(alone, STOP, max_model_len):
            return alone.tokens, reason


class Worker:
    """A scheduler, and a KV tensor that remembers what was written where."""

    def __init__(self, blocks: int, size: int = 4, **limits: int) -> None:
        self.pool = BlockPool(blocks, size)
        wanted = {
            "max_num_seqs": 8,
            "max_batched_tokens": 64,
            "max_model_len": blocks * size,
            **limits,
        }
        self.scheduler = Scheduler(self.pool, stop_ids=STOP, **wanted)
        self.kv: dict[tuple[BlockId, int], int] = {}
        self.now_s = 0.0
        self.computed_tokens = 0
        self.finished: dict[str, tuple[list[int], str]] = {}
        self.preempted: list[str] = []

    def add(self, *sequences: Sequence) -> None:
        for sequence in sequences:
            self.scheduler.add(sequence)

    def schedule(self) -> Batch:
        self.now_s += 1.0
        batch = self.scheduler.schedule(self.now_s)
        self.scheduler.check()
        rows = batch.rows
        assert sum(chunk.length for chunk in rows) <= self.scheduler.max_batched_tokens
        assert len(rows) == len({id(chunk.sequence) for chunk in rows})
        self.preempted += [sequence.request_id for sequence in batch.preempted]
        return batch

    def run(self, batch: Batch) -> list[int]:
        """Write the K/V of every row, then let every row attend to all that is before it."""
        size, written = self.pool.block_size, set()
        for chunk in batch.rows:
            sequence = chunk.sequence
            assert chunk.length > 0
            assert chunk.samples == (chunk.start + chunk.length == len(sequence.tokens))
            digests = prefix_digests(sequence.root, sequence.tokens)
            for position in range(chunk.start, chunk.start + chunk.length):
                if position >= chunk.write_from:
                    slot = (sequence.block_table[position // size], position % size)
                    assert slot not in written
                    assert self.pool.refs(slot[0]) == 1
                    written.add(slot)
                    self.kv[slot] = digests[position]
        for chunk in batch.rows:
            sequence = chunk.sequence
            self.computed_tokens += chunk.length
            digests = prefix_digests(sequence.root, sequence.tokens)
            for position in range(chunk.start + chunk.length):
                slot = (sequence.block_table[position // size], position % size)
                assert self.kv[slot] == digests[position]
        return [next_token(chunk.sequence.tokens) for chunk in batch.samples]

    def complete(self, batch: Batch, sampled: list[int]) -> list[StepResult]:
        results = self.scheduler.complete(batch, sampled, self.now_s)
        self.scheduler.check()
        for result in results:
            sequence = result.sequence
            assert result.token == sequence.tokens[-1]
            assert result.index == len(sequence.tokens) - sequence.prompt_tokens - 1
            if result.finish_reason:
                self.finished[sequence.request_id] = (sequence.tokens, result.finish_reason)
        return results

    def step(self) -> Batch:
        batch = self.schedule()
        self.complete(batch, self.run(batch))
        return batch

    def drain(self) -> None:
        """Run to the end, which must come, and find every block free or cached."""
        for _ in range(2000):
            if self.scheduler.idle:
                break
            batch = self.step()
            assert batch.rows or batch.preempted
        assert self.scheduler.idle
        assert self.pool.available == self.pool.num_blocks


def rows(batch: Batch) -> list[tuple[str, int, int]]:
    return [(chunk.sequence.request_id, chunk.start, chunk.length) for chunk in batch.rows]


def names(batch: Batch) -> list[str]:
    return [chunk.sequence.request_id for chunk in batch.rows]


PROMPT = [0, 1, 2, 3, 3, 2, 1, 0, 1, 1]


class Traffic(RuleBasedStateMachine):
    """Requests come, share prefixes, are resumed, aborted, stopped; an outsider takes blocks."""

    @initialize(
        size=st.sampled_from([1, 2, 2, 3]),
        blocks=st.integers(4, 10),
        seats=st.sampled_from([1, 3, 4, 5]),
        spare=st.integers(0, 8),
        shorter=st.integers(0, 6),
    )
    def open(self, size: int, blocks: int, seats: int, spare: int, shorter: int):
        longest = max(2, size * blocks - shorter)
        self.size = size
        self.worker = Worker(
            blocks,
            size,
            max_num_seqs=seats,
            max_batched_tokens=seats + spare,
            max_model_len=longest,
        )
        self.expected: dict[str, tuple[list[int], str]] = {}
        self.gone: set[str] = set()
        self.pending: tuple[Batch, list[int]] | None = None
        self.outside: list[BlockId] = []

    @rule(
        shared=st.integers(0, 10),
        tail=st.lists(st.integers(0, 1), max_size=3),
        outputs=st.integers(0, 3),
        max_tokens=st.sampled_from([1, 4, 9, 12]),
        priority=st.sampled_from([0, 0, 1, 2]),
        salt=st.sampled_from(["", "", "salt"]),
        ignore_eos=st.booleans(),
        copies=st.sampled_from([1, 1, 3]),
    )
    def ask(
        self,
        shared: int,
        tail: list[int],
        outputs: int,
        max_tokens: int,
        priority: int,
        salt: str,
        ignore_eos: bool,
        copies: int,
    ):
        scheduler = self.worker.scheduler
        tokens = (PROMPT[:shared] + tail) or [0]
        for number in range(len(self.expected), len(self.expected) + copies):
            new = request(
                f"r{number}",
                tokens[: scheduler.max_model_len - 1],
                size=self.size,
                priority=priority,
                arrival=number,
                salt=salt,
                max_tokens=max_tokens,
                ignore_eos=ignore_eos,
            )
            end = undisturbed(new, scheduler.max_model_len)
            resumed = end[0][: min(new.prompt_tokens + outputs, len(end[0]) - 1)]
            new.tokens = list(resumed)
            self.worker.add(new)
            self.expected[new.request_id] = end

    @rule()
    def schedule(self):
        if self.pending is None:
            batch = self.worker.schedule()
            self.pending = batch, self.worker.run(batch)

    @precondition(lambda self: self.pending is not None)
    @rule()
    def complete(self):
        assert self.pending is not None
        results = self.worker.complete(*self.pending)
        assert not {result.sequence.request_id for result in results} & self.gone
        self.pending = None

    @rule(times=st.integers(1, 12))
    def steps(self, times: int):
        for _ in range(times):
            self.schedule()
            self.complete()

    @precondition(lambda self: self.expected)
    @rule(number=st.integers(0, 30), stop=st.booleans())
    def leave(self, number: int, stop: bool):
        name = f"r{number % len(self.expected)}"
        scheduler = self.worker.scheduler
        over = name in self.worker.finished or name in self.gone
        left = scheduler.stop(name) if stop else scheduler.abort(name)
        assert left is None if over else left is not None or stop
        if left is not None:
            assert left.request_id == name
            self.gone.add(name)
        assert left is None or scheduler.abort(name) is None

    @precondition(lambda self: self.pending is None)
    @rule(count=st.integers(1, 6))
    def take_outside(self, count: int):
        self.outside += self.worker.pool.allocate(count) or []

    @rule()
    def return_outside(self):
        self.worker.pool.release(self.outside, self.worker.now_s)
        self.outside = []

    @rule()
    def forget_cache(self):
        self.worker.pool.clear_cached()

    @invariant()
    def finished_answers_are_those_of_an_undisturbed_run(self):
        if hasattr(self, "worker"):
            self.worker.scheduler.check()
            counts = self.worker.scheduler.load(0.5)
            assert min(counts.free, counts.reclaimable, counts.wait_tokens, counts.run_tokens) >= 0
            for name, end in self.worker.finished.items():
                assert end == self.expected[name]

    def teardown(self):
        if hasattr(self, "worker"):
            if self.pending is not None:
                self.complete()
            self.return_outside()
            self.worker.drain()
            self.finished_answers_are_those_of_an_undisturbed_run()
            assert self.worker.finished.keys() | self.gone == self.expected.keys()


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


@given(seed=st.integers(0, 2**32))
def test_a_crowd_in_a_small_pool_gets_its_undisturbed_answers(seed: int):
    """The same walk, denser: most steps are short of blocks, many preempt, siblings wait."""
    draw = Random(seed)
    walk = Traffic()
    walk.open(draw.randint(1, 3), draw.randint(4, 9), draw.randint(3, 5), draw.randint(0, 8), 0)
    for _ in range(draw.randint(5, 25)):
        walk.ask(
            shared=draw.randint(0, 6),
            tail=draw.choices([0, 1], k=draw.randint(0, 1)),
            outputs=draw.randint(0, 2),
            max_tokens=draw.randint(6, 20),
            priority=draw.choice([0, 0, 1]),
            salt=draw.choice(["", "", "", "salt"]),
            ignore_eos=draw.random() < 0.9,
            copies=draw.choice([1, 3]),
        )
        walk.steps(draw.randint(0, 5))
        if draw.random() < 0.2:
            walk.schedule()
            walk.leave(draw.randrange(40), draw.random() < 0.5)
            walk.complete()
        walk.finished_answers_are_those_of_an_undisturbed_run()
    walk.teardown()


def test_decodes_come_before_prefills_and_count_against_the_budget():
    worker = Worker(20, max_batched_tokens=10)
    worker.add(request("a", [0] * 3, arrival=0), request("b", [1] * 5, arrival=1))
    assert rows(worker.step()) == [("a", 0, 3), ("b", 0, 5)]
    worker.add(request("c", [2] * 20, arrival=2))
    batch = worker.step()
    assert rows(batch) == [("a", 3, 1), ("b", 5, 1), ("c", 0, 8)]
    assert [len(batch.decodes), len(batch.prefills), len(batch.samples)] == [2, 1, 2]


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


def test_seats_are_bounded():
    worker = Worker(40, max_num_seqs=2)
    worker.add(*(request(f"r{n}", [n], arrival=n) for n in range(3)))
    assert names(worker.step()) == ["r0", "r1"]
    worker.drain()
    assert list(worker.finished) == ["r0", "r1", "r2"]


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


def test_a_crowd_of_siblings_is_not_walked_through_every_step():
    worker = Worker(60, max_num_seqs=3, max_batched_tokens=8)
    worker.add(*(request(f"r{n}", [0] * 20, arrival=n, max_tokens=1) for n in range(9)))
    worker.add(request("other", [1], arrival=99, max_tokens=1))
    assert names(worker.step()) == ["r0"]
    worker.drain()
    assert len(worker.finished) == 10
