"""Inbox: one consumer of one group."""

import pytest
from fakeredis import FakeAsyncRedis

from lmpoold.store.lane import Lane, Plain
from lmpoold.store.streams import Inbox

STREAM = "lmpool:{default}:in"


@pytest.fixture
async def lane(pool):
    """A connection for reads that block."""
    if isinstance(pool.store.redis, FakeAsyncRedis):
        yield Plain(pool.store.redis)
        return
    lane = Lane(pool.store.redis, blocking=True)
    yield lane
    await lane.close()


@pytest.fixture
def inbox(lane):
    """The first of two consumers of ingress."""
    return Inbox(lane, STREAM, "sched", "d0")


async def add(pool, *prompts: str) -> list[str]:
    return [(await pool.store.redis.xadd(STREAM, {"prompt": text})).decode() for text in prompts]


async def test_entries_come_in_order_with_their_fields(pool, inbox):
    sent = await add(pool, "x", "y")
    assert await inbox.read(10, 1) == [
        (sent[0], {b"prompt": b"x"}),
        (sent[1], {b"prompt": b"y"}),
    ]


async def test_no_more_than_asked_for_come_at_once_and_none_twice(pool, inbox):
    sent = await add(pool, "x", "y", "z")
    batches = [await inbox.read(2, 1) for _ in range(2)]
    assert [[entry for entry, _ in batch] for batch in batches] == [sent[:2], sent[2:]]


async def test_an_idle_stream_gives_nothing(inbox):
    assert await inbox.read(10, 1) == []
    assert await inbox.pending(10) == []
    assert await inbox.claim(10, 0) == []


async def test_what_was_read_is_pending_until_it_is_acknowledged(pool, inbox):
    sent = await add(pool, "x", "y")
    await inbox.read(10, 1)
    await pool.store.redis.xack(STREAM, "sched", sent[0])
    assert [entry for entry, _ in await inbox.pending(10)] == [sent[1]]


async def test_what_another_consumer_left_is_claimed(pool, inbox, lane):
    sent = await add(pool, "x")
    await Inbox(lane, STREAM, "sched", "gone").read(10, 1)
    assert await inbox.claim(10, 60_000) == []
    assert await inbox.claim(10, 0) == [(sent[0], {b"prompt": b"x"})]
    assert [entry for entry, _ in await inbox.pending(10)] == sent


async def test_a_pending_entry_that_was_deleted_has_no_fields(pool, inbox):
    (sent,) = await add(pool, "x")
    await inbox.read(10, 1)
    await pool.store.redis.xdel(STREAM, sent)
    assert await inbox.pending(10) == [(sent, {})]
