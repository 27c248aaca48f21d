"""A call to the server can be cancelled, at whatever turn of the loop that comes."""

import asyncio

import pytest

from lmpoold.store.connect import open_redis

TURNS = 12
"""More than a call takes on an open connection, or than opening one."""


@pytest.mark.parametrize("opened", [True, False], ids=["open", "opening"])
async def test_no_cancelling_is_lost(server_url, opened):
    lost = []
    for turns in range(TURNS):
        for _ in range(10):
            redis = open_redis(server_url)
            if opened:
                await redis.ping()
            calling = asyncio.create_task(redis.ping())
            for _ in range(turns):
                await asyncio.sleep(0)
            if not calling.done() and calling.cancel():
                await asyncio.wait({calling}, timeout=10)
                if not calling.cancelled():
                    lost.append(turns)
            assert await redis.ping(), "the next call has a connection of its own"
            await redis.aclose()
    assert not lost


async def test_a_loop_that_outlives_lost_connections_ends_when_it_is_cancelled(server_url):
    redis = open_redis(server_url)

    async def ping_for_ever() -> None:
        while True:
            await redis.ping()

    for turns in range(50):
        pinging = asyncio.create_task(ping_for_ever())
        for _ in range(turns):
            await asyncio.sleep(0)
        pinging.cancel()
        done, _ = await asyncio.wait({pinging}, timeout=10)
        assert done, f"cancelled after {turns} turns, it goes on"
    await redis.aclose()


async def test_a_time_limit_is_kept(server_url):
    redis = open_redis(server_url)

    async def ping_for_a_while() -> None:
        async with asyncio.timeout(0.005):
            while True:
                await redis.ping()

    for _ in range(20):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ping_for_a_while(), 10)
    await redis.aclose()
