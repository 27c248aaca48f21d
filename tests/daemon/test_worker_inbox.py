"""What a worker reads of its stream: everything once, whatever happens to its connection."""

import asyncio

import pytest
from redis.exceptions import ConnectionError as ServerLost
from redis.exceptions import ResponseError

from lmpoold.protocol.keys import Keyspace
from lmpoold.shell.steady import is_lost
from lmpoold.store.connect import open_redis
from lmpoold.store.scripts import PoolStore
from lmpoold.store.streams import Inbox
from tests.store.pool import begin
from workers.daemon.commands import Abort, Add
from workers.daemon.inbox import WorkerInbox

PROMPT = list(range(8))


@pytest.fixture
async def pool(redis):
    return await begin(PoolStore(redis, Keyspace()))


class Reader:
    """One epoch's inbox of rank 0, and what it told the engine."""

    def __init__(self, pool, epoch, lane):
        self.told = []
        self.stream = Inbox(lane, pool.store.keys.worker(0), epoch, epoch)
        self.inbox = WorkerInbox(pool.store, self.stream, self.told.append, rank=0, epoch=epoch)

    def added(self):
        return [command.dispatch.id for command in self.told if isinstance(command, Add)]


async def test_a_request_that_ended_before_a_lost_connection_is_not_taken_in_again(
    pool, redis, lane_over, monkeypatch
):
    epoch = await pool.join(0)
    reader = Reader(pool, epoch, lane_over(redis))
    await pool.ask("a", PROMPT)
    await reader.inbox.turn()
    read = Inbox.read

    async def broken(self, count, block_ms, done=()):
        raise ServerLost("gone")

    # The engine has ended "a"; its report is still on the way when the connection breaks.
    monkeypatch.setattr(Inbox, "read", broken)
    with pytest.raises(ServerLost):
        await reader.inbox.turn()
    monkeypatch.setattr(Inbox, "read", read)
    await pool.ask("b", PROMPT)
    await reader.inbox.turn()
    assert reader.added() == ["a", "b"]


async def test_an_entry_whose_delivery_was_lost_is_read_again(pool, redis, lane_over):
    epoch = await pool.join(0)
    reader = Reader(pool, epoch, lane_over(redis))
    await pool.ask("a", PROMPT)
    await pool.ask("b", PROMPT)
    await reader.stream.read(1, 100)  # the server has delivered "a"; nobody has received it
    await reader.inbox.turn()
    assert reader.added() == ["a", "b"]
    assert not [command for command in reader.told if isinstance(command, Abort)]


async def test_what_could_not_be_acknowledged_is_acknowledged_later(
    pool, redis, lane_over, monkeypatch
):
    epoch = await pool.join(0)
    reader = Reader(pool, epoch, lane_over(redis))
    await pool.ask("a", PROMPT)
    await pool.store.cancel("a")

    await reader.inbox.turn()
    lane = reader.stream._lane
    execute, refused = lane.execute, []

    async def broken(*words):
        if words[0] == "XACK":
            refused.append(words)
            raise ServerLost("gone")
        return await execute(*words)

    with monkeypatch.context() as patch:
        patch.setattr(lane, "execute", broken)
        with pytest.raises(ServerLost):
            await reader.inbox.turn()
    assert refused
    await pool.ask("b", PROMPT)
    await reader.inbox.turn()
    assert [message.id for message in await pool.inbox(0)] == ["a", "b"]
    pending = await redis.xpending(pool.store.keys.worker(0), epoch)
    assert pending["pending"] == 2


async def test_what_is_dealt_with_goes_before_the_next_entry_is_waited_for(pool, redis, lane_over):
    """Nothing that was read stays behind a read that blocks."""
    epoch = await pool.join(0)
    reader = Reader(pool, epoch, lane_over(redis))
    await pool.ask("a", PROMPT)
    await pool.store.cancel("a")
    await reader.inbox.turn()
    waiting = asyncio.create_task(reader.inbox.turn())
    stream = pool.store.keys.worker(0)
    async with asyncio.timeout(0.5):  # the read itself waits for a second
        while await redis.xlen(stream) != 1:
            await asyncio.sleep(0.01)
    assert not waiting.done()
    await pool.ask("b", PROMPT)
    await waiting
    assert reader.added() == ["a", "b"]


async def test_the_next_owner_of_a_rank_gets_what_a_zombie_of_the_last_one_waits_for(
    pool, redis, lane_over, server_url
):
    old = await pool.join(0)
    zombie = open_redis(server_url, blocking=True)
    late = Inbox(lane_over(zombie), pool.store.keys.worker(0), old, old)
    waiting = asyncio.create_task(late.read(10, 5000))
    await asyncio.sleep(0.1)
    epoch = await pool.join(0, held=old)
    await pool.ask("a", PROMPT)
    reader = Reader(pool, epoch, lane_over(redis))
    await reader.inbox.turn()
    assert reader.added() == ["a"]
    with pytest.raises(ResponseError) as error:
        await waiting
    assert is_lost(error.value)
    with pytest.raises(ResponseError, match="NOGROUP"):
        await late.read(10, 10)
    await zombie.aclose()
