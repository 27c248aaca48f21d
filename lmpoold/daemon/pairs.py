"""The leader has workers with a link connect before a request needs it.

Making a pair takes tens of milliseconds by CUDA IPC and a second by NCCL, and the first plan
between two workers would pay for it while a request waits. So a scratch block is moved between
every two that have just met. Such a plan gives way to all others and shows nothing.
"""

from __future__ import annotations

import logging
import time
import uuid

from lmpoold.daemon.links import LinkKeeper
from lmpoold.protocol.transfer import Phase
from lmpoold.store.plans import PlanStore

log = logging.getLogger(__name__)

EVERY_S = 2.0
USES = ("fetch", "foreground", "background")


class PairOpener:
    """Moves one block each time two workers meet; where that is refused, it is tried again."""

    def __init__(self, plans: PlanStore, links: LinkKeeper) -> None:
        """Look for pairs in `links`."""
        self._plans = plans
        self._links = links
        self._met: set[tuple[tuple[int, int], tuple[int, int]]] = set()
        self._turned_s = 0.0

    def forget(self) -> None:
        """Begin anew: another process has led meanwhile."""
        self._met.clear()

    async def turn(self, token: str) -> None:
        """Begin what is missing, if it is time and blocks are moved at all."""
        del token  # a pair that was made twice is made once
        if not self._links.ways or (now_s := time.monotonic()) - self._turned_s < EVERY_S:
            return
        self._turned_s = now_s
        cfg = await self._plans.store.cfg()
        if not any(float(cfg.get(use, "0")) for use in USES):
            return
        epochs = {row.rank: row.epoch for row in await self._plans.store.ranks()}
        there = {
            ((low, epochs[low]), (high, epochs[high]))
            for low, high in self._links.ways
            if low < high and low in epochs and high in epochs
        }
        self._met &= there
        for pair in sorted(there - self._met):
            (low, _), (high, _) = pair
            phase = await self._plans.probe(uuid.uuid4().hex, low, high, 1, serving=None)
            if phase is Phase.PREPARE:
                self._met.add(pair)
                log.info("pair asked for", extra={"ranks": f"{low},{high}"})
