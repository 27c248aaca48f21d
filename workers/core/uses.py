"""What a pool remembers of blocks beyond their lives: how often they were wanted."""

from __future__ import annotations

from lmpoold.protocol.hashing import PrefixHash

NAMES_PER_BLOCK = 4
"""Forgotten names whose uses are remembered, for each block of the pool: one that is computed again
is being reused, though the pool had given it up."""
COUNTED_PER_BLOCK = 8
"""First uses counted, for each block of the pool, before the counts are halved: the share follows
what is asked for now."""


class PastUses:
    """Uses of forgotten names, and how many first uses are followed by a second one."""

    def __init__(self, num_blocks: int) -> None:
        """Remember as much as a pool of `num_blocks` is worth."""
        self._num_blocks = num_blocks
        self._uses: dict[PrefixHash, int] = {}  # the longest gone first
        self._firsts = 0
        self._seconds = 0

    @property
    def share(self) -> float:
        """Share of the first uses lately that were followed by a second one, 0 to 1."""
        return min(1.0, self._seconds / self._firsts) if self._firsts else 0.0

    def count(self, uses: int) -> None:
        """Note that a block is wanted for the `uses`-th time."""
        self._firsts += uses == 1
        self._seconds += uses == 2
        if self._firsts > COUNTED_PER_BLOCK * self._num_blocks:
            self._firsts, self._seconds = self._firsts // 2, self._seconds // 2

    def forget(self, name: PrefixHash, uses: int) -> None:
        """Keep the uses of a name whose block is given to others."""
        self._uses[name] = uses
        if len(self._uses) > NAMES_PER_BLOCK * self._num_blocks:
            del self._uses[next(iter(self._uses))]

    def recall(self, name: PrefixHash) -> int:
        """Return the uses of a name that has a block again; 0 for one that is not remembered."""
        return self._uses.pop(name, 0)
