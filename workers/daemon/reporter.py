"""Reports of the engine to Redis: answers and ends first, then what the pool holds."""

from __future__ import annotations

import asyncio
from collections import deque

from lmpoold.protocol.errors import LMPoolError, RequestsOver, Stale
from lmpoold.shell.observe import log_request
from lmpoold.store.said import delta_args, emit_args
from lmpoold.store.scripts import PoolStore
from workers.daemon.commands import Abort, Reset
from workers.daemon.engine import Engine
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

    @property
    def version(self) -> int:
        """The last report of this epoch that the server acknowledged."""
        return self._version

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
            Stale: the rank was fenced, or the server forgot what it had acknowledged.
            EngineFailed: the engine's thread is gone.
        """
        if self._sending is None:
            await self._signal.wait()
            self._signal.clear()
            self._collect(engine)
            self._sending, self._backlog = self._backlog, Backlog()
            self._step += 1
        # Kept until the server has it all: each call is safe to repeat (by step, by version).
        sending = self._sending
        while sending.counts is not None:
            try:
                if sending.snapshot is None:
                    await self._send(engine, sending)
                else:
                    await self._send_snapshot(sending)
                break
            except RequestsOver as over:
                sending.drop(over.ids)
                for request_id in over.ids:
                    engine.tell(Abort(request_id))
        self._sending = None

    def _collect(self, engine: Engine) -> None:
        while self._arrived:
            report = self._arrived.popleft()
            if report is None:
                raise EngineFailed("the engine thread ended") from engine.failure
            if report.epoch == self._epoch:
                self._backlog.add(report)
                for end in report.ended:
                    log_request(
                        "ended",
                        end.id,
                        rank=self._rank,
                        attempt=end.attempt,
                        state=end.state,
                        finish=end.finish_reason,
                        output_tokens=end.output_tokens,
                    )

    async def _send(self, engine: Engine, sending: Backlog) -> None:
        """Answers and changes, in one round trip."""
        assert sending.counts is not None
        version = self._version + 1
        change = delta_args(
            self._rank,
            self._epoch,
            self._version,
            version,
            sending.counts,
            sending.admitted,
            sending.puts,
            list(sending.dels),
        )
        if sending.outputs or sending.ended:
            said = emit_args(self._rank, self._epoch, self._step, sending.outputs, sending.ended)
            held = await self._store.step(said, change)
        else:
            reply = await self._store.call("delta", *change)
            held = int(reply.split()[1])
        if held < self._version:
            raise Stale(f"the server forgot reports {held + 1} to {self._version}")
        self._version = held
        if held != version:
            self._backlog.admitted += sending.still_running
            engine.tell(Reset(self._epoch, forget=False))

    async def _send_snapshot(self, sending: Backlog) -> None:
        """Answers first, then the whole page table; what was admitted goes with the next delta."""
        assert sending.counts is not None
        assert sending.snapshot is not None
        if sending.outputs or sending.ended:
            await self._store.emit(
                self._rank, self._epoch, self._step, sending.outputs, sending.ended
            )
        pages = {**sending.snapshot, **sending.puts}
        for name in sending.dels:
            pages.pop(name, None)
        version = self._version + 1
        await self._store.swap(self._rank, self._epoch, version, sending.counts, pages)
        self._version = version
        self._backlog.admitted += sending.still_running
