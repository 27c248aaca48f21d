"""Several lmpoold at once: all route, one leads, and the next one leads soon after its death."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import pytest

from lmpoold.protocol.keys import Keyspace
from lmpoold.store.connect import open_redis
from lmpoold.store.scripts import PoolStore
from tests.e2e.ctl_program import lmpoolctl
from tests.e2e.forge import forge

pytestmark = pytest.mark.timeout(120)
KEYS = Keyspace()
TAKEOVER_S = 2.0
PROMPT_FIELDS = {"prompt": "Why?", "max_tokens": "2"}


@pytest.fixture
async def daemons(redis, server_url):
    """Two lmpoold on an empty server, both reading ingress: pid -> process."""
    argv = ("--model", "random:tiny-qwen3", "--redis-url", server_url)
    running = [forge().start("lmpoold", *argv, log=Path(os.devnull)) for _ in range(2)]
    try:
        async with asyncio.timeout(60):
            while len(await readers(redis)) < 2 or not await redis.get(KEYS.lead):
                await asyncio.sleep(0.05)
        yield {process.pid: process for process in running}
    finally:
        for process in running:
            process.kill()
            process.wait()


async def readers(redis):
    if not await redis.exists(KEYS.ingress):
        return []
    return await redis.xinfo_consumers(KEYS.ingress, "sched")


async def leader(redis) -> int:
    """The pid of the lmpoold that leads, 0 for none; its name says it."""
    name = await redis.get(KEYS.lead)
    return int(name.decode().split("-")[-2]) if name else 0


async def until_another_leads(redis, old: int) -> float:
    began_s = time.monotonic()
    async with asyncio.timeout(20):
        while await leader(redis) in (0, old):
            await asyncio.sleep(0.01)
    return time.monotonic() - began_s


@pytest.mark.better(3)
async def test_when_the_leader_is_killed_the_other_leads_within_two_seconds(daemons, redis):
    first = await leader(redis)
    assert first in daemons
    token = int(await redis.get(KEYS.fence))
    os.kill(first, signal.SIGKILL)
    assert await until_another_leads(redis, first) < TAKEOVER_S
    assert await leader(redis) in daemons
    assert int(await redis.get(KEYS.fence)) > token


async def test_a_leader_that_was_stopped_leads_no_more_when_it_goes_on(daemons, redis):
    first = await leader(redis)
    os.kill(first, signal.SIGSTOP)
    try:
        assert await until_another_leads(redis, first) < TAKEOVER_S
    finally:
        os.kill(first, signal.SIGCONT)
    second = await leader(redis)
    token = await redis.get(KEYS.fence)
    await asyncio.sleep(1.0)
    assert await leader(redis) == second
    assert await redis.get(KEYS.fence) == token


async def test_a_leader_goes_on_leading_under_one_token(daemons, redis):
    first, token = await leader(redis), await redis.get(KEYS.fence)
    for _ in range(30):
        await asyncio.sleep(0.1)
        assert await leader(redis) == first
    assert await redis.get(KEYS.fence) == token


async def test_the_new_leader_ends_what_the_old_one_would_have(daemons, redis, server_url):
    """A parked request's deadline passes right after the leader's death."""
    client = open_redis(server_url)
    try:
        os.kill(await leader(redis), signal.SIGKILL)
        await client.xadd(KEYS.ingress, {**PROMPT_FIELDS, "id": "late", "deadline_ms": "300"})
        async with asyncio.timeout(10):
            reply = await client.xread({KEYS.out("late"): "0-0"}, block=4000)
            while not reply:
                reply = await client.xread({KEYS.out("late"): "0-0"}, block=4000)
        assert reply[0][1][0][1][b"code"] == b"deadline_exceeded"
    finally:
        await client.aclose()


async def test_both_read_ingress_and_each_request_is_taken_once(daemons, redis):
    async with asyncio.timeout(30):
        for n in range(200):
            await redis.xadd(KEYS.ingress, {**PROMPT_FIELDS, "id": f"q{n}"})
        while await redis.zcard(KEYS.parked) < 200:
            await asyncio.sleep(0.05)
    assert await redis.xlen(KEYS.ingress) == 0
    assert [reader["pending"] for reader in await readers(redis)] == [0, 0]


async def test_status_says_who_leads_under_which_token_and_how_many_there_are(
    daemons, redis, server_url
):
    shown = await asyncio.to_thread(lmpoolctl, "status", "--json", LMPOOL_REDIS_URL=server_url)
    found = json.loads(shown.stdout)
    assert int(found["leader"].split("-")[-2]) == await leader(redis)
    assert found["token"] == (await redis.get(KEYS.fence)).decode()
    assert found["daemons"] == 2
    assert await PoolStore(redis, KEYS).cfg()
