"""A worker's half of transfer plans: which blocks it holds for them, and how it lets go.

Theory of operation. A source *pins* the chain that it sends: every block of it, from the root on,
gains a holder, so nothing reclaims it or writes it anew, while sequences go on using it. A
destination *reserves* blocks to receive into, and pins what it has of the chain already, so that
the received blocks will have their parents. Each plan is held once and let go once, by one of

    publish   (destination) the received blocks get their names; what came twice is freed
    release   (source) unpin; of a moved chain also free the suffix that nobody else uses
    settle    (either) as if the plan had never been: nothing becomes visible

A plan that measures a link holds *scratch*: reserved blocks on both sides, which never get names.

A block is named by its id and its generation: a reserved block that went free and was given out
again, or a pinned one that was reclaimed, would show another generation. `check` asserts that
none ever does.

Pure; one instance beside its pool, on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmpoold.protocol.hashing import PrefixHash, chain_hashes, unpack_tokens
from lmpoold.protocol.transfer import BlockRef
from workers.core.blocks import BlockId, BlockPool


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why this side takes no part in a plan, as the plan's reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Pinned:
    """What a source sends from.

    Attributes:
        first: depth of the first block described.
        count: depth behind the last.
        root: the hash domain that the chain starts from.
        refs: its blocks from `first` on.
        tokens: their token ids.
    """

    first: int
    count: int
    root: PrefixHash
    refs: tuple[BlockRef, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reserved:
    """What a destination receives into: blocks for the depths from `first` to the chain's end."""

    first: int
    refs: tuple[BlockRef, ...]


@dataclass(slots=True, eq=False)
class _Side:
    """What one plan holds: pinned blocks, root first, and reserved ones behind them."""

    hashes: tuple[PrefixHash, ...]
    pinned: list[BlockId]
    reserved: list[BlockId]
    answer: Pinned | Reserved
    generations: dict[BlockId, int]


def names_agree(
    hashes: Sequence[PrefixHash],
    first: int,
    tokens: Sequence[int],
    block_size: int,
    root: PrefixHash,
) -> bool:
    """Whether the blocks behind depth `first` of a chain are named after these tokens."""
    parent = hashes[first - 1] if first else root
    named = chain_hashes(tokens, block_size, parent)
    return named == tuple(hashes[first : first + len(named)]) and len(tokens) % block_size == 0


