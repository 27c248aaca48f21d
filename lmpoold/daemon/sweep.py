"""What one lmpoold at a time does: end what has outlived its time, and look after the links."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from lmpoold.daemon.links import LinkKeeper
from lmpoold.daemon.metrics import PlannerMetrics
from lmpoold.daemon.pairs import PairOpener
from lmpoold.daemon.place import Placer
from lmpoold.daemon.watch import Watch
from lmpoold.protocol.errors import Stale
from lmpoold.shell.steady import pause, steadily
from lmpoold.store.plans import PlanStore
from lmpoold.store.scripts import PoolStore

log = logging.getLogger(__name__)

EVERY_S = 0.25
LEAD_TTL_MS = 1500
MOST = 200
"""Requests moved or ended in one call, so that the call stays short."""


class Sweeper:
    """Leads if nobody else does; the leader reaps."""

    def __init__(
        self, store: PoolStore, owner: str, metrics: PlannerMetrics, *, watch: bool = False
    ) -> None:
        """Lead as `owner`, a name no other process has; with `watch`, look at the pool too."""
        self._store = store
        self._plans = PlanStore(store)
        self._links = LinkKeeper(self._plans)
        self._pairs = PairOpener(self._plans, self._links)
        self._metrics = metrics
        self._placer = Placer(self._plans, self._links, granted=metrics.granted)
        self._watch = Watch(store, metrics)
        self._watches = watch
        self._owner = owner
        self._leading = False

    async def run(self, stop: asyncio.Event) -> None:
        """Sweep until `stop`."""

        async def turn() -> None:
            await self._turn()
            await pause(stop, EVERY_S)

        await steadily("sweep", turn, stop)

    async def _turn(self) -> None:
        token = await self._store.acquire(self._owner, LEAD_TTL_MS)
        if (token is not None) != self._leading:
            self._leading = token is not None
            self._links.forget()
            self._pairs.forget()
            self._placer.forget()
            self._watch.forget(leading=self._leading)
            log.info("leads" if self._leading else "leads no more", extra={"token": token})
        if token is None:
            return
        for deed in await self._store.reap(MOST):
            self._metrics.reaped()
            log.warning("reaped", extra={"deed": deed})
        with contextlib.suppress(Stale):  # another one has begun to lead since
            for deed in await self._plans.reap(token, MOST):
                self._metrics.reaped()
                log.warning("plan reaped", extra={"deed": deed})
            await self._links.turn(token)
            await self._pairs.turn(token)
            await self._placer.turn(token)
        if self._watches:
            await self._watch.turn()
