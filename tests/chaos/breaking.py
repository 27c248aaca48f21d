"""Faults carried out: what `schedule` planned, done to a `Cast`."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass

from redis.asyncio import Redis
from redis.exceptions import RedisError

from lmpoold.protocol.keys import Keyspace
from tests.chaos import hang
from tests.chaos.processes import Cast, Child
from tests.chaos.schedule import LINKS, SERVER_AWAY, Fault

KEYS = Keyspace()
SLOW_S = (0.005, 0.05)


@dataclass(frozen=True, slots=True)
class Done:
    """A fault that was carried out; times by `time.monotonic`."""

    fault: Fault
    began_s: float
    cured_s: float


class Breaker:
    """Carries faults out, several at once if their times overlap.

    Attributes:
        done: what was carried out, in order of cure.
        messages: replayed and forged messages, by kind.
    """

    def __init__(self, cast: Cast, redis: Redis) -> None:
        """Break `cast`; `redis` is a way around its links."""
        self._cast = cast
        self._redis = redis
        self._server = asyncio.Lock()
        self.done: list[Done] = []
        self.messages: Counter[str] = Counter()

    async def run(self, faults: list[Fault], began_s: float) -> None:
        """Carry out a schedule that starts at `began_s`; returns when everything is cured."""
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await asyncio.sleep(max(0.0, began_s + fault.at_s - time.monotonic()))
                group.create_task(self._one(fault), name=f"{fault.kind} {fault.victim}")

    async def _one(self, fault: Fault) -> None:
        began_s = time.monotonic()
        child = self._cast.children.get(fault.victim)
        if fault.victim == "server":
            async with self._server:
                began_s = time.monotonic()
                await self._break_server(fault)
        elif fault.kind in LINKS:
            await self._break_link(fault)
        else:
            assert child is not None
            await self._break_child(fault, child)
        self.done.append(Done(fault, began_s, time.monotonic()))

    async def _break_server(self, fault: Fault) -> None:
        cast = self._cast
        match fault.kind:
            case "kill server":
                cast.server.kill()
                await asyncio.sleep(fault.for_s)
                await cast.server.start()
            case "stop server":
                assert cast.server.process is not None
                cast.server.process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(fault.for_s)
                cast.server.process.send_signal(signal.SIGCONT)
            case "function flush":
                await self._redis.function_flush("SYNC")
            case "script flush":
                await self._redis.script_flush()
            case kind:
                assert kind == SERVER_AWAY, kind
                for link in cast.links:
                    link.cut()
                await asyncio.sleep(fault.for_s)
                for link in cast.links:
                    link.heal()

    async def _break_link(self, fault: Fault) -> None:
        link = self._cast.children[fault.victim].link
        match fault.kind:
            case "cut":
                link.cut()
            case "hold":
                link.hold()
            case "hole":
                link.hole()
                return
            case "slow":
                link.slow(random.Random(fault.draw).uniform(*SLOW_S))
        await asyncio.sleep(fault.for_s)
        link.heal()

    async def _break_child(self, fault: Fault, child: Child) -> None:
        match fault.kind.partition(" ")[0]:
            case "kill":
                child.kill()
                await asyncio.sleep(fault.for_s)
                child.allow()
            case "stop":
                child.signal(signal.SIGSTOP)
                await asyncio.sleep(fault.for_s)
                child.signal(signal.SIGCONT)
            case "hang":
                if child.pid is not None and hang.listens(child.pid):
                    child.signal(hang.HANG)
                    await asyncio.sleep(fault.for_s)
                    # Somebody else may have killed it meanwhile, and the next one not listen yet.
                    if child.pid is not None and hang.listens(child.pid):
                        child.signal(hang.GO_ON)
            case "roll":
                child.signal(signal.SIGTERM)
            case "replay":
                count = await child.link.replay(random.Random(fault.draw))
                self.messages["replayed"] += count
            case "forge":
                with contextlib.suppress(RedisError, OSError):
                    await self._forge(int(fault.victim.split()[1]))

    async def _forge(self, rank: int) -> None:
        """Send reports in a worker's name that are duplicates, come too early or are long dead."""
        row = await self._redis.hget(KEYS.load, str(rank))
        if row is None:
            return
        *_, version, epoch = row.decode().split()
        wrong = "1 1 999 999 99"
        page = ["0" * 32, "0:1:0:-"]
        for base, new, owner in (
            (int(version) - 1, int(version), epoch),
            (int(version) - 2, int(version) - 1, epoch),
            (int(version) + 7, int(version) + 8, epoch),
            (int(version), int(version) + 1, str(int(epoch) - 1)),
        ):
            words = ("delta", 1, KEYS.load, rank, owner, base, new, wrong, 0, 1, *page)
            with contextlib.suppress(RedisError):
                await self._redis.execute_command("FCALL", *words)
            self.messages["forged"] += 1
