"""Reports of the engine to Redis: answers and ends first, then what the pool holds."""

from __future__ import annotations

import asyncio
from collections import deque

from lmpoold.protocol.errors import LMPoolError
from lmpoold.store.scripts import PoolStore
from workers.daemon.engine import Engine, Reset
from workers.daemon.report import Backlog, StepReport


class EngineFailed(LMPoolError):
    """The engine thread ended by an exception; the process has to end too."""


class Reporter:
    """Collects reports from the engine's thread and sends them, several steps in one if need be."""

    def __init__(self, store: PoolStore, *, rank: int) -> None:
        """Report for `rank` from the thread that runs the event loop."""
        self._store = store
        self._rank = rank
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[StepReport | None] = deque()
        self._signal = asyncio.Event()
        self._backlog = Backlog()
        self._sending: Backlog | None = None
        self._epoch = ""
        self._step = 0
        self._version = 0

    def post(self, report: StepReport | None) -> None:
        """Take a report, on the engine's thread; None says that the thread has ended."""
        self._arrived.append(report)
        # One wake-up for all reports that arrive before the loop looks.
        if not self._signal.is_set():
            self._loop.call_soon_threadsafe(self._signal.set)

    def restart(self, epoch: str) -> None:
        """Begin a new epoch: what the old one had to say, now or later, is void."""
        self._epoch = epoch
        self._backlog, self._sending = Backlog(), None
        self._step, self._version = 0, 0

    async def turn(self, engine: Engine) -> None:
        """Wait for a report and send what there is; after a lost connection, send it again.

        Raises:
            Stale: the rank was fenced.
            EngineFailed: the engine's thread is gone.
        """
        if self._sending is None:
            await self._signal.wait()
            self._signal.clear()
            self._collect(engine)
            self._sending, self._backlog = self._backlog, Backlog()
            self._step += 1
        # Kept until both calls returned: each is safe to repeat (by step, by version).
        sending = self._sending
        if sending.outputs or sending.ended:
            await self._store.emit(
                self._rank, self._epoch, self._step, sending.outputs, sending.ended
            )
        if sending.counts is not None:
            await self._tell_pool(engine, sending)
        self._sending = None

    def _collect(self, engine: Engine) -> None:
        while self._arrived:
            report = self._arrived.popleft()
            if report is None:
                raise EngineFailed("the engine thread ended") from engine.failure
            if report.epoch == self._epoch:
                self._backlog.add(report)

    async def _tell_pool(self, engine: Engine, sending: Backlog) -> None:
        assert sending.counts is not None
        epoch = self._epoch
        if sending.snapshot is not None:
            version = self._version + 1
            pages = {**sending.snapshot, **sending.puts}
            for name in sending.dels:
                pages.pop(name, None)
            await self._store.swap(self._rank, epoch, version, sending.counts, pages)
            self._version = version
            if not sending.admitted:
                return
            sending.puts, sending.dels, sending.snapshot = {}, {}, None
        version = self._version + 1
        self._version = await self._store.delta(
            self._rank,
            epoch,
            self._version,
            version,
            sending.counts,
            admitted=sending.admitted,
            puts=sending.puts,
            dels=list(sending.dels),
        )
        if self._version != version:
            self._backlog.admitted += sending.admitted
            engine.tell(Reset(epoch, forget=False))
