"""Starts sides of a pair, tells them what to do, kills and stops them."""

import asyncio
import itertools
import json
import os
import signal
import sys
from dataclasses import dataclass
from typing import Any

OPEN_S = 20.0


@dataclass
class Reply:
    result: Any
    error: str
    why: str
    took_s: float


class SideProcess:
    def __init__(self, rank: int, process: asyncio.subprocess.Process) -> None:
        self.rank = rank
        self._process = process
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future] = {}
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, rank: int, **config) -> "SideProcess":
        config = json.dumps({"rank": rank, **config})
        return cls(
            rank,
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.transport.peer_program",
                config,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                limit=2**20,
            ),
        )

    async def _read(self) -> None:
        while line := await self._process.stdout.readline():
            reply = json.loads(line)
            self._asked.pop(reply["number"]).set_result(
                Reply(
                    reply.get("result"),
                    reply.get("error", ""),
                    reply.get("why", ""),
                    reply["took_s"],
                )
            )
        for future in self._asked.values():
            if not future.done():
                future.set_exception(ConnectionError(f"side {self.rank} is gone"))
                future.exception()

    def ask(self, verb: str, **arguments) -> "asyncio.Future[Reply]":
        number = next(self._numbers)
        self._asked[number] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(json.dumps([number, verb, arguments]).encode() + b"\n")
        return self._asked[number]

    async def do(self, verb: str, **arguments) -> Any:
        reply = await self.ask(verb, **arguments)
        assert not reply.error, f"{verb}: {reply.error}: {reply.why}"
        return reply.result

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def end(self) -> int:
        if self._process.returncode is None:
            self._process.stdin.close()
            try:
                async with asyncio.timeout(15):
                    await self._process.wait()
            except TimeoutError:
                self.kill()
        await self._process.wait()
        await self._reading
        return self._process.returncode


async def open_pair(one: SideProcess, two: SideProcess, epoch: str = "e1") -> list[Reply]:
    offers = [await side.do("offer") for side in (one, two)]
    return await asyncio.gather(
        one.ask("open", peer=two.rank, epoch=epoch, offer=offers[1], deadline_s=OPEN_S),
        two.ask("open", peer=one.rank, epoch=epoch, offer=offers[0], deadline_s=OPEN_S),
    )


def begin_move(src, dst, plan, src_blocks, dst_blocks, deadline_s=20.0):
    """Ask both for their half; returns both futures, the source's first."""
    move = [plan, src.rank, dst.rank, list(src_blocks), list(dst_blocks)]
    return (
        src.ask("send", move=move, deadline_s=deadline_s),
        dst.ask("receive", move=move, deadline_s=deadline_s),
    )


async def move(src, dst, plan, src_blocks, dst_blocks) -> None:
    """Move, and hold what arrived against what was sent."""
    for reply in await asyncio.gather(*begin_move(src, dst, plan, src_blocks, dst_blocks)):
        assert not reply.error, f"{reply.error}: {reply.why}"
        assert reply.result[1] > 0
    sent = await src.do("digest", blocks=list(src_blocks))
    got = await dst.do("digest", blocks=list(dst_blocks))
    assert got == sent
    assert len(set(sent)) == len(sent), "blocks of random content differ"
