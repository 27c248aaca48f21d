"""The worker stream: routes and cancels in, to the engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from lmpoold.protocol.errors import DecodeError
from lmpoold.protocol.keys import WORKER_GROUP, Keyspace
from lmpoold.protocol.messages import Cancel, Dispatch, read_worker_message
from lmpoold.protocol.transfer import PlanOrder
from lmpoold.store.scripts import PoolStore
from lmpoold.store.streams import Entry, Inbox
from workers.daemon.engine import Abort, Add, Command
from workers.daemon.transfers import Transfers

log = logging.getLogger(__name__)

BATCH = 64
BLOCK_MS = 1000


class WorkerInbox:
    """Reads one rank's stream for one epoch."""

    def __init__(
        self,
        store: PoolStore,
        inbox: Inbox,
        tell: Callable[[Command], None],
        *,
        rank: int,
        epoch: str,
        transfers: Transfers | None = None,
    ) -> None:
        """Hand what `inbox` brings to `tell`, orders of plans to `transfers`."""
        self._store = store
        self._inbox = inbox
        self._tell = tell
        self._transfers = transfers
        self._rank = rank
        self._epoch = epoch
        self._after_loss = True

    async def turn(self) -> None:
        """Read one batch; after a lost connection first what was delivered but not received.

        Raises: Stale: the rank was fenced.
        """
        if self._after_loss:
            await self._take(await self._inbox.pending(BATCH * 1000), doubtful=True)
        self._after_loss = True
        entries = await self._inbox.read(BATCH, BLOCK_MS)
        self._after_loss = False
        await self._take(entries)

    async def _take(self, entries: list[Entry], *, doubtful: bool = False) -> None:
        """Hand entries to the engine; ask the pool about doubtful ones, which may have moved on."""
        taken: list[Dispatch] = []
        done: list[str] = []
        for entry, values in entries:
            try:
                message = read_worker_message(entry, values)
            except DecodeError as error:
                log.warning("unreadable entry dropped", extra={"entry": entry, "why": str(error)})
                done.append(entry)
                continue
            match message:
                case Dispatch():
                    self._add(message)
                    taken.append(message)
                case Cancel():
                    if self._transfers is not None:
                        self._transfers.release(message.id)
                    self._tell(Abort(message.id, "cancelled", "cancelled by its asker"))
                    done.append(entry)
                case PlanOrder():
                    # Kept in memory from here on: with this process ends the epoch it is for.
                    if self._transfers is not None:
                        self._transfers.take(message)
                    done.append(entry)
        if taken and doubtful:
            pairs = [(dispatch.id, dispatch.attempt) for dispatch in taken]
            dropped = set(await self._store.admit(self._rank, self._epoch, pairs))
            for dispatch in taken:
                if dispatch.id in dropped:
                    if self._transfers is not None:
                        self._transfers.forget(dispatch.id)
                    self._tell(Abort(dispatch.id))
                    done.append(dispatch.entry)
        if done:
            keys: Keyspace = self._store.keys
            stream = keys.worker(self._rank)
            await asyncio.gather(
                self._store.redis.xack(stream, WORKER_GROUP, *done),
                self._store.redis.xdel(stream, *done),
            )

    def _add(self, dispatch: Dispatch) -> None:
        """Give a request to the engine, now or when the plan that brings its prefix is over."""
        if self._transfers is None or not dispatch.plan or not self._transfers.hold(dispatch):
            self._tell(Add(dispatch))
