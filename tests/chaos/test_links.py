"""Processes and clients behind a link that breaks in each of the ways a network can."""

import asyncio
import random
import time
from pathlib import Path

import pytest
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as ServerSlow

from lmpoold.client import PoolClient
from lmpoold.protocol.keys import Keyspace
from lmpoold.shell.steady import is_lost
from lmpoold.store.connect import open_redis
from lmpoold.store.scripts import PoolStore
from lmpoold.store.streams import Inbox
from tests.chaos.proxy import Link, command_of
from tests.store.pool import begin

PROMPT = list(range(8))


@pytest.fixture
async def link(server_url, tmp_path):
    link = Link(tmp_path / "l.sock", Path(server_url.removeprefix("unix://")))
    await link.start()
    yield link
    await link.close()


@pytest.fixture
async def pool(redis):
    return await begin(PoolStore(redis, Keyspace()))


def test_a_command_is_told_from_what_is_none_and_from_a_part_of_one():
    whole = b"*4\r\n$5\r\nFCALL\r\n$4\r\nstep\r\n$1\r\n1\r\n$2\r\na\n\r\n"
    assert command_of(whole) == b"step"
    assert command_of(whole[:-3]) is None
    assert command_of(whole + whole) is None
    assert command_of(b"*1\r\n$4\r\nPING\r\n") is None
    assert command_of(b"+OK\r\n") is None


async def test_a_cut_link_refuses_until_it_is_healed(link, redis):
    client = open_redis(link.url)
    assert await client.ping()
    link.cut()
    with pytest.raises((RedisError, OSError)):
        await client.ping()
    link.heal()
    assert await client.ping()
    await client.aclose()


async def test_a_held_link_delivers_late_and_everything(link, redis):
    client = open_redis(link.url)
    await client.ping()
    link.hold()
    pinging = asyncio.create_task(client.ping())
    await asyncio.sleep(0.1)
    assert not pinging.done()
    link.heal()
    assert await pinging
    await client.aclose()


async def test_a_blocking_read_into_a_hole_ends_and_the_next_one_works(link, pool, lane_over):
    epoch = await pool.join(0)
    client = open_redis(link.url, blocking=True)
    inbox = Inbox(lane_over(client), pool.store.keys.worker(0), epoch, epoch)
    assert await inbox.read(1, 10) == []
    link.hole()
    began_s = time.monotonic()
    with pytest.raises((RedisError, OSError)) as error:
        await inbox.read(1, 1000)
    assert is_lost(error.value)
    assert time.monotonic() - began_s < 10
    await pool.ask("a", PROMPT)
    assert len(await inbox.read(1, 1000)) == 1
    await client.aclose()
    plain = open_redis(link.url, blocking=True)
    await plain.ping()
    link.hole()
    with pytest.raises(ServerSlow):
        await plain.blpop(["nothing"], timeout=1)
    await plain.aclose()


@pytest.mark.bar(7)
async def test_a_step_that_the_network_delivers_again_changes_nothing(link, pool):
    epoch = await pool.join(0)
    client = open_redis(link.url)
    worker = PoolStore(client, Keyspace())
    for beat in range(5):
        await worker.heartbeat(0, epoch, 1000 + beat)
    assert await link.replay(random.Random(0)) == 5
    assert await pool.store.redis.pttl(pool.store.keys.alive(0)) <= 1004
    await client.aclose()


async def test_the_library_submits_through_a_link_that_breaks_under_it(link, pool):
    async with PoolClient(link.url) as client:
        link.cut()
        submitting = asyncio.create_task(client.submit(tokens=PROMPT, request_id="a"))
        await asyncio.sleep(0.3)
        link.heal()
        assert await submitting == "a"
        assert await pool.store.redis.xlen(pool.store.keys.ingress) == 1


@pytest.mark.better(17)
async def test_a_submission_whose_reply_is_lost_is_taken_once_and_read(link, pool):
    async with PoolClient(link.url, patience_s=20) as client:
        await client.submit(tokens=PROMPT, request_id="warm")  # connections stand
        link.hole()  # the call arrives nowhere, its second try does
        await client.submit(tokens=PROMPT, request_id="a")
        assert await pool.store.redis.xlen(pool.store.keys.ingress) == 2
        # Taken and answered before the reply of the first try was missed:
        client._waiting["b"] = asyncio.Queue()
        await pool.store.submit("b", client._client, {"id": "b", "client": client._client})
        await pool.store.finish("b", "", client._client, "worker_failed", "it broke", "")
        tries = []

        async def submit(*args):
            tries.append(args)
            if len(tries) == 1:
                raise ConnectionResetError
            return await PoolStore.submit(client._store, *args)

        client._store.submit = submit
        assert await client.submit(tokens=PROMPT, request_id="b") == "b"


@pytest.mark.better(10)
async def test_patience_ends(link, pool):
    async with PoolClient(link.url, patience_s=0.3) as client:
        link.cut()
        with pytest.raises((RedisError, OSError)):
            await client.submit(tokens=PROMPT)
