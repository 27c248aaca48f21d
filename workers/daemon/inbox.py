"""The worker stream: routes, cancels and orders in, to the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable

from lmpoold.protocol.errors import DecodeError
from lmpoold.protocol.messages import Cancel, Dispatch, Forget, read_worker_message
from lmpoold.protocol.transfer import PlanOrder
from lmpoold.shell.observe import log_request
from lmpoold.store.scripts import PoolStore
from lmpoold.store.streams import Entry, Inbox
from workers.daemon.commands import Abort, Add, Command, Handover
from workers.daemon.transfers import Transfers

log = logging.getLogger(__name__)

BATCH = 64
BLOCK_MS = 1000
FORGET = Handover(lambda handoff, _: handoff.pool.clear_cached(), lambda _: None, after_steps=True)


def entry_place(entry: str) -> tuple[int, int]:
    """Return an entry id as numbers, which compare as the stream orders them."""
    ms, _, number = entry.partition("-")
    return int(ms), int(number)


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
        self._received = (0, 0)
        self._done: list[str] = []

    async def turn(self) -> None:
        """Read one batch; after a lost connection first what was delivered but not received.

        Raises: Stale: the rank was fenced.
        """
        if self._after_loss:
            await self._take(await self._inbox.pending(BATCH * 1000), doubtful=True)
        self._after_loss = True
        # What is dealt with goes with the next read: an order that follows waits for nothing.
        entries = await self._inbox.read(BATCH, BLOCK_MS, self._done)
        self._after_loss, self._done = False, []
        await self._take(entries)

    async def _take(self, entries: list[Entry], *, doubtful: bool = False) -> None:
        """Hand entries to the engine; ask the pool about doubtful ones, which may have moved on."""
        # Entries come in order, once. What is pending up to the last one received was handed over
        # then, and may have ended since: handed over again it would run again.
        fresh = [entry for entry in entries if entry_place(entry[0]) > self._received]
        messages: list[Dispatch | Cancel | Forget | PlanOrder] = []
        for entry, values in fresh:
            try:
                messages.append(read_worker_message(entry, values))
            except DecodeError as error:
                log.warning("unreadable entry dropped", extra={"entry": entry, "why": str(error)})
                self._done.append(entry)
        dispatches = [message for message in messages if isinstance(message, Dispatch)]
        moved: set[str] = set()
        if doubtful and dispatches:
            pairs = [(dispatch.id, dispatch.attempt) for dispatch in dispatches]
            moved = set(await self._store.admit(self._rank, self._epoch, pairs))
        if fresh:
            self._received = entry_place(fresh[-1][0])
        for message in messages:
            match message:
                case Dispatch() if message.id in moved:
                    self._done.append(message.entry)
                case Dispatch():
                    self._add(message)
                case Cancel():
                    held = self._transfers.recall(message.id) if self._transfers else None
                    self._tell(Abort(message.id, "cancelled", "cancelled by its asker", held))
                    self._done.append(message.entry)
                case Forget():
                    self._tell(FORGET)
                    self._done.append(message.entry)
                case PlanOrder():
                    # Kept in memory from here on: with this process ends the epoch it is for.
                    if self._transfers is not None:
                        self._transfers.take(message)
                    self._done.append(message.entry)

    def _add(self, dispatch: Dispatch) -> None:
        """Give a request to the engine, now or when the plan that brings its prefix is over."""
        facts = {"attempt": dispatch.attempt, "prompt_tokens": dispatch.payload.prompt_tokens}
        log_request("taken", dispatch.id, rank=self._rank, **facts)
        if self._transfers is None or not dispatch.plan or not self._transfers.hold(dispatch):
            self._tell(Add(dispatch))
