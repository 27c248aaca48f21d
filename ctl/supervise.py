"""Child processes: started, kept alive, and stopped in order.

A child that dies is started again after a growing delay. Two deaths are final instead, for a
restart would only repeat them: exit code 2, which says that a setting is wrong, and dying again and
again before the whole has come up. The supervisor then fails, and `guard` ends whatever the caller
was doing with that failure.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ctl.statedir import StateDir
from lmpoold.protocol.errors import ConfigError, LMPoolError

T = TypeVar("T")

FIRST_DELAY_S = 0.5
LAST_DELAY_S = 10.0
STEADY_S = 30.0
"""A child that lived this long starts over with the shortest delay."""
GIVE_UP_STARTS = 5
STOP_TIMEOUT_S = 15.0
CANCEL_AGAIN_S = 1.0
EXIT_CONFIG = 2
LAST_LINES = 12
READ_BYTES = 16_384


@dataclass(frozen=True, slots=True)
class Program:
    """What to run: `name` is unique, and names the log."""

    name: str
    argv: tuple[str, ...]


class Child:
    """One program and the process that runs it now."""

    def __init__(self, program: Program, log: Path) -> None:
        """Name the program; nothing is started."""
        self.program = program
        self.log = log
        self.process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The pid of the running process."""
        process = self.process
        return process.pid if process is not None and process.returncode is None else None

    def last_lines(self) -> list[str]:
        """Return the end of the log."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - READ_BYTES))
                return file.read().decode("utf-8", "replace").splitlines()[-LAST_LINES:]
        except OSError:
            return []

    def logged(self, message: str) -> bool:
        """Return whether a JSON line of the log has this `msg`."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return False
        return any(_message(line) == message for line in lines)


def _message(line: str) -> str:
    try:
        return str(json.loads(line)["msg"])
    except (ValueError, TypeError, KeyError):
        return ""


def restart_delay_s(deaths: int, first_s: float = FIRST_DELAY_S) -> float:
    """Return how long to wait after the nth death in a row, n >= 1."""
    return float(min(LAST_DELAY_S, first_s * 2 ** min(deaths - 1, 10)))


def describe_exit(code: int) -> str:
    """Return an exit status in words; negative codes are signals."""
    if code >= 0:
        return f"exit {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


class Supervisor:
    """Keeps children alive until `stop`, or until one of them fails for good.

    Attributes:
        settled: everything has come up once, which is for the caller to say: from then on no number
            of deaths is final.
    """

    def __init__(
        self,
        folder: StateDir,
        say: Callable[[str], None],
        environ: Mapping[str, str],
        *,
        first_delay_s: float = FIRST_DELAY_S,
    ) -> None:
        """Log into `folder`, tell people what happens by `say`, run children in `environ`."""
        self._folder = folder
        self._say = say
        self._environ = dict(environ)
        self._first_delay_s = first_delay_s
        self._owned: list[asyncio.Task[None]] = []
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hurry = asyncio.Event()
        self.children: list[Child] = []
        self.settled = False

    def start(self, programs: Iterable[Program]) -> list[Child]:
        """Start programs and keep them alive; stopping goes the other way round."""
        started = []
        for program in programs:
            log = self._folder.log(program.name)
            if log.exists():
                log.replace(log.with_suffix(".log.old"))
            child = Child(program, log)
            self.children.append(child)
            started.append(child)
            self.own(self._keep(child), f"keep {program.name}")
        return started

    def own(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run `work` until `stop`; its failure is the supervisor's."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._judge)
        self._owned.append(task)

    def _judge(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failure.done():
            self._failure.set_exception(error)

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`; raises the failure of a child, and cancels the work, if that comes first.

        Raises:
            ConfigError: a child exited with code 2.
            LMPoolError: a child died `GIVE_UP_STARTS` times in a row before all was up.
        """
        task = asyncio.create_task(work, name="guarded work")
        either: set[asyncio.Future[Any]] = {task, self._failure}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def hurry(self) -> None:
        """Let `stop` kill what has not ended yet."""
        self._hurry.set()

    async def stop(self) -> None:
        """End all children, in the reverse order of `start` calls, workers thus before lmpoolds."""
        pending = set(self._owned)
        while pending:
            for task in pending:
                task.cancel()
            # Again: a client may take a cancelling for a lost connection, and its caller goes on.
            _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
        self._owned.clear()
        kinds: dict[str, list[Child]] = {}
        for child in reversed(self.children):
            kinds.setdefault(child.program.name.partition("-")[0], []).append(child)
        for group in kinds.values():
            await _end([child.process for child in group if child.process], self._hurry)
        self.children.clear()
        if self._failure.done() and not self._failure.cancelled():
            self._failure.exception()  # it was reported, or came while everything stopped

    async def _keep(self, child: Child) -> None:
        deaths = 0
        while True:
            began_s = time.monotonic()
            code = await self._run_once(child)
            deaths = 1 if time.monotonic() - began_s >= STEADY_S else deaths + 1
            if code == EXIT_CONFIG or (deaths >= GIVE_UP_STARTS and not self.settled):
                raise self._final(child, code)
            delay_s = restart_delay_s(deaths, self._first_delay_s)
            self._say(
                f"{child.program.name} ended ({describe_exit(code)}): "
                f"starting it again in {delay_s:g} s; log {child.log}"
            )
            await asyncio.sleep(delay_s)

    async def _run_once(self, child: Child) -> int:
        # Sessions of their own: a Ctrl-C at the terminal reaches the supervisor alone, which then
        # stops everybody in order.
        with child.log.open("ab") as log:
            child.process = await asyncio.create_subprocess_exec(
                *child.program.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environ,
                start_new_session=True,
            )
        self._folder.remember(child.program.name, child.process.pid)
        return await child.process.wait()

    def _final(self, child: Child, code: int) -> LMPoolError:
        name = child.program.name
        for line in child.last_lines():
            self._say(f"  {name} | {line}")
        if code == EXIT_CONFIG:
            return ConfigError(f"{name} cannot run with these settings; its log is {child.log}")
        return LMPoolError(
            f"{name} ended {GIVE_UP_STARTS} times in a row before the pool was up "
            f"(last: {describe_exit(code)}); its log is {child.log}"
        )


async def _end(processes: Sequence[asyncio.subprocess.Process], hurry: asyncio.Event) -> None:
    """SIGTERM processes together; SIGKILL those that stay, after a while or when told to hurry."""

    def signal_all(number: int) -> None:
        for process in processes:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.send_signal(number)

    signal_all(signal.SIGTERM)
    ended = asyncio.gather(*(process.wait() for process in processes))
    hurried = asyncio.create_task(hurry.wait(), name="hurry")
    either: set[asyncio.Future[Any]] = {ended, hurried}
    try:
        await asyncio.wait(either, timeout=STOP_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        signal_all(signal.SIGKILL)
        await ended
    finally:
        hurried.cancel()
