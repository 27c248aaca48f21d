"""The processes under test, each behind a link of its own: killed, stopped, started again."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from pathlib import Path

from lmpoold.store.embedded import EmbeddedServer
from tests.chaos.proxy import Link

MODEL = "random:tiny-qwen3"
REST_S = 0.5
"""How long a process that ended by itself stays down, as under a supervisor."""
LAST_WORDS = 2000
"""Characters kept of a log whose process died."""


class Child:
    """One program that is to run for ever: whoever ends it, it is started again.

    Attributes:
        deaths: exit codes of processes that ended without being killed by the harness.
        last_words: of each of these, how its log ended.
        codes: exit codes of all that ended.
    """

    def __init__(self, name: str, argv: tuple[str, ...], link: Link, log: Path) -> None:
        self.name = name
        self.link = link
        self.deaths: list[int] = []
        self.last_words: list[str] = []
        self.codes: list[int] = []
        self._argv = (sys.executable, "-m", *argv, "--redis-url", link.url)
        self.log = log
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._allowed = asyncio.Event()
        self._allowed.set()
        self._expected = False

    def start(self) -> None:
        self._keeper = asyncio.create_task(self._keep(), name=f"keep {self.name}")

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def _keep(self) -> None:
        while True:
            await self._allowed.wait()
            with self.log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            code = await self._process.wait()
            self.codes.append(code)
            if not self._expected:
                self.deaths.append(code)
                self.last_words.append(self.log.read_text()[-LAST_WORDS:])
                await asyncio.sleep(REST_S)
            self._expected = False

    def signal(self, number: int) -> None:
        """Send a signal to the running process, if there is one."""
        process = self._process
        if process is not None and process.returncode is None:
            if number in (signal.SIGKILL, signal.SIGTERM):
                self._expected = True
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; it stays down until `allow`."""
        self._allowed.clear()
        self.signal(signal.SIGKILL)

    def allow(self) -> None:
        """Let it run again."""
        self._allowed.set()

    async def end(self) -> None:
        """End it for good."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        process = self._process
        if process is None or process.returncode is not None:
            return
        for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            if number == signal.SIGTERM:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(8):
                        await process.wait()
                        return
        await process.wait()


class Cast:
    """A server, some lmpoolds and some workers: everybody who can be hurt."""

    def __init__(self, folder: Path, *, lmpoolds: int, workers: int, worker_argv: tuple[str, ...]):
        self.folder = folder
        self.server = EmbeddedServer(folder / "s")
        self.outside = Link(folder / "outside.sock", self.server.socket)
        """The link of library clients."""
        self.children: dict[str, Child] = {}
        for number in range(lmpoolds):
            self._add(f"lmpoold {number}", ("lmpoold", "--model", MODEL))
        for number in range(workers):
            self._add(f"worker {number}", (*worker_argv, "--rank", str(number)))

    def _add(self, name: str, argv: tuple[str, ...]) -> None:
        file = name.replace(" ", "")
        link = Link(self.folder / f"{file}.sock", self.server.socket)
        self.children[name] = Child(name, argv, link, self.folder / f"{file}.log")

    @property
    def links(self) -> list[Link]:
        return [self.outside, *(child.link for child in self.children.values())]

    async def start(self) -> None:
        """Start everything; it is not waited for."""
        await self.server.start()
        for link in self.links:
            await link.start()
        for child in self.children.values():
            child.start()

    async def heal(self) -> None:
        """Undo every fault: nobody stopped, no link broken, everybody running."""
        if self.server.process is not None and self.server.process.poll() is None:
            self.server.process.send_signal(signal.SIGCONT)
        else:
            await self.server.start()
        for link in self.links:
            link.heal()
        for child in self.children.values():
            child.signal(signal.SIGCONT)
            child.allow()

    async def end(self) -> None:
        """End everything."""
        workers = [child for name, child in self.children.items() if name.startswith("worker")]
        others = [child for child in self.children.values() if child not in workers]
        await asyncio.gather(*(child.end() for child in workers))
        await asyncio.gather(*(child.end() for child in others))
        for link in self.links:
            await link.close()
        if self.server.process is not None and self.server.process.poll() is None:
            self.server.process.send_signal(signal.SIGCONT)
        self.server.stop()
