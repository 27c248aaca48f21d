"""Which cached chain a worker that is short of blocks would rather move than forget."""

from __future__ import annotations

from dataclasses import dataclass

from lmpoold.protocol.hashing import PrefixHash
from workers.core.blocks import BlockId, BlockPool

LOOKED_AT = 16
"""Leaves, the next to be reclaimed first, among which one worth its wire is looked for."""
DISCOUNT = 0.5
"""A chain that was found n times is expected to be found so many times n again."""


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


def coldest_worth_moving(pool: BlockPool, shortage: int) -> Cold | None:
    """Choose the chain that would go next, among those that were ever found again.

    Of a chain no more than `shortage` blocks are given up, from its leaf on.

    Args:
        pool: whose cache is about to give way.
        shortage: blocks that are lacking, > 0.
    Returns: None if nothing in reach was ever used twice.
    """
    for leaf in pool.coldest(LOOKED_AT):
        if pool.uses(leaf) < 2:
            continue
        chain = _chain(pool, leaf)
        freed, uses = 0, pool.uses(leaf)
        for block in reversed(chain):
            if freed == shortage or not pool.lonely(block):
                break
            freed, uses = freed + 1, min(uses, pool.uses(block))
        names = tuple(name for block in chain if (name := pool.named(block)) is not None)
        return Cold(names, len(chain) - freed, DISCOUNT * (uses - 1))
    return None


def _chain(pool: BlockPool, leaf: BlockId) -> list[BlockId]:
    chain, name = [leaf], pool.named(leaf)
    while name is not None:
        entry = pool.lookup(name)
        if entry is None or not entry.depth:
            break
        name = entry.parent
        above = pool.lookup(name)
        assert above is not None, "the map is closed towards the root"
        chain.append(BlockId(above.block))
    return chain[::-1]
