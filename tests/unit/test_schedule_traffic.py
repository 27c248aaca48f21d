"""The scheduler under random traffic, beside an undisturbed run of each request."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.schedule_worker import (
    PROMPT,
    Worker,
    request,
    undisturbed,
)
from workers.core.blocks import BlockId


class Traffic(RuleBasedStateMachine):
    """Requests come, share prefixes, are resumed, aborted, stopped; an outsider takes blocks."""

    @initialize(
        size=st.sampled_from([1, 2, 2, 3]),
        blocks=st.integers(4, 10),
        seats=st.sampled_from([1, 3, 4, 5]),
        spare=st.integers(0, 8),
        shorter=st.integers(0, 6),
        lookahead=st.integers(0, 1),
    )
    def open(self, size: int, blocks: int, seats: int, spare: int, shorter: int, lookahead: int):
        longest = max(2, size * blocks - shorter)
        self.size = size
        self.worker = Worker(
            blocks,
            size,
            max_num_seqs=seats,
            max_batched_tokens=seats + spare,
            max_model_len=longest,
            lookahead=lookahead,
        )
        self.expected: dict[str, tuple[list[int], str]] = {}
        self.gone: set[str] = set()
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
        if len(self.worker.under_way) <= self.worker.scheduler.lookahead:
            self.worker.launch()

    @rule()
    def complete(self):
        if self.worker.under_way:
            results = self.worker.land()
            assert not {result.sequence.request_id for result in results} & self.gone

    @rule(times=st.integers(1, 12))
    def steps(self, times: int):
        for _ in range(times):
            self.schedule()
            if len(self.worker.under_way) > self.worker.scheduler.lookahead:
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

    @precondition(lambda self: not self.worker.under_way)
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
            self.return_outside()
            self.worker.drain()
            self.finished_answers_are_those_of_an_undisturbed_run()
            assert self.worker.finished.keys() | self.gone == self.expected.keys()


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(
    max_examples=max(40, settings().max_examples // 4), stateful_step_count=40, deadline=None
)


@pytest.mark.bar(52)
@given(seed=st.integers(0, 2**32), lookahead=st.integers(0, 1))
def test_a_crowd_in_a_small_pool_gets_its_undisturbed_answers(seed: int, lookahead: int):
    """The same walk, denser: most steps are short of blocks, many preempt, siblings wait."""
    draw = Random(seed)
    walk = Traffic()
    sizes = draw.randint(1, 3), draw.randint(4, 9), draw.randint(3, 5), draw.randint(0, 8)
    walk.open(*sizes, 0, lookahead)
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
