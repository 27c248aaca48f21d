"""Which cached chain a worker that is short of blocks would rather move than forget."""

from __future__ import annotations

from dataclasses import dataclass

from lmpoold.protocol.hashing import PrefixHash
from workers.core.blocks import BlockId, BlockPool

LOOKED_AT = 16
"""Leaves, the next to be reclaimed first, among which one worth its wire is looked for."""
DISCOUNT = 0.5
"""A chain that was found n times is expected to be found so many times n again, and at least as
likely as the pool's blocks were lately."""


@dataclass(frozen=True, slots=True)
class Cold:
    """A chain whose end nobody holds.

    Attributes:
        hashes: of the whole chain, root first.
        keep: depth from which on its blocks may be freed.
        reuses: how often the freed part is expected to be wanted again.
    """

    hashes: tuple[PrefixHash, ...]
    keep: int
    reuses: float

    @property
    def freed(self) -> int:
        """Blocks that moving it frees."""
        return len(self.hashes) - self.keep


@dataclass(frozen=True, slots=True)
class Offer:
    """What moving a chain to one rank means.

    Attributes:
        saved_us: computing that it is expected to save, what the rank forgets for it taken off.
        cost_us: of the way.
    """

    rank: int
    saved_us: float
    cost_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Where a chain could go.

    Attributes:
        free: blocks that hold nothing and are promised to nobody.
        once_used: cached blocks that nothing has found again.
        reuse_share: how likely one of those is wanted again, 0 to 1.
        fixed_us: of the way there, whatever travels.
        block_us: of the way, a block.
    """

    rank: int
    free: int
    once_used: int
    reuse_share: float
    fixed_us: float
    block_us: float

    @property
    def blocks(self) -> int:
        """How many blocks may come."""
        return max(0, self.free) + self.once_used

    def offer(self, cold: Cold, block_saves_us: float) -> Offer:
        """Weigh a chain.

        Args:
            cold: what would come; all of it travels.
            block_saves_us: what finding a block saves, once.
        """
        forgotten = max(0, len(cold.hashes) - max(0, self.free))
        saved_us = (cold.reuses * cold.freed - self.reuse_share * forgotten) * block_saves_us
        return Offer(self.rank, saved_us, self.fixed_us + self.block_us * len(cold.hashes))


def coldest_worth_moving(pool: BlockPool, shortage: int) -> Cold | None:
    """Choose, among the chains that would go next, the one that is expected to save most.

    Of a chain no more than `shortage` blocks are given up, from its leaf on.

    Args:
        pool: whose cache is about to give way.
        shortage: blocks that are lacking, > 0.
    Returns: None if nothing in reach is expected to be wanted again.
    """
    best: tuple[float, BlockId, int, float] | None = None
    for leaf in pool.coldest(LOOKED_AT):
        end = _end(pool, leaf, shortage)
        reuses = min((_reuses(pool, block) for block in end), default=0.0)
        saved = reuses * len(end)
        if saved and (best is None or saved > best[0]):
            best = saved, leaf, len(end), reuses
    if best is None:
        return None
    _, leaf, freed, reuses = best
    chain = _chain(pool, leaf)
    names = tuple(name for block in chain if (name := pool.named(block)) is not None)
    return Cold(names, len(chain) - freed, reuses)


def _reuses(pool: BlockPool, block: BlockId) -> float:
    """How often a block is expected to be wanted again: as its own past says, or as most are."""
    return max(DISCOUNT * (pool.uses(block) - 1), pool.reuse_share)


def _end(pool: BlockPool, leaf: BlockId, most: int) -> list[BlockId]:
    """Return the blocks of a chain that nobody else needs, from its leaf up, at most so many."""
    end: list[BlockId] = []
    at: BlockId | None = leaf
    while at is not None and len(end) < most and pool.lonely(at):
        end.append(at)
        at = _above(pool, at)
    return end


def _above(pool: BlockPool, block: BlockId) -> BlockId | None:
    """Return the block before one in its chain; None at the root."""
    name = pool.named(block)
    entry = None if name is None else pool.lookup(name)
    if entry is None or not entry.depth:
        return None
    above = pool.lookup(entry.parent)
    assert above is not None, "the map is closed towards the root"
    return BlockId(above.block)


def _chain(pool: BlockPool, leaf: BlockId) -> list[BlockId]:
    """Return the whole chain that ends with `leaf`, root first."""
    chain: list[BlockId] = []
    at: BlockId | None = leaf
    while at is not None:
        chain.append(at)
        at = _above(pool, at)
    return chain[::-1]
