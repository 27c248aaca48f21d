"""The leader's eye for metrics: the pool's state once a second, and each plan that ends."""

from __future__ import annotations

import time

from lmpoold.daemon.metrics import PlannerMetrics
from lmpoold.store.plans import PlanStore
from lmpoold.store.scripts import PoolStore
from lmpoold.store.state import read_state

EVERY_S = 1.0


class Watch:
    """Fills `PlannerMetrics` while this process leads."""

    def __init__(self, store: PoolStore, metrics: PlannerMetrics) -> None:
        """Have seen nothing yet."""
        self._store = store
        self._plans = PlanStore(store)
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
        if not self._read_up_to:  # what ended before was counted by whoever led then
            self._read_up_to = await self._plans.last_settled()
            return
        async for entry, row in self._plans.settled(self._read_up_to):
            self._read_up_to = entry
            outcome, blocks = row.get("outcome", ""), int(row.get("blocks", 0))
            self._metrics.settled(outcome, row.get("src", ""), row.get("dst", ""), blocks)
            if outcome == "finalize":
                self._metrics.published(float(row["publish_us"]))
