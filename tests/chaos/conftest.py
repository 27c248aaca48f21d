"""A small pool of real processes on paper workers, each behind a link: one named fault a test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from redis.asyncio import Redis

from lmpoold.client import Answer, PoolClient
from lmpoold.protocol.keys import Keyspace
from lmpoold.store.connect import open_redis
from lmpoold.store.scripts import PoolStore
from tests.chaos.leftovers import judge_idle
from tests.chaos.picture import take_picture
from tests.chaos.processes import Cast

PAPER = ("tests.chaos.paper_worker", "--step-ms", "10")


@dataclass
class Scene:
    """A pool that runs, ways around its links, and what to ask it."""

    cast: Cast
    redis: Redis
    store: PoolStore
    client: PoolClient

    async def ask(self, number: int, max_tokens: int = 60) -> Answer:
        """Ask one of many prompts that share their first two blocks."""
        tokens = [7] * 32 + [1 + number % 150] * 20
        return await self.client.generate(tokens=tokens, max_tokens=max_tokens, ignore_eos=True)

    async def ask_all(self, count: int, max_tokens: int = 60) -> list[tuple[int, ...]]:
        """Ask `count` prompts at once; returns their tokens."""
        asking = (self.ask(number, max_tokens) for number in range(count))
        async with asyncio.timeout(60):
            return [answer.tokens for answer in await asyncio.gather(*asking)]

    async def until_up(self, ranks: set[int], within_s: float = 30.0) -> None:
        async with asyncio.timeout(within_s):
            while {row.rank for row in await self.store.ranks() if row.state == "up"} != ranks:
                await asyncio.sleep(0.05)

    async def until_down(self, rank: int) -> None:
        async with asyncio.timeout(20):
            while not any(r.rank == rank and r.state == "down" for r in await self.store.ranks()):
                await asyncio.sleep(0.05)

    async def until_running(self, least: int = 1) -> None:
        async with asyncio.timeout(20):
            while sum(row.sequences for row in await self.store.ranks()) < least:
                await asyncio.sleep(0.01)

    async def leftovers(self, ranks: int) -> list[str]:
        """Return what is wrong with the idle pool; looks for a while."""
        for _ in range(20):
            try:
                picture = await take_picture(self.redis, range(ranks))
            except TimeoutError:
                wrong = ["a worker did not send its pages"]  # it joined anew meanwhile
                continue
            wrong = judge_idle(picture, ranks=ranks, most_consumers=99)
            if not wrong:
                break
            await asyncio.sleep(0.25)
        return wrong


@contextlib.asynccontextmanager
async def running_scene(folder, *, lmpoolds: int = 1, workers: int = 2) -> AsyncIterator[Scene]:
    cast = Cast(folder, lmpoolds=lmpoolds, workers=workers, worker_argv=PAPER)
    redis = open_redis(cast.server.url)
    try:
        await cast.start()
        async with PoolClient(cast.outside.url) as client:
            scene = Scene(cast, redis, PoolStore(redis, Keyspace()), client)
            await scene.until_up(set(range(workers)))
            yield scene
    finally:
        await redis.aclose()
        await cast.end()


@pytest.fixture
def scene(tmp_path_factory):
    """Start a pool; use as `async with scene(...) as pool`."""

    def start(**options: int):
        return running_scene(tmp_path_factory.mktemp("c"), **options)

    return start
