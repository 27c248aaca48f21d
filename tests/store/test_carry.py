"""A prefix that can be brought along: its owner's queue need not be longer than computing it."""

import pytest

from lmpoold.protocol.messages import Dispatch
from lmpoold.protocol.views import parse_words
from lmpoold.store.plans import PlanStore
from tests.store.pool import BLOCK, names, pages_of

PROMPT = list(range(12 * BLOCK))
CHAIN = names(PROMPT)
OWNER, OTHER, THIRD = 0, 1, 2
US = 100
"""Of computing a token."""
QUEUE = 30
"""Of the owner, in tokens: less than computing the prompt, more than moving it."""


@pytest.fixture
async def pool(pool):
    """Rank 0 has the whole prompt and a queue, rank 1 nothing of either; a good link between."""
    await pool.set(bypass_slack=4, fetch_slack=4, w_flight=0)
    for rank in (OWNER, OTHER):
        await pool.join(rank)
        await pool.store.redis.hset(pool.store.keys.rank_facts(rank), "prefill_us", US)
    await pool.report(OWNER, puts=pages_of(PROMPT), wait=QUEUE)
    await pool.report(OTHER)
    await link(pool, OWNER, OTHER, fixed_us=100, block_us=50)
    return pool


async def link(pool, source, destination, *, fixed_us, block_us):
    key = pool.store.keys.links
    await pool.store.redis.hset(key, f"{source}>{destination}", f"{fixed_us} {block_us}")


async def reason(pool, request_id):
    return (await pool.record(request_id))["reason"]


async def candidate(pool, request_id, rank):
    """What `explain` says of a candidate."""
    lines = await pool.store.explain(request_id)
    rows = [parse_words(line) for line in lines if "verdict=" in line]
    return next(row for row in rows if row["candidate"] == str(rank))


async def plans(pool):
    return await PlanStore(pool.store).live()


async def test_a_short_queue_is_passed_by_where_the_way_is_shorter_still(pool):
    routed = await pool.ask("a", PROMPT)
    assert (routed.rank, routed.hit) == (OTHER, 0)
    assert await reason(pool, "a") == "prefix_fetched"
    (plan,) = await plans(pool)
    assert (plan.source, plan.destination, plan.blocks) == (OWNER, OTHER, 12)
    assert [one.plan for one in await pool.inbox(OTHER) if isinstance(one, Dispatch)] == [plan.id]
    # 100 + 12 * 50 us are the time of 7 tokens, and one is always computed.
    told = await candidate(pool, "a", OTHER)
    assert (told["hit"], told["deep"], told["cost"], told["verdict"]) == ("0", "12", "8", "ok")


async def test_what_is_promised_there_is_the_work_without_the_prefix(pool):
    await pool.set(w_decode=8)
    await pool.ask("a", PROMPT)
    (row,) = [row for row in await pool.store.ranks() if row.rank == OTHER]
    assert row.reserved_tokens == 1 + 8


async def test_a_second_one_joins_the_plan_under_way(pool):
    await pool.set(w_decode=0, plans_per_rank=1)
    await pool.ask("a", PROMPT)
    routed = await pool.ask("b", [*PROMPT, 1, 2])
    assert routed.rank == OTHER
    (plan,) = await plans(pool)
    waiting = [one.plan for one in await pool.inbox(OTHER) if isinstance(one, Dispatch)]
    assert waiting == [plan.id, plan.id]


@pytest.mark.parametrize(
    ("why", "constants", "way"),
    [
        ("the queue is within the slack", {"fetch_slack": 24}, (100, 50)),
        ("fetching is off", {"fetch": 0}, (100, 50)),
        ("the way is as long as computing", {}, (4000, 50)),
        ("the way is longer than the queue", {}, (2500, 10)),
        ("no plan may be opened", {"plans_per_rank": 1}, (100, 50)),
        ("there is no link", {}, None),
    ],
)
async def test_the_owner_keeps_it_when(pool, why, constants, way):
    await pool.set(**({"fetch_slack": 4} | constants))
    await pool.store.redis.delete(pool.store.keys.links)
    if way:
        await link(pool, OWNER, OTHER, fixed_us=way[0], block_us=way[1])
    if "plans_per_rank" in constants:  # both have as many as they may
        await pool.store.redis.sadd(f"{pool.store.keys.load[:-4]}r:{OWNER}:plans", "x")
    routed = await pool.ask("a", PROMPT)
    assert (routed.rank, routed.hit) == (OWNER, 12), why
    assert await reason(pool, "a") == "prefix_hit"
    assert await plans(pool) == []


async def test_a_rank_without_room_is_passed_over(pool):
    await pool.report(OTHER, free=12)  # the prompt's twelve blocks and one token more
    assert (await pool.ask("a", PROMPT)).rank == OWNER


async def test_a_rank_that_was_not_searched_is_looked_at_again(pool):
    """Its queue rules it out as it is: the first block that it holds shows only the best case."""
    await pool.join(THIRD)
    await pool.report(THIRD, puts=pages_of(PROMPT[: 2 * BLOCK]), wait=QUEUE + 60)
    await pool.report(OTHER, puts=pages_of(PROMPT[: 3 * BLOCK]))
    routed = await pool.ask("a", PROMPT)
    assert (routed.rank, routed.hit) == (OTHER, 3)
    assert await reason(pool, "a") == "prefix_fetched"
    (plan,) = await plans(pool)
    assert plan.blocks == 9


async def test_a_prefix_that_is_only_being_computed_cannot_be_brought(pool):
    other = [9, *PROMPT[1:]]
    await pool.set(w_decode=1000, flight_ttl_ms=60_000)
    first = (await pool.ask("a", other)).rank
    assert (await pool.ask("b", other)).rank != first, "its queue is longer than computing"
    assert await plans(pool) == []
