"""The leader's eye for metrics: the pool's state once a second, and each plan that ends."""

from __future__ import annotations

import time
from typing import Any

from lmpoold.daemon.metrics import PlannerMetrics
from lmpoold.store.scripts import PoolStore
from lmpoold.store.state import read_state

EVERY_S = 1.0
LOG_CHUNK = 1000


class Watch:
    """Fills `PlannerMetrics` while this process leads."""

    def __init__(self, store: PoolStore, metrics: PlannerMetrics) -> None:
        """Have seen nothing yet."""
        self._store = store
        self._metrics = metrics
        self._read_up_to = ""
        self._turned_s = 0.0

    def forget(self, *, leading: bool) -> None:
        """Begin anew: this process has begun to lead, or leads no more."""
        self._read_up_to = ""
        self._turned_s = 0.0
        self._metrics.leads(leading=leading)

    async def turn(self) -> None:
        """Look, if it is time."""
        if (now_s := time.monotonic()) - self._turned_s < EVERY_S:
            return
        self._turned_s = now_s
        await self._read_log()
        self._metrics.pool.state = await read_state(self._store)

    async def _read_log(self) -> None:
        redis, key = self._store.redis, self._store.keys.plan_log
        if not self._read_up_to:
            last: Any = await redis.xrevrange(key, count=1)
            # what ended before was counted by whoever led then
            self._read_up_to = last[0][0].decode() if last else "0-0"
            return
        while True:
            rows: Any = await redis.xrange(key, f"({self._read_up_to}", count=LOG_CHUNK)
            for entry, values in rows:
                self._read_up_to = entry.decode()
                row = {name.decode(): value.decode() for name, value in values.items()}
                outcome, blocks = row.get("outcome", ""), int(row.get("blocks", 0))
                self._metrics.settled(outcome, row.get("src", ""), row.get("dst", ""), blocks)
                if outcome == "finalize":
                    self._metrics.published(float(row["publish_us"]))
            if len(rows) < LOG_CHUNK:
                return
