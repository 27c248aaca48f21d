"""Full snapshots take turns: a few at a time, and one that dies gives way."""

import asyncio

import pytest

from lmpoold.protocol.errors import RankUnknown, Stale
from lmpoold.protocol.views import Counts
from lmpoold.store import staging
from tests.store.pool import pages_of

COUNTS = Counts(8, 0, 0, 0, 0)
LONG = [7] * (4 * 2 * staging.FIRST_PAGES)
"""A prompt whose pages are more than a chunk."""


async def ask(pool, rank):
    """What the server says to a rank that wants to send a snapshot."""
    return (await pool.store.call("stage", rank, pool.epochs[rank])).decode()


def calls_of(pool, monkeypatch):
    """The names of the functions that are called from now on, as they are called."""
    asked = []
    call = pool.store.call

    async def noting(function, *args):
        asked.append(function)
        return await call(function, *args)

    monkeypatch.setattr(pool.store, "call", noting)
    return asked


async def join(pool, *ranks):
    for rank in ranks:
        await pool.join(rank)


async def kept_waiting(pool):
    """Rank 0's snapshot under way, while the only turn is rank 1's."""
    await pool.set(snapshots_at_once=1)
    await join(pool, 0, 1)
    assert await ask(pool, 1) == "GO"
    return asyncio.create_task(pool.store.swap(0, pool.epochs[0], 1, COUNTS, pages_of(LONG)))


async def test_as_many_as_may_go_and_others_wait(pool):
    await pool.set(snapshots_at_once=2)
    await join(pool, 0, 1, 2)
    assert [await ask(pool, rank) for rank in (0, 1, 2, 0, 1, 2)] == [
        "GO",
        "GO",
        "WAIT",
        "GO",
        "GO",
        "WAIT",
    ]


async def test_a_swap_gives_the_turn_on(pool):
    await pool.set(snapshots_at_once=1)
    await join(pool, 0, 1)
    assert await ask(pool, 0) == "GO"
    assert await ask(pool, 1) == "WAIT"
    await pool.store.swap(0, pool.epochs[0], 1, COUNTS, pages_of(LONG))
    assert await ask(pool, 1) == "GO"


async def test_nothing_of_it_stays_when_all_have_swapped(pool):
    await join(pool, 0, 1)
    for rank in (0, 1):
        await pool.store.swap(rank, pool.epochs[rank], 1, COUNTS, pages_of(LONG))
    assert not await pool.store.redis.exists(pool.store.keys.staging)


async def test_a_swap_that_was_applied_before_gives_the_turn_on_too(pool):
    await pool.set(snapshots_at_once=1)
    await join(pool, 0, 1)
    for _ in range(2):
        await pool.store.swap(0, pool.epochs[0], 1, COUNTS, pages_of(LONG))
    assert await ask(pool, 1) == "GO"


async def test_one_that_dies_at_it_gives_way(pool):
    await pool.set(snapshots_at_once=1)
    await join(pool, 0, 1)
    assert await ask(pool, 0) == "GO"
    left_ms = await pool.store.redis.pttl(pool.store.keys.staging)
    assert 0 < left_ms <= 2000
    # Its time is over: what the server reads of it then.
    await pool.store.redis.zadd(pool.store.keys.staging, {"0": 1})
    assert await ask(pool, 1) == "GO"


async def test_its_successor_goes_on_with_the_turn(pool):
    await pool.set(snapshots_at_once=1)
    await join(pool, 0, 1)
    assert await ask(pool, 0) == "GO"
    await pool.lose(0)
    await pool.join(0)
    assert await ask(pool, 0) == "GO"


async def test_a_fenced_rank_gets_no_turn(pool):
    await pool.join(0)
    old = pool.epochs[0]
    await pool.lose(0)
    await pool.join(0)
    with pytest.raises(Stale):
        await pool.store.call("stage", 0, old)
    with pytest.raises(RankUnknown):
        await pool.store.call("stage", 7, "1")
    assert not await pool.store.redis.exists(pool.store.keys.staging)


async def test_a_snapshot_waits_for_its_turn_and_then_is_whole(pool):
    sending = await kept_waiting(pool)
    await asyncio.sleep(0.2)
    assert not sending.done()
    assert await pool.store.redis.hlen(pool.store.keys.pages(0)) == 1  # the format only
    await pool.store.swap(1, pool.epochs[1], 1, COUNTS, {})
    await asyncio.wait_for(sending, 5)
    assert (await pool.row(0)).pages == 2 * staging.FIRST_PAGES


async def test_a_snapshot_of_one_chunk_waits_for_nobody(pool, monkeypatch):
    await pool.set(snapshots_at_once=1)
    await join(pool, 0, 1)
    assert await ask(pool, 1) == "GO"
    few, asked = pages_of(LONG[: 4 * staging.FIRST_PAGES]), calls_of(pool, monkeypatch)
    await asyncio.wait_for(pool.store.swap(0, pool.epochs[0], 1, COUNTS, few), 5)
    assert asked == ["swap"]
    assert (await pool.row(0)).pages == staging.FIRST_PAGES


async def test_a_rank_that_loses_its_epoch_while_it_waits_hears_of_it(pool):
    sending = await kept_waiting(pool)
    await asyncio.sleep(0.1)
    await pool.lose(0)
    await pool.join(0)
    with pytest.raises(Stale):
        await asyncio.wait_for(sending, 5)


async def test_a_long_snapshot_asks_again_while_it_is_sent(pool, monkeypatch):
    await pool.set(snapshots_at_once=1)
    await pool.join(0)
    monkeypatch.setattr(staging, "RENEW_S", 0.0)
    asked = calls_of(pool, monkeypatch)
    await pool.store.swap(0, pool.epochs[0], 1, COUNTS, pages_of([3] * 4 * 1000))
    assert asked.count("stage") > 2
    assert asked[-1] == "swap"