class Handoff:
    """The plans in which a pool takes part."""

    def __init__(self, pool: BlockPool) -> None:
        """Take part in no plan yet."""
        self.pool = pool
        self._sides: dict[str, _Side] = {}

    def __len__(self) -> int:
        """Count the plans that hold something."""
        return len(self._sides)

    def __contains__(self, plan: str) -> bool:
        """Whether a plan holds something."""
        return plan in self._sides

    def pin(self, plan: str, hashes: Sequence[PrefixHash], first: int) -> Pinned | Refusal:
        """Hold, as a source, what the pool has of a chain; again, the same answer.

        Args:
            plan: its id.
            hashes: the chain, root first.
            first: depth from which on the destination lacks it.
        """
        if (side := self._sides.get(plan)) is not None:
            assert isinstance(side.answer, Pinned), f"plan {plan} has two roles here"
            return side.answer
        root, chain = self._mapped(hashes)
        if len(chain) <= first:
            return Refusal("source_lost_it")
        self.pool.acquire(chain, None)
        tokens = unpack_tokens(b"".join(map(self.pool.packed_tokens, chain[first:])))
        answer = Pinned(first, len(chain), root, self._refs(chain[first:]), tokens)
        self._hold(plan, hashes, chain, [], answer)
        return answer

    def reserve(self, plan: str, hashes: Sequence[PrefixHash]) -> Reserved | Refusal:
        """Take, as a destination, blocks for what the pool lacks of a chain; again, the same.

        Cached blocks give way if need be, those of the chain itself excepted.
        """
        if (side := self._sides.get(plan)) is not None:
            assert isinstance(side.answer, Reserved), f"plan {plan} has two roles here"
            return side.answer
        _, pinned = self._mapped(hashes)
        first = len(pinned)
        if first == len(hashes):
            return Refusal("nothing_missing")
        self.pool.acquire(pinned, None)
        fresh = self.pool.allocate(len(hashes) - first)
        if fresh is None:
            self.pool.release(pinned, None)
            return Refusal("no_room")
        answer = Reserved(first, self._refs(fresh))
        self._hold(plan, hashes, pinned, fresh, answer)
        return answer

    def scratch(self, plan: str, count: int, *, source: bool) -> Pinned | Reserved | Refusal:
        """Take blocks without a name, to measure a link with; again, the same answer.

        Only free blocks are taken, half of them at most: nothing cached gives way, and whoever
        needs a block meanwhile finds one.

        Args:
            plan: its id.
            count: how many, > 0.
            source: whether they are sent or received into.
        """
        if (side := self._sides.get(plan)) is not None:
            return side.answer
        taken = self.pool.allocate(count) if 2 * count <= self.pool.free else None
        if taken is None:
            return Refusal("no_room")
        refs = self._refs(taken)
        answer = Pinned(0, count, PrefixHash(""), refs, ()) if source else Reserved(0, refs)
        self._hold(plan, (), [], taken, answer)
        return answer

    def publish(
        self, plan: str, count: int, root: PrefixHash, tokens: Sequence[int], now_s: float
    ) -> int:
        """Name the received blocks up to depth `count`, let go of everything; return how many.

        What another sequence has published meanwhile is kept, and the received twin freed.

        Args:
            plan: as it was reserved.
            count: depth behind the last block received.
            root: the hash domain that the chain starts from.
            tokens: those of the received blocks.
            now_s: counts as their first use.
        """
        side = self._sides.pop(plan, None)
        if side is None:
            return 0
        pool, size = self.pool, self.pool.block_size
        first, held = len(side.pinned), list(side.pinned)
        named = 0
        for depth in range(first, min(count, len(side.hashes))):
            block, name = side.reserved[depth - first], side.hashes[depth]
            parent = side.hashes[depth - 1] if depth else root
            part = tokens[(depth - first) * size : (depth - first + 1) * size]
            if pool.publish(block, name, parent, depth, part, now_s):
                named += 1
            else:
                twin = pool.find(name, parent, part)
                if twin is None:  # a collision of hashes: this block and all after it are of no use
                    break
                pool.acquire((twin,), None)
                pool.release((block,), None)
                block = twin
            held.append(block)
        pool.release(side.reserved[len(held) - first :], None)
        pool.release(held, None)
        pool.report(side.hashes[first:count])
        return named

    def release(self, plan: str, *, moved: bool, keep: int = 0) -> int:
        """Unpin a source's chain; of a moved one free the suffix that nobody uses. Return how many.

        Repeats free nothing; blocks above depth `keep` stay whatever happens.
        """
        side = self._sides.get(plan)
        if side is None:
            return 0
        self.settle(plan)
        if not moved or not isinstance(side.answer, Pinned):
            return 0
        return self.pool.give_up(reversed(side.pinned[max(keep, side.answer.first) :]))

    def settle(self, plan: str) -> None:
        """Let go of whatever a plan holds; nothing becomes visible."""
        side = self._sides.pop(plan, None)
        if side is not None:
            self.pool.release(side.reserved, None)
            self.pool.release(side.pinned, None)

    def drop(self) -> None:
        """Let go of every plan: the epoch under which they were made is over."""
        for plan in list(self._sides):
            self.settle(plan)

    def _hold(
        self,
        plan: str,
        hashes: Sequence[PrefixHash],
        pinned: list[BlockId],
        reserved: list[BlockId],
        answer: Pinned | Reserved,
    ) -> None:
        generations = {block: self.pool.generation(block) for block in (*pinned, *reserved)}
        self._sides[plan] = _Side(tuple(hashes), pinned, reserved, answer, generations)

    def _mapped(self, hashes: Sequence[PrefixHash]) -> tuple[PrefixHash, list[BlockId]]:
        """Return a chain's domain, "" if none of it is mapped, and its leading mapped blocks."""
        found, _ = self.pool.resident(hashes)
        root, chain = PrefixHash(""), list[BlockId]()
        for depth, name in enumerate(hashes[:found]):
            entry = self.pool.lookup(name)
            if entry is None or entry.depth != depth:
                break  # only after a hash collision, as below
            if depth and entry.parent != hashes[depth - 1]:
                break
            root = root if depth else entry.parent
            chain.append(BlockId(entry.block))
        return root, chain

    def _refs(self, blocks: Sequence[BlockId]) -> tuple[BlockRef, ...]:
        return tuple(BlockRef(block, self.pool.generation(block)) for block in blocks)

    def check(self) -> None:
        """Assert that every plan still holds what it was given, and nothing twice."""
        taken: set[BlockId] = set()
        pins: dict[BlockId, int] = {}
        for plan, side in self._sides.items():
            for block, generation in side.generations.items():
                now = self.pool.generation(block)
                assert now == generation, f"{plan}: block {block} was given out again"
            for depth, block in enumerate(side.pinned):
                assert self.pool.named(block) == side.hashes[depth], f"{plan}: {block} left the map"
                pins[block] = pins.get(block, 0) + 1
            for block in side.reserved:
                assert block not in taken, f"block {block} is reserved twice"
                taken.add(block)
                assert self.pool.refs(block) == 1, f"{plan}: reserved block {block} is shared"
                assert self.pool.named(block) is None, f"{plan}: reserved block {block} is mapped"
        for block, count in pins.items():
            assert self.pool.refs(block) >= count, f"block {block}: {count} plans pin it"
