"""The leader's links, on both servers: guessed, calibrated, learnt, taken back."""

import pytest

from lmpoold.daemon import links
from lmpoold.daemon.links import LinkKeeper
from lmpoold.protocol.profile import Curve, Profile
from lmpoold.store.plans import PlanStore
from tests.store.pool import IDENTITY

PAIR = "0>1"


@pytest.fixture
async def keeper(pool, monkeypatch):
    monkeypatch.setattr(links, "EVERY_S", 0.0)
    for rank in (0, 1):
        await pool.join(rank)
        await say(pool, rank, way="gloo")
    return LinkKeeper(PlanStore(pool.store))


async def say(pool, rank, **facts):
    await pool.store.redis.hset(pool.store.keys.rank_facts(rank), mapping=facts)


async def line(pool, pair=PAIR):
    raw = await pool.store.redis.hget(pool.store.keys.links, pair)
    return None if raw is None else [int(word) for word in raw.split()]


async def calibrated(pool, block_bytes):
    curve = Curve(((block_bytes, 1000.0), (32 * block_bytes, 32_000.0)))
    profile = Profile(block_bytes=block_bytes, curves={(0, 1): curve}, residuals={(0, 1): {1: 7.0}})
    await pool.store.redis.set(pool.store.keys.profile, profile.encode())


async def test_ranks_that_can_move_blocks_are_linked_both_ways(pool, keeper):
    await keeper.turn("t")
    assert await line(pool) == await line(pool, "1>0")
    assert (await line(pool))[0] > 0
    await pool.lose(1)
    await keeper.turn("t")
    assert await line(pool) is None


async def test_a_rank_that_drains_for_a_while_keeps_its_links(pool, keeper):
    await keeper.turn("t")
    await pool.store.drain(1, draining=True)
    await keeper.turn("t")
    assert await line(pool) is not None
    await pool.store.drain(1, draining=False)
    assert await line(pool) is not None


async def test_a_rank_without_a_way_is_not_linked(pool, keeper):
    await pool.join(2)
    await keeper.turn("t")
    assert await line(pool) is not None
    assert await line(pool, "0>2") is None


@pytest.mark.better(13)
async def test_links_follow_from_what_workers_say_of_their_gpus(pool, keeper, caplog):
    for rank, near in enumerate(["B", "A", "D", "C"]):
        await pool.join(rank, held=pool.epochs.get(rank, ""))
        place = {"device": "cuda:0", "way": "auto", "gpu": "ABCD"[rank], "near": near}
        await say(pool, rank, **place)
    await keeper.turn("t")
    plans = PlanStore(pool.store)
    assert await plans.linked() == [(0, 1), (1, 0), (2, 3), (3, 2)]
    refused = await plans.not_linked()
    assert set(refused) == {(0, 2), (0, 3), (1, 2), (1, 3)}
    assert "GPUs A and C have no direct link" in refused[0, 2]
    await pool.set(pairs="0-2")
    await keeper.turn("t")
    assert await plans.linked() == [(0, 2), (2, 0)]
    assert "leave them out" in (await plans.not_linked())[0, 1]


async def test_two_hosts_are_not_linked_and_the_reason_goes_when_they_are(pool, keeper):
    plans = PlanStore(pool.store)
    await say(pool, 1, host="there")
    await keeper.turn("t")
    assert await plans.linked() == []
    assert "on hosts here and there" in (await plans.not_linked())[0, 1]
    await say(pool, 1, host="here")
    await keeper.turn("t")
    assert await plans.linked() == [(0, 1), (1, 0)]
    assert await plans.not_linked() == {}


async def test_a_calibrated_link_costs_what_was_measured(pool, keeper):
    await calibrated(pool, IDENTITY.kv_block_bytes)
    await keeper.turn("t")
    assert await line(pool) == pytest.approx([7, 1200], abs=1), "1.2 for interference"
    assert await line(pool, "1>0") != await line(pool)


async def test_a_profile_of_other_blocks_is_not_used(pool, keeper, caplog):
    await keeper.turn("t")
    guessed = await line(pool)
    await calibrated(pool, 2 * IDENTITY.kv_block_bytes)
    await keeper.turn("t")
    assert await line(pool) == guessed
    assert "lmpoolctl calibrate" in caplog.text


async def test_what_plans_took_moves_the_line_and_the_next_leader_knows_it_too(pool, keeper):
    await keeper.turn("t")
    before = await line(pool)
    for _ in range(20):
        row = {"outcome": "finalize", "src": 0, "dst": 1, "blocks": 1, "publish_us": 90_000}
        await pool.store.redis.xadd(pool.store.keys.plan_log, row)
    await keeper.turn("t")
    after = await line(pool)
    assert sum(after) > 2 * sum(before)
    another = LinkKeeper(PlanStore(pool.store))
    await another.turn("t")
    assert await line(pool) == pytest.approx(after, rel=0.01)


async def test_a_plan_for_which_the_two_had_to_connect_teaches_nothing(pool, keeper):
    await keeper.turn("t")
    before = await line(pool)
    row = {"outcome": "finalize", "src": 0, "dst": 1, "blocks": 1, "publish_us": 300_000}
    await pool.store.redis.xadd(pool.store.keys.plan_log, {**row, "opened": 1})
    await keeper.turn("t")
    assert await line(pool) == before


async def test_an_aborted_plan_teaches_nothing(pool, keeper):
    await keeper.turn("t")
    before = await line(pool)
    row = {"outcome": "aborted", "src": 0, "dst": 1, "blocks": 1, "publish_us": 90_000}
    await pool.store.redis.xadd(pool.store.keys.plan_log, row)
    await keeper.turn("t")
    assert await line(pool) == before
