"""Tells the pool how fast this worker prefills: what a moved prefix is weighed against."""

from __future__ import annotations

import asyncio

from lmpoold.store.scripts import PoolStore
from workers.core.pace import Pace

EVERY_S = 0.25
CHANGE = 0.1
"""A rate that moved by less than this share is not worth a write."""


class PaceReport:
    """Writes `prefill_us` beside what the rank says of itself, whenever it has moved."""

    def __init__(self, store: PoolStore, rank: int, pace: Pace) -> None:
        """Report `pace` for `rank`, for one epoch: joining again forgets what was written."""
        self._store = store
        self._key = store.keys.rank_facts(rank)
        self._pace = pace
        self._told: float | None = None

    async def turn(self) -> None:
        """Look once, a while after the last time."""
        await asyncio.sleep(EVERY_S)
        now = self._pace.prefill_us
        if now is None:
            return
        if self._told is None or abs(now - self._told) > CHANGE * self._told:
            await self._store.redis.hset(self._key, "prefill_us", f"{now:.3f}")
            self._told = now
