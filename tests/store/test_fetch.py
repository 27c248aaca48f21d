"""Fetch on route: which dispatch carries a plan to copy its prefix from a neighbour."""

import pytest

from lmpoold.protocol.messages import Dispatch
from lmpoold.protocol.transfer import Mode, Phase, PlanOrder, Role, Why
from lmpoold.store.plans import PlanStore
from tests.store.pool import BLOCK, names, pages_of

PROMPT = list(range(6 * BLOCK))
CHAIN = names(PROMPT)
OWNER, OTHER = 0, 1
BUSY = {"wait": 10_000, "run": 10_000, "sequences": 50}


@pytest.fixture
async def pool(pool):
    """Rank 0 has the whole prompt and is busy, rank 1 its first block; a good link between."""
    for rank in (OWNER, OTHER):
        await pool.join(rank)
    await pool.report(OWNER, puts=pages_of(PROMPT), **BUSY)
    await pool.report(OTHER, puts=pages_of(PROMPT[:BLOCK], 9))
    await link(pool, OWNER, OTHER, fixed_us=1000, block_us=10)
    await pace(pool, OTHER, 100)
    return pool


async def link(pool, source, destination, *, fixed_us, block_us):
    key = pool.store.keys.links
    await pool.store.redis.hset(key, f"{source}>{destination}", f"{fixed_us} {block_us}")


async def pace(pool, rank, us):
    await pool.store.redis.hset(pool.store.keys.rank_facts(rank), "prefill_us", us)


async def plans(pool):
    return await PlanStore(pool.store).live()


async def told(pool, request_id):
    """What `explain` says of the plan."""
    lines = await pool.store.explain(request_id)
    return next((line.partition("=")[2] for line in lines if line.startswith("fetch=")), "")


async def test_a_route_past_the_owner_brings_the_prefix_along(pool):
    routed = await pool.ask("a", PROMPT)
    assert (routed.rank, routed.hit) == (OTHER, 1)
    (plan,) = await plans(pool)
    assert (plan.source, plan.destination, plan.blocks) == (OWNER, OTHER, 5)
    assert (plan.mode, plan.why, plan.phase) == (Mode.COPY, Why.FETCH, Phase.PREPARE)
    order, dispatch = await pool.inbox(OTHER)
    assert isinstance(order, PlanOrder)
    assert (order.role, order.first, order.hashes) == (Role.DESTINATION, 1, CHAIN)
    assert isinstance(dispatch, Dispatch)
    assert (dispatch.plan, dispatch.wait_s) == (plan.id, 2.0)
    (order,) = await pool.inbox(OWNER)
    assert order.role is Role.SOURCE
    saved, spent = 5 * BLOCK * 100, 1000 + 5 * 10
    assert await told(pool, "a") == f"opened from=0 to=1 blocks=5 saved_us={saved} cost_us={spent}"


async def test_requests_that_lack_the_same_blocks_share_one_plan(pool):
    await pool.ask("a", PROMPT)
    await pool.ask("b", [*PROMPT, 1, 2, 3])
    (plan,) = await plans(pool)
    waiting = [one.plan for one in await pool.inbox(OTHER) if isinstance(one, Dispatch)]
    assert waiting == [plan.id, plan.id]
    assert (await told(pool, "b")).startswith("joins ")


async def test_a_plan_that_is_being_given_up_is_not_joined(pool):
    await pool.ask("a", PROMPT)
    (plan,) = await plans(pool)
    await PlanStore(pool.store).abort(plan.id, OTHER, pool.epochs[OTHER], "x", stopped=True)
    await pool.ask("b", PROMPT)
    waiting = [one.plan for one in await pool.inbox(OTHER) if isinstance(one, Dispatch)]
    assert waiting[0] == plan.id != waiting[1]


async def test_a_plan_to_an_earlier_epoch_is_not_joined(pool):
    await pool.ask("a", PROMPT)
    (plan,) = await plans(pool)
    await pool.lose(OTHER)
    await pool.join(OTHER)
    await pool.report(OTHER)
    await pace(pool, OTHER, 100)
    await pool.ask("b", PROMPT)
    (dispatch,) = [one for one in await pool.inbox(OTHER) if isinstance(one, Dispatch)]
    assert dispatch.plan not in {"", plan.id}


