"""Background placement on both servers: heat, a plan, a lease."""

import pytest

from lmpoold.daemon import links, place
from lmpoold.daemon.links import LinkKeeper
from lmpoold.daemon.place import Placer
from lmpoold.protocol.errors import Stale
from lmpoold.protocol.transfer import Phase, Why
from lmpoold.store.plans import PlanStore
from tests.store.plan import CHAIN, DST, PROMPT, SRC, Plan, finish
from tests.store.pool import pages_of


@pytest.fixture
async def turn(pool, monkeypatch):
    """One turn of the leader's placement over a busy owner and an idle neighbour."""
    monkeypatch.setattr(links, "EVERY_S", 0.0)
    monkeypatch.setattr(place, "EVERY_S", 0.0)
    for rank in (SRC, DST):
        await pool.join(rank)
        facts = {"way": "gloo", "prefill_us": "1000"}
        await pool.store.redis.hset(pool.store.keys.rank_facts(rank), mapping=facts)
    await pool.report(SRC, puts=pages_of(PROMPT), sequences=6)
    await pool.report(DST)
    pool.token = await pool.store.acquire("me", 60_000)
    plans = PlanStore(pool.store)
    keeper = LinkKeeper(plans)
    placer = Placer(plans, keeper)

    async def turn(token=None):
        await keeper.turn(pool.token)
        await placer.turn(token or pool.token)
        return await plans.live()

    return turn


async def heat(pool, found=100):
    await pool.store.redis.zadd(pool.store.keys.hot, {CHAIN[-1]: found})


async def leases(pool):
    return await pool.store.redis.hgetall(f"{pool.store.keys.prefix}leases")


async def test_a_hot_prefix_is_copied_and_both_sides_get_a_lease(pool, turn):
    await heat(pool)
    (row,) = await turn()
    assert (row.source, row.destination, row.blocks, row.why) == (SRC, DST, 5, Why.BACKGROUND)
    plan = Plan(pool, id=row.id, first=0)
    assert [order.hashes for order in await plan.orders(SRC)] == [CHAIN]
    await turn()
    assert await leases(pool) == {}, "nothing has arrived"
    await plan.pinned(first=0)
    await plan.reserved(first=0)
    await plan.executed()
    await plan.publish()
    await turn()
    (lease,) = (await leases(pool)).items()
    assert lease[0].decode() == CHAIN[-1]
    await finish(plan)


async def test_an_aborted_copy_gets_no_lease(pool, turn):
    await heat(pool)
    (row,) = await turn()
    plan = Plan(pool, id=row.id)
    await plan.abort(SRC)
    await plan.abort(DST)
    assert await plan.phase() is Phase.ABORTED
    await turn()
    assert await leases(pool) == {}


async def test_a_prefix_is_left_alone_for_a_while_after_a_plan(pool, turn):
    await heat(pool)
    assert len(await turn()) == 1
    assert len(await turn()) == 1
    await pool.set(hot_cooldown_ms=1)
    assert len(await turn()) == 2


@pytest.mark.better(20)
async def test_a_refusal_is_kept_with_its_numbers_once_a_cooldown(pool, turn):
    await pool.set(hot_ratio=10**6, hot_cooldown_ms=3_600_000)
    await heat(pool)
    assert await turn() == []
    await turn()
    (refused,) = await PlanStore(pool.store).refusals()
    assert (refused["why"], refused["for"]) == ("background", CHAIN[-1])
    assert refused["said"].startswith("refused low_benefit from=0 to=1 saved_us=20000 cost_us=")


@pytest.mark.parametrize(("constant", "value"), [("background", 0), ("hot_threshold", 1000)])
async def test_it_can_be_switched_off_or_kept_to_hotter_prefixes(pool, turn, constant, value):
    await pool.set(**{constant: value})
    await heat(pool)
    assert await turn() == []


async def test_a_leader_of_the_past_places_nothing(pool, turn):
    await heat(pool)
    await pool.store.redis.delete(pool.store.keys.lead)
    await pool.store.acquire("another", 60_000)
    with pytest.raises(Stale):
        await turn()


@pytest.mark.better(12)
async def test_heat_fades(pool, turn):
    await heat(pool, 1.05)
    await turn()
    assert await pool.store.redis.zcard(pool.store.keys.hot) == 0


async def test_a_prefix_that_nobody_has_any_more_is_not_copied(pool, turn):
    await heat(pool)
    await pool.report(SRC, dels=CHAIN[::-1], sequences=6)
    assert await turn() == []


async def test_a_torn_chain_is_no_chain(pool, turn):
    plans = PlanStore(pool.store)
    assert await plans.chain(SRC, CHAIN[-1], 100) == CHAIN
    assert await plans.chain(SRC, CHAIN[-1], 4) == ()
    await pool.store.redis.hdel(pool.store.keys.pages(SRC), CHAIN[2])
    assert await plans.chain(SRC, CHAIN[-1], 100) == ()


async def test_routes_that_find_a_prefix_make_it_hot(pool, turn):
    for number in range(200):
        await pool.ask(f"r{number}", [*PROMPT, number], candidates=(SRC,))
        await pool.report(SRC, admitted=[f"r{number}.0"])
    ((name, found),) = await pool.store.redis.zrange(pool.store.keys.hot, 0, -1, withscores=True)
    assert name.decode() == CHAIN[-1]
    assert 60 < found < 400, "one in eight is counted, for eight"
