"""A pool with gateways in front of it, all real processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from redis.asyncio import Redis

from benchmarks.processes import Processes, running_pool
from lmpoold.client import PoolClient
from lmpoold.protocol.keys import Keyspace
from lmpoold.store.connect import open_redis
from lmpoold.store.scripts import PoolStore
from tests.e2e.forge import spawn

KEYS = Keyspace()
MODEL = "random:tiny-qwen3"
TURN = [{"role": "user", "content": "Once upon a time"}]


@dataclass
class House:
    """A pool with gateways in front of it."""

    processes: Processes
    redis: Redis
    store: PoolStore
    direct: PoolClient
    url: str

    async def gateway(self, name: str, *options: str) -> str:
        """Start a gateway on a free port; returns its URL once it listens."""
        self.processes.start(name, "lmpoold.gateway", "--port", "0", *options)
        log = self.processes.folder / f"{name}.log"
        return await listening(log)

    async def idle(self) -> None:
        """Wait until the rank's load row is zero."""
        async with asyncio.timeout(10):
            while (row := (await self.store.ranks())[0]).sequences or row.reserved:
                await asyncio.sleep(0.05)
        assert row.free + row.reclaimable == row.blocks
        assert row.wait_tokens == row.run_tokens == row.reserved_tokens == 0

    async def state(self, name: str) -> str:
        """Return the state in a request's record."""
        state = await self.redis.hget(KEYS.request(name), "state")
        return state.decode() if state else ""

    async def ends_cancelled(self, name: str) -> None:
        """Wait until a request's record says cancelled and its rank is idle."""
        async with asyncio.timeout(10):
            while await self.state(name) != "cancelled":
                await asyncio.sleep(0.05)
        await self.idle()


async def listening(log: Path, said: str = "ready") -> str:
    """Wait until a program has logged `said` with a port; returns the URL."""
    async with asyncio.timeout(90):
        while True:
            for line in log.read_text().splitlines():
                row = json.loads(line) if line.startswith("{") else {}
                if row.get("msg") == said:
                    return f"http://127.0.0.1:{row['port']}"
            await asyncio.sleep(0.05)


def official(url: str, **options: Any) -> AsyncOpenAI:
    return AsyncOpenAI(**{"base_url": f"{url}/v1", "api_key": "any", "max_retries": 0, **options})


@contextlib.asynccontextmanager
async def running_house() -> AsyncIterator[House]:
    """Run a pool of one worker and a gateway, until the block ends."""
    shown = ("--metrics-port", "0", "--log-requests")
    argv = ["workers", "--model", MODEL, "--threads", "1", *shown]
    async with running_pool(MODEL, [argv], daemon_options=shown, spawn=spawn) as processes:
        redis = open_redis(processes.url)
        async with PoolClient(processes.url) as direct:
            house = House(processes, redis, PoolStore(redis, KEYS), direct, "")
            house.url = await house.gateway("gateway", "--model-name", "tiny")
            yield house
        await redis.aclose()
