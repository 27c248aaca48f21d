"""Costs and sources of the index: what neither time, size nor the fleet may change."""

import pytest

from lmpoold.protocol.keys import Keyspace
from lmpoold.store.connect import open_redis
from lmpoold.store.scripts import PoolStore
from tests.store.pool import MODEL_LEN, begin, names, pages_of

PROMPT = list(range(MODEL_LEN - 8))


@pytest.mark.bar(5)
async def test_sending_a_request_to_a_rank_publishes_nothing_there(pool):
    await pool.join(0)
    await pool.ask("a", PROMPT)
    await pool.ask("b", PROMPT)
    assert (await pool.row(0)).pages == 0
    assert [await pool.store.page(name) for name in names(PROMPT)] == [[]] * len(names(PROMPT))
    assert {message.hit for message in await pool.inbox(0)} == {0}


@pytest.mark.bar(50)
async def test_every_lmpoold_sees_the_same_prefixes_and_the_same_load(redis, server_url):
    first = await begin(PoolStore(redis, Keyspace()))
    other_redis = open_redis(server_url)
    other = PoolStore(other_redis, Keyspace())
    await first.join(0)
    await first.join(1)
    await first.report(0, puts=pages_of(PROMPT[:16]))
    entry = await first.send(prompt="x", id="a")
    (routed,) = await other.route([first.call("a", PROMPT, entry)])
    assert (routed.rank, routed.hit) == (0, 4)
    assert await other.ranks() == await first.store.ranks()
    await other_redis.aclose()


async def calls_of_a_route(pool, number: int) -> int:
    """Commands that the server runs for one route on an idle pool, the call of it among them."""
    redis = pool.store.redis
    await pool.store.load_library()  # it forgets what it remembers of earlier calls
    entry = await pool.send(prompt="x", id=f"q{number}")
    await redis.config_resetstat()
    (routed,) = await pool.store.route([pool.call(f"q{number}", PROMPT, entry)])
    stats = await redis.info("commandstats")
    (dispatch,) = await pool.inbox(routed.rank)
    await pool.finish(routed.rank, dispatch, 1)
    return sum(stat["calls"] for name, stat in stats.items() if "info" not in name)


@pytest.mark.better(4)
@pytest.mark.bar(13, 14)
async def test_a_route_costs_as_much_in_a_full_table_as_in_an_empty_one(redis):
    pool = await begin(PoolStore(redis, Keyspace()))
    for rank in range(4):
        await pool.join(rank, blocks=50_000)
        await pool.report(rank, free=50_000, puts=pages_of(PROMPT[:16]))
    few = await calls_of_a_route(pool, 0)
    for rank in range(4):
        strangers = {
            f"{number:032x}": page
            for number, page in enumerate(list(pages_of([9] * 4).values()) * 20_000)
        }
        await pool.report(rank, free=30_000, reclaimable=20_000, puts=strangers)
    many = await calls_of_a_route(pool, 1)
    assert many <= few + 2, (few, many)
    assert many < 60


@pytest.mark.bar(29)
async def test_stores_and_removals_without_end_leave_memory_flat(redis):
    pool = await begin(PoolStore(redis, Keyspace()))
    await pool.join(0, blocks=2000)
    page = next(iter(pages_of([9] * 4).values()))

    async def churn(turns: int, start: int) -> None:
        for turn in range(start, start + turns):
            puts = {f"{turn:016x}{number:016x}": page for number in range(1000)}
            dels = [f"{turn - 1:016x}{number:016x}" for number in range(1000)]
            await pool.report(0, free=1000, reclaimable=1000, puts=puts, dels=dels)

    await churn(30, 1)
    assert (await pool.row(0)).pages == 1000
    before = (await redis.info("memory"))["used_memory_dataset"]
    await churn(170, 31)
    after = (await redis.info("memory"))["used_memory_dataset"]
    assert (await pool.row(0)).pages == 1000
    assert abs(after - before) < 0.05 * before + 300_000, (before, after)


@pytest.mark.bar(45)
async def test_hits_are_counters_of_tokens_not_means_of_ratios(pool):
    await pool.join(0)
    await pool.report(0, puts=pages_of(PROMPT[:32]))
    for number, prompt in enumerate((PROMPT, [99] * 4)):
        await pool.ask(f"q{number}", prompt)
        (dispatch,) = await pool.deliver(0)
        await pool.finish(0, dispatch, 1)
    row = await pool.row(0)
    assert (row.cached_tokens, row.prompt_tokens) == (32, len(PROMPT) + 4)
    assert row.hit_rate == pytest.approx(32 / (len(PROMPT) + 4))
