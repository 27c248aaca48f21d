"""Two sides of the transfer benchmark and what is asked of both at once."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from typing import Any

MODULE = "benchmarks.micro.transfer_side"


class SideFailed(Exception):
    """A side answered with an error, or is gone."""


@dataclass
class SideProcess:
    """One side."""

    rank: int
    process: asyncio.subprocess.Process
    asked: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    reading: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, rank: int) -> SideProcess:
        """Start rank `rank` on the GPU of that ordinal."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            MODULE,
            str(rank),
            f"cuda:{rank}",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=dict(os.environ),
            limit=2**22,
        )
        side = cls(rank, process)
        side.reading = asyncio.create_task(side._read())
        return side

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            try:
                reply = json.loads(line)
                future = self.asked.pop(reply["number"])
            except (ValueError, KeyError, TypeError):
                print(f"  side {self.rank}: {line.decode(errors='replace').rstrip()}", flush=True)
                continue
            if "error" in reply:
                future.set_exception(SideFailed(f"side {self.rank}: {reply['error']}"))
                future.exception()
            else:
                future.set_result(reply["result"])
        for future in self.asked.values():
            if not future.done():
                future.set_exception(SideFailed(f"side {self.rank} is gone"))
                future.exception()

    def ask(self, verb: str, **arguments: Any) -> asyncio.Future[Any]:
        """Give a command; the future is its result."""
        number = next(self.numbers)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.asked[number] = future
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([number, verb, arguments]).encode() + b"\n")
        return future

    def kill(self) -> None:
        """SIGKILL it."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)


@dataclass
class SidePair:
    """Both sides; rank 0 sends."""

    source: SideProcess
    target: SideProcess

    @classmethod
    async def start(cls) -> SidePair:
        """Start both."""
        return cls(*[await SideProcess.start(rank) for rank in (0, 1)])

    async def both(self, verb: str, **arguments: Any) -> list[Any]:
        """Give both the same command."""
        return await asyncio.gather(
            *(side.ask(verb, **arguments) for side in (self.source, self.target))
        )

    async def connect(self, way: str, epoch: str = "e1") -> float:
        """Give both a transport and make the pair; returns the slower side's seconds."""
        offers = await self.both("transport_of", way=way)
        return await self.open(offers, epoch)

    async def open(self, offers: list[str], epoch: str) -> float:
        """Make the pair."""
        return max(
            await asyncio.gather(
                self.source.ask("open", offer=offers[1], epoch=epoch),
                self.target.ask("open", offer=offers[0], epoch=epoch),
            )
        )

    async def halves(self, verb: str, **arguments: Any) -> list[Any]:
        """Have each side do its half: the source out, the target in."""
        return await asyncio.gather(
            self.source.ask(verb, out=True, **arguments),
            self.target.ask(verb, out=False, **arguments),
        )

    async def end(self) -> None:
        """End both: kindly first."""
        for side in (self.source, self.target):
            assert side.process.stdin is not None
            side.process.stdin.close()
        for side in (self.source, self.target):
            try:
                async with asyncio.timeout(5):
                    await side.process.wait()
            except TimeoutError:
                side.kill()
                await side.process.wait()
