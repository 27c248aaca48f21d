"""Two pools that move blocks between them, whatever else happens to either meanwhile.

Each pool has a tensor that remembers for which prefix a block was last written. The pools and the
handoffs check themselves after each step; beside that, whatever is findable must hold the bytes
that its name stands for, and nobody but its holder may write a block that is held for a plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from lmpoold.protocol.hashing import PrefixHash, chain_hashes, domain_root, token_bytes
from lmpoold.protocol.views import PageEntry
from tests.unit.page_table import snapshot
from workers.core.blocks import BlockId, BlockPool
from workers.core.handoff import Handoff, Pinned, Refusal, Reserved, names_agree

SIZE, BLOCKS = 2, 7
ROOT = domain_root("model", SIZE)
TOKENS = st.lists(st.integers(0, 1), min_size=SIZE, max_size=SIZE * (BLOCKS - 2))


@dataclass
class Side:
    """One worker: its pool, what its tensor holds, what it has told of its pages."""

    pool: BlockPool = field(default_factory=lambda: BlockPool(BLOCKS, SIZE))
    written: dict[int, tuple[int, ...]] = field(default_factory=dict)
    told: dict[PrefixHash, PageEntry] = field(default_factory=dict)
    handoff: Handoff = field(init=False)

    def __post_init__(self) -> None:
        self.handoff = Handoff(self.pool)

    def compute(self, tokens: list[int], now_s: float) -> list[BlockId] | None:
        """What a sequence does: match, allocate, write, publish; None if there is no room."""
        hashes = chain_hashes(tokens, SIZE, ROOT)
        run = self.pool.match(token_bytes(tokens), hashes, ROOT)
        self.pool.acquire(run, now_s)
        fresh = self.pool.allocate(len(hashes) - len(run))
        if fresh is None:
            self.pool.release(run, now_s)
            return None
        for depth, block in enumerate(fresh, len(run)):
            self.written[block] = tuple(tokens[: (depth + 1) * SIZE])
            parent = hashes[depth - 1] if depth else ROOT
            part = tokens[depth * SIZE : (depth + 1) * SIZE]
            assert self.pool.publish(block, hashes[depth], parent, depth, part, now_s)
        return run + fresh


@dataclass
class Plan:
    """One transfer: what both sides said, and whether the bytes are there."""

    id: str
    source: Side
    destination: Side
    hashes: tuple[PrefixHash, ...]
    pinned: Pinned
    reserved: Reserved
    landed: bool = False
    first: int = 0
    count: int = 0
    tokens: tuple[int, ...] = ()


class HandoffWalk(RuleBasedStateMachine):
    """Sequences come and go on two pools, plans run between them and end in every way."""

    sequences = Bundle("sequences")
    plans = Bundle("plans")

    @initialize()
    def begin(self):
        self.sides = (Side(), Side())
        self.now_s = 0.0
        self.count = 0

    @rule(target=sequences, which=st.integers(0, 1), tokens=TOKENS)
    def compute(self, which: int, tokens: list[int]):
        self.now_s += 1
        blocks = self.sides[which].compute(tokens, self.now_s)
        return multiple() if blocks is None else (which, blocks)

    @rule(sequence=consumes(sequences))
    def leave(self, sequence: tuple[int, list[BlockId]]):
        which, blocks = sequence
        self.sides[which].pool.release(blocks, self.now_s)

    @rule(target=plans, which=st.integers(0, 1), tokens=TOKENS, hint=st.integers(0, 2))
    def prepare(self, which: int, tokens: list[int], hint: int):
        source, destination = self.sides[which], self.sides[1 - which]
        hashes = chain_hashes(tokens, SIZE, ROOT)
        self.count += 1
        plan = f"p{self.count}"
        before = source.pool.reclaimable
        pinned = source.handoff.pin(plan, hashes, hint)
        if isinstance(pinned, Refusal):
            assert source.pool.resident(hashes)[0] <= hint
            assert source.pool.reclaimable == before
            return multiple()
        assert source.handoff.pin(plan, hashes, hint) == pinned, "a repeat holds nothing more"
        room = destination.pool.available
        reserved = destination.handoff.reserve(plan, hashes)
        if isinstance(reserved, Refusal):
            assert destination.pool.available == room
            source.handoff.settle(plan)
            return multiple()
        assert destination.handoff.reserve(plan, hashes) == reserved
        return Plan(plan, source, destination, hashes, pinned, reserved)

    @rule(plan=plans)
    def travel(self, plan: Plan):
        """The bytes go over, block by block, as the execute orders say."""
        first, count = plan.reserved.first, plan.pinned.count
        if plan.landed or first >= count or first < plan.pinned.first:
            return
        if plan.id not in plan.source.handoff or plan.id not in plan.destination.handoff:
            return
        skip = first - plan.pinned.first
        sent, taken = plan.pinned.refs[skip:], plan.reserved.refs
        for ours, theirs in zip(sent, taken, strict=False):
            plan.destination.written[theirs.block] = plan.source.written[ours.block]
        plan.landed, plan.first, plan.count = True, first, count
        plan.tokens = plan.pinned.tokens[skip * SIZE :]
        assert names_agree(plan.hashes, first, plan.tokens, SIZE, plan.pinned.root)

    @rule(plan=consumes(plans), moved=st.booleans(), twice=st.booleans())
    def end(self, plan: Plan, moved: bool, twice: bool):
        """Published if the bytes are there, else given up; said once or twice."""
        self.now_s += 1
        source, destination = plan.source, plan.destination
        there = plan.id in destination.handoff  # else its epoch ended, and with it the plan
        for _ in range(1 + twice):
            if plan.landed and there:
                named = destination.handoff.publish(
                    plan.id, plan.count, plan.pinned.root, plan.tokens, self.now_s
                )
                assert named <= plan.count - plan.first
                assert destination.pool.resident(plan.hashes[: plan.count])[0] == plan.count
                free = source.pool.free
                freed = source.handoff.release(plan.id, moved=moved)
                assert source.pool.free == free + freed
                assert moved or not freed
            source.handoff.settle(plan.id)
            destination.handoff.settle(plan.id)
        assert plan.id not in source.handoff
        assert plan.id not in destination.handoff

    @rule(plan=consumes(plans), which=st.integers(0, 1))
    def lose_an_epoch(self, plan: Plan, which: int):
        """One side is fenced and lets go of everything; the other is told to settle."""
        self.sides[which].handoff.drop()
        assert len(self.sides[which].handoff) == 0
        plan.source.handoff.settle(plan.id)
        plan.destination.handoff.settle(plan.id)

    @rule(which=st.integers(0, 1))
    def clear(self, which: int):
        self.sides[which].pool.clear_cached()

    @rule(which=st.integers(0, 1))
    def drain(self, which: int):
        side = self.sides[which]
        changes = side.pool.drain_changes()
        side.told.update(changes.puts)
        for name in changes.dels:
            side.told.pop(name, None)
        assert side.told == snapshot(side.pool)

    @invariant()
    def what_is_findable_holds_what_its_name_says(self):
        for side in getattr(self, "sides", ()):
            side.pool.check()
            side.handoff.check()
            for name, entry in snapshot(side.pool).items():
                prefix = side.written[entry.block]
                assert chain_hashes(prefix, SIZE, ROOT)[-1] == name

    def teardown(self):
        for side in getattr(self, "sides", ()):
            side.handoff.drop()
            side.handoff.check()
            side.pool.check()


TestHandoffWalk = HandoffWalk.TestCase
TestHandoffWalk.settings = settings(
    max_examples=max(120, settings().max_examples // 4), stateful_step_count=40, deadline=None
)
