"""Tells the pool what moved blocks are weighed against: the worker's pace, and its cache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from lmpoold.store.scripts import PoolStore

EVERY_S = 0.25
CHANGE = 0.1
"""A figure that moved by less than this share is not worth a write."""


class FactsReport:
    """Writes figures beside what the rank says of itself, whenever one has moved."""

    def __init__(
        self, store: PoolStore, rank: int, figures: Callable[[], Mapping[str, float]]
    ) -> None:
        """Report `figures` for `rank`, for one epoch: joining again forgets what was written."""
        self._store = store
        self._key = store.keys.rank_facts(rank)
        self._figures = figures
        self._told: dict[str, float] = {}

    async def turn(self) -> None:
        """Look once, a while after the last time."""
        await asyncio.sleep(EVERY_S)
        moved = {name: now for name, now in self._figures().items() if self._has_moved(name, now)}
        if moved:
            words = [word for name, now in moved.items() for word in (name, f"{now:.3f}")]
            await self._store.redis.hset(self._key, items=words)
            self._told |= moved

    def _has_moved(self, name: str, now: float) -> bool:
        told = self._told.get(name)
        return told is None or abs(now - told) > CHANGE * told
