"""Fixtures that more than one floor uses: a real server, an empty pool."""

import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from redis.asyncio import Redis

from lmpoold.protocol.keys import Keyspace
from lmpoold.store.connect import open_redis
from lmpoold.store.embedded import EmbeddedServer
from lmpoold.store.lane import Lane

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts what it sends to the background so, and processes hand it
    # on: a Ctrl-C that a test sends to one would not arrive.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True)
settings.register_profile("deep", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """A real server for the whole session; tests part by pool name or flush it."""
    import asyncio

    with tempfile.TemporaryDirectory(prefix="lmpool-", dir="/tmp") as folder:
        server = EmbeddedServer(Path(folder) / "s")
        asyncio.run(server.start())
        yield server.url
        server.stop()


@pytest.fixture
async def redis(server_url: str) -> AsyncIterator[object]:
    """A client of the real server, which is emptied first (functions too)."""
    client = open_redis(server_url)
    await client.flushall()
    await client.function_flush("SYNC")
    yield client
    await client.aclose()


@pytest.fixture
async def lane_over() -> AsyncIterator[Callable[[Redis], Lane]]:
    """Open a lane for blocking reads over a client; all are closed at the end."""
    lanes: list[Lane] = []

    def over(client: Redis) -> Lane:
        lanes.append(Lane(client, blocking=True))
        return lanes[-1]

    yield over
    for lane in lanes:
        await lane.close()


@pytest.fixture
def keys() -> Keyspace:
    """The default pool's keys."""
    return Keyspace()
