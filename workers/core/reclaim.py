"""Which cached block goes first: the policies, and the heap that applies one.

The heap is lazy. A leaf that is held again, or gets a child, is withdrawn by forgetting its stamp;
its entry stays until it surfaces or until stale entries outnumber the leaves. Every operation costs
O(log n) a leaf, amortised.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import Protocol

_SLACK = 64
"""Stale entries that are never worth a clean-up."""


class ReclaimPolicy(Protocol):
    """Orders the leaves: the smallest key is reclaimed first.

    The key is read once, when a block becomes a leaf: none of the arguments changes until it is
    held again.
    """

    def __call__(
        self, access_count: int, last_access_s: float, depth: int, block: int
    ) -> tuple[float, ...]:
        """Return the key of a leaf.

        Args:
            access_count: 1 for each time it was computed, as far as that is remembered, and 1 for
                every hit.
            last_access_s: when it was last acquired or released, the pool's clock.
            depth: blocks before it in its chain.
            block: its id; breaks the last tie.
        """


def lfu_then_lru(
    access_count: int, last_access_s: float, depth: int, block: int
) -> tuple[float, ...]:
    """Least used first; among equals the longest untouched, then the deepest."""
    return (access_count, last_access_s, -depth, block)


def lru(access_count: int, last_access_s: float, depth: int, block: int) -> tuple[float, ...]:
    """Longest untouched first; among equals the deepest."""
    return (last_access_s, -depth, block)


def lru_with_credit(credit_s: float) -> ReclaimPolicy:
    """Longest untouched first, but a reused block counts as touched `credit_s` later."""

    def key(access_count: int, last_access_s: float, depth: int, block: int) -> tuple[float, ...]:
        return (last_access_s + (credit_s if access_count > 1 else 0.0), -depth, block)

    return key


REUSE_CREDIT_S = 600.0
"""Time a hit is worth: users come back to a conversation within minutes, or not at all."""

POLICIES: Mapping[str, ReclaimPolicy] = MappingProxyType(
    {"credit": lru_with_credit(REUSE_CREDIT_S), "lru": lru, "lfu": lfu_then_lru}
)
"""By name, the default first: `python -m benchmarks.sim` chose it on traces of real use."""

DEFAULT_POLICY = POLICIES["credit"]


class LeafHeap:
    """The reclaimable leaves, cheapest first."""

    def __init__(self) -> None:
        """Start empty."""
        self._heap: list[tuple[tuple[float, ...], int, int]] = []  # key, block, stamp
        self._stamps: dict[int, int] = {}  # leaf -> the stamp of its live entry
        self._last_stamp = 0

    def __len__(self) -> int:
        """Count the leaves."""
        return len(self._stamps)

    def __contains__(self, block: int) -> bool:
        """Tell whether a block is a leaf."""
        return block in self._stamps

    def put(self, block: int, key: tuple[float, ...]) -> None:
        """Add a block that is not among the leaves."""
        self._last_stamp += 1
        self._stamps[block] = self._last_stamp
        heappush(self._heap, (key, block, self._last_stamp))
        if len(self._heap) > 2 * len(self._stamps) + _SLACK:
            stamps = self._stamps
            self._heap = [entry for entry in self._heap if stamps.get(entry[1]) == entry[2]]
            heapify(self._heap)

    def withdraw(self, block: int) -> None:
        """Take a block out, if it is a leaf."""
        self._stamps.pop(block, None)

    def pop(self) -> int:
        """Take out the leaf with the smallest key; IndexError when there is none."""
        while True:
            _, block, stamp = heappop(self._heap)
            if self._stamps.get(block) == stamp:
                del self._stamps[block]
                return block

    def coldest(self, most: int) -> list[int]:
        """Return the leaves that would be taken out next, in order; they stay."""
        found: list[tuple[tuple[float, ...], int, int]] = []
        while self._heap and len(found) < most:
            entry = heappop(self._heap)
            if self._stamps.get(entry[1]) == entry[2]:
                found.append(entry)
        for entry in found:
            heappush(self._heap, entry)
        return [block for _, block, _ in found]

    def check(self, leaves: set[int]) -> None:
        """Assert that exactly `leaves` are here, each with one live entry."""
        assert self._stamps.keys() == leaves, f"heap {self._stamps.keys()}, leaves {leaves}"
        live = [block for _, block, stamp in self._heap if self._stamps.get(block) == stamp]
        assert sorted(live) == sorted(leaves), f"live entries {live}, leaves {leaves}"
