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


async def test_a_task_that_was_cancelled_while_it_ran_calls_nobody_any_more(server_url):
    """As a signal does, which finds the task that it is to end at work."""
    redis = open_redis(server_url)
    await redis.ping()

    async def call_once_cancelled() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await redis.ping()

    calling = asyncio.create_task(call_once_cancelled())
    await asyncio.wait({calling}, timeout=10)
    assert calling.cancelled()
    await redis.aclose()


async def test_a_cancelled_task_may_still_clean_up(server_url):
    redis = open_redis(server_url)
    answers = []

    async def call_and_clean_up() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            answers.append(await redis.ping())

    calling = asyncio.create_task(call_and_clean_up())
    await asyncio.sleep(0.01)
    calling.cancel()
    await asyncio.wait({calling}, timeout=10)
    assert calling.cancelled()
    assert answers == [True]
    await redis.aclose()


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