@pytest.mark.better(11)
@pytest.mark.parametrize(
    ("us", "fixed_us", "opens"), [(100, 1200, True), (100, 1400, False), (50, 1200, False)]
)
async def test_it_pays_when_computing_costs_so_many_times_what_moving_does(
    pool, us, fixed_us, opens
):
    await pace(pool, OTHER, us)
    await link(pool, OWNER, OTHER, fixed_us=fixed_us, block_us=1)
    await pool.ask("a", PROMPT)  # 20 tokens are lacking: 2000 us against 1.5 times the link's
    assert bool(await plans(pool)) is opens
    said = await told(pool, "a")
    assert said.startswith("opened" if opens else "refused low_benefit")
    assert f"saved_us={20 * us} cost_us={fixed_us + 5}" in said


async def test_without_a_link_nothing_is_moved(pool):
    await pool.store.redis.delete(pool.store.keys.links)
    await link(pool, OTHER, OWNER, fixed_us=1, block_us=1)  # the other way does not count
    await pool.ask("a", PROMPT)
    assert await plans(pool) == []
    assert await told(pool, "a") == ""


@pytest.mark.better(11)
async def test_a_rank_that_has_not_prefilled_yet_is_judged_by_its_neighbours_pace(pool):
    await pool.store.redis.hdel(pool.store.keys.rank_facts(OTHER), "prefill_us")
    await pool.ask("a", PROMPT)
    assert await plans(pool) == []
    await pace(pool, OWNER, 100)
    await pool.ask("b", PROMPT)
    assert len(await plans(pool)) == 1


async def test_of_two_owners_the_one_that_saves_more_is_asked(pool):
    await pool.join(2)
    await pool.report(2, puts=pages_of(PROMPT[: 3 * BLOCK]), **BUSY)
    await link(pool, 2, OTHER, fixed_us=1, block_us=1)
    await pool.ask("a", PROMPT)
    assert (await plans(pool))[0].source == 2, "800 - 1.5 * 3 > 2000 - 1.5 * 1050"
    await link(pool, 2, OTHER, fixed_us=600, block_us=1)
    await pool.ask("b", [*PROMPT[: 5 * BLOCK], 99, 98, 97, 96])
    assert {plan.source for plan in await plans(pool)} == {OWNER, 2}


@pytest.mark.parametrize(("constant", "value"), [("fetch", 0), ("fetch_min_blocks", 6)])
async def test_it_can_be_switched_off_or_kept_to_long_prefixes(pool, constant, value):
    await pool.set(**{constant: value})
    await pool.ask("a", PROMPT)
    assert await plans(pool) == []
    (dispatch,) = await pool.inbox(OTHER)
    assert dispatch.plan == ""


async def test_a_rank_with_plans_enough_computes(pool):
    await pool.set(plans_per_rank=1)
    await link(pool, OWNER, OTHER, fixed_us=1, block_us=1)
    await pool.ask("a", PROMPT)
    await pool.ask("b", PROMPT[: 4 * BLOCK])
    assert len(await plans(pool)) == 1
    assert (await told(pool, "b")).startswith("refused busy ")


async def test_a_lost_owner_is_not_asked(pool):
    await pool.lose(OWNER)
    await pool.ask("a", PROMPT)
    assert await plans(pool) == []


async def test_a_request_that_goes_to_the_owner_moves_nothing(pool):
    await pool.report(OWNER)
    routed = await pool.ask("a", PROMPT)
    assert (routed.rank, routed.hit) == (OWNER, 6)
    assert await plans(pool) == []


async def test_a_request_that_waits_for_a_plan_goes_on_elsewhere_when_its_worker_dies(pool):
    await pool.ask("a", PROMPT)
    await pool.lose(OTHER)
    await pool.store.reap(100)
    assert await pool.parked_ids() == ["a"]
    await pool.report(OWNER)
    routed = await pool.retry("a", PROMPT)
    assert (routed.rank, routed.hit) == (OWNER, 6)


@pytest.mark.better(20)
async def test_refusals_are_kept_with_their_numbers(pool):
    await link(pool, OWNER, OTHER, fixed_us=10**6, block_us=1)
    await pool.ask("a", PROMPT)
    (refused,) = await PlanStore(pool.store).refusals()
    said = "refused low_benefit from=0 to=1 blocks=5 saved_us=2000 cost_us=1000005"
    assert refused == {"why": "fetch", "for": "a", "said": said}
