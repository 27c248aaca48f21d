"""The heartbeat goes on while the rest of its process computes and answers nobody."""

import asyncio
import time

import pytest

from lmpoold.protocol.keys import Keyspace
from lmpoold.store.scripts import PoolStore
from tests.store.pool import LONG_MS, begin
from workers.daemon import heartbeat
from workers.daemon.heartbeat import Heartbeat


@pytest.fixture
async def pool(redis, monkeypatch):
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.05)
    pool = await begin(PoolStore(redis, Keyspace()))
    await pool.join(0)
    return pool


def start_heart(pool, url, *, stuck_ms=lambda: 0, on_weight=lambda _: None, on_fenced=lambda: None):
    """The heartbeat of rank 0, whose worker has reported nothing yet."""
    beat = Heartbeat(
        url,
        pool.store.keys,
        0,
        pool.epochs[0],
        version=lambda: 0,
        stuck_ms=stuck_ms,
        on_weight=on_weight,
        on_fenced=on_fenced,
    )
    beat.start()
    return beat


@pytest.mark.better(8)
async def test_a_heart_beats_while_a_step_holds_up_everything_else(pool, server_url):
    beats: list[float] = []

    def stuck_ms() -> int:  # asked at each beat, on its thread
        beats.append(time.monotonic())
        return 0

    beat = start_heart(pool, server_url, stuck_ms=stuck_ms)
    began_s = time.monotonic()
    while time.monotonic() < began_s + 1.0:  # as a compile does: pure Python, no await
        sum(range(1000))
    ended_s = time.monotonic()
    beat.stop()
    assert sum(began_s < at < ended_s for at in beats) >= 3
    left_ms = await pool.store.redis.pttl(pool.store.keys.alive(0))
    assert 0 < left_ms <= heartbeat.TTL_MS < LONG_MS, "its claim is the one that it renews"


@pytest.mark.better(8)
async def test_a_heart_that_beats_for_an_engine_that_hangs_keeps_nothing(pool, server_url):
    await pool.set(engine_stall_ms=1000)
    loop, fenced = asyncio.get_running_loop(), asyncio.Event()
    beat = start_heart(
        pool,
        server_url,
        stuck_ms=lambda: 1000,
        on_fenced=lambda: loop.call_soon_threadsafe(fenced.set),
    )
    async with asyncio.timeout(10):
        await fenced.wait()
    beat.stop()


async def test_a_changed_weight_reaches_the_workers_that_serve(pool, server_url):
    loop, weights = asyncio.get_running_loop(), asyncio.Queue()
    beat = start_heart(
        pool,
        server_url,
        on_weight=lambda weight: loop.call_soon_threadsafe(weights.put_nowait, weight),
    )
    async with asyncio.timeout(10):
        assert await weights.get() == 8.0
        await pool.store.tune({"w_decode": "0.1"})
        while await weights.get() != 0.1:
            pass
    beat.stop()
