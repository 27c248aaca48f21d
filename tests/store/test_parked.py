"""Who waits for room, in which order, and who is tried when there is some."""

import fakeredis
import pytest
from prometheus_client import CollectorRegistry

from lmpoold.core.admission import Limits
from lmpoold.daemon.metrics import RouterMetrics
from lmpoold.daemon.parked import BATCH, Parked
from lmpoold.daemon.reading import Reader
from lmpoold.store.connect import open_redis
from tests.store.pool import BLOCK

PROMPT = list(range(8))
YEAR_2100 = 4_102_444_800_000


@pytest.fixture
async def retrying(pool):
    """The retry loop of an lmpoold over the pool; it resumes requests and reads none."""
    reader = Reader(None, model="toy", fingerprint="f0", block_size=BLOCK, limits=Limits(64, 1000))
    blocking = pool.store.redis
    if not isinstance(blocking, fakeredis.FakeAsyncRedis):
        kwargs = blocking.connection_pool.connection_kwargs
        blocking = open_redis(f"unix://{kwargs['path']}", blocking=True)
    yield Parked(pool.store, blocking, reader, RouterMetrics(CollectorRegistry(), BLOCK))
    if blocking is not pool.store.redis:
        await blocking.aclose()


async def test_the_order_is_by_priority_then_by_deadline(pool):
    for name, priority, after_ms in (
        ("late", 0, 3000),
        ("soon", 0, 1000),
        ("low and soon", -1000, 0),
        ("high and late", 1000, 9000),
        ("high and soon", 1000, 8000),
        ("a bit", 1, 9000),
    ):
        await pool.ask(
            name.replace(" ", "-"), PROMPT, priority=priority, deadline_ms=YEAR_2100 + after_ms
        )
    assert await pool.parked_ids() == [
        "high-and-soon",
        "high-and-late",
        "a-bit",
        "soon",
        "late",
        "low-and-soon",
    ]


async def test_a_deadline_beyond_all_time_does_not_change_the_priority(pool):
    await pool.ask("never", PROMPT, deadline_ms=2**52)
    await pool.ask("low", PROMPT, priority=-1, deadline_ms=YEAR_2100)
    assert await pool.parked_ids() == ["never", "low"]


async def test_a_request_that_moves_keeps_its_place_by_priority(pool):
    await pool.join(0)
    await pool.ask("plain", PROMPT)
    await pool.ask("high", PROMPT, priority=7)
    await pool.lose(0)
    await pool.store.reap(10)
    assert await pool.parked_ids() == ["high", "plain"]


async def test_the_urgent_one_gets_the_room_there_is(pool, retrying):
    for name, priority in (("plain", 0), ("high", 5)):
        await pool.ask(name, PROMPT, priority=priority)
    await pool.join(0)
    await pool.report(0, free=3)
    await retrying._turn()
    assert [message.id for message in await pool.inbox(0)] == ["high"]
    assert await pool.parked_ids() == ["plain"]


@pytest.mark.better(5)
async def test_many_that_find_no_room_do_not_hide_one_that_would(pool, retrying):
    await pool.set(origin_hops=0)
    for rank in (0, 1):
        await pool.join(rank)
        await pool.report(rank, free=0)
    for number in range(3 * BATCH):
        await pool.ask(f"q{number}", PROMPT, origin=0, deadline_ms=YEAR_2100)
    await pool.ask("other", PROMPT, origin=1, deadline_ms=YEAR_2100 + 1)
    assert (await pool.parked_ids())[-1] == "other"
    await pool.report(1, free=32)
    for _ in range(4):
        await retrying._turn()
    assert [message.id for message in await pool.inbox(1)] == ["other"]
