"""Pools of real processes for the tests of this folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from redis.asyncio import Redis

from benchmarks.processes import running_pool
from lmpoold.client import PoolClient
from lmpoold.protocol.keys import Keyspace
from lmpoold.protocol.messages import Output, read_outputs
from lmpoold.store.connect import open_redis
from lmpoold.store.scripts import PoolStore
from tests.e2e import forge
from tests.e2e.gateway_house import House, official, running_house

os.environ.setdefault("HF_HUB_OFFLINE", "1")
KEYS = Keyspace()


@dataclass
class Running:
    """A pool that runs, and what tests do to it."""

    url: str
    redis: Redis
    client: PoolClient
    store: PoolStore

    async def add(self, **fields: str | bytes) -> str:
        """XADD as any producer would; returns the entry id."""
        entry: Any = await self.redis.xadd(KEYS.ingress, fields)
        return str(entry.decode())

    async def answer(self, client: str, within_s: float = 30.0) -> list[Output]:
        """Read a client's stream up to the end of one request."""
        outputs: list[Output] = []
        last = b"0-0"
        async with asyncio.timeout(within_s):
            while not (outputs and outputs[-1].ends):
                reply: Any = await self.redis.xread({KEYS.out(client): last}, block=1000)
                for entry, values in reply[0][1] if reply else ():
                    last = entry
                    outputs += read_outputs(values)
        return outputs


Start = Callable[..., contextlib.AbstractAsyncContextManager[Running]]


@contextlib.asynccontextmanager
async def start_pool(
    model: str = "random:tiny-qwen3",
    workers: int = 1,
    options: tuple[str, ...] = (),
    daemon_options: tuple[str, ...] = (),
) -> AsyncIterator[Running]:
    """Run a server, one lmpoold and `workers` workers, all real, until the block ends."""
    argv = [
        ["workers", "--model", model, "--rank", str(rank), "--threads", "1", *options]
        for rank in range(workers)
    ]
    async with running_pool(
        model, argv, daemon_options=daemon_options, spawn=forge.spawn
    ) as processes:
        url = processes.url
        redis = open_redis(url, blocking=True)
        async with PoolClient(url) as client:
            yield Running(url, redis, client, PoolStore(redis, KEYS))
        await redis.aclose()


@pytest.fixture(scope="session", autouse=True)
def _forge() -> Iterator[None]:
    """End the process that starts workers with the tests that used it."""
    yield
    forge.put_out()


@pytest.fixture(scope="session")
def pool() -> Start:
    """Start a pool; use as `async with pool(...) as running`."""
    return start_pool


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house() -> AsyncIterator[House]:
    """A pool behind a gateway, for all tests of a module."""
    async with running_house() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(house: House) -> AsyncIterator[AsyncOpenAI]:
    """OpenAI's own client of that gateway."""
    async with official(house.url) as asking:
        yield asking
