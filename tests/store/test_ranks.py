"""rank_up, heartbeat, drain, rank_down: a worker's claim on a rank."""

import pytest

from lmpoold.protocol.errors import ConfigError, Conflict, PoolMismatch, Stale
from tests.store.pool import IDENTITY, LONG_MS, everything, pages_of

PROMPT = list(range(8))


def joining(**changes):
    settings = {
        "held": "",
        "ttl_ms": LONG_MS,
        "blocks": 32,
        "identity": IDENTITY.to_fields(),
        "facts": {},
    }
    return settings | changes


async def test_no_rank_joins_before_the_pool_is_described(store):
    with pytest.raises(ConfigError, match="start lmpoold"):
        await store.rank_up(0, **joining())


async def test_a_joined_rank_is_up_and_its_claim_has_an_end(pool):
    epoch = await pool.join(3, blocks=20)
    row = await pool.row(3)
    assert (row.state, row.blocks, row.free, row.pages) == ("up", 20, 20, 0)
    assert (row.epoch, row.device, row.host, row.pid) == (int(epoch), "cpu", "here", "1")
    assert 0 < await pool.store.redis.pttl(pool.store.keys.alive(3)) <= LONG_MS


@pytest.mark.bar(15)
@pytest.mark.parametrize("field", sorted(IDENTITY.to_fields()))
async def test_a_worker_that_differs_is_refused_by_the_field_and_writes_nothing(pool, field):
    before = await everything(pool.store)
    identity = IDENTITY.to_fields() | {field: "9"}
    with pytest.raises(PoolMismatch, match=rf"^{field}: the pool has .+, this worker has 9"):
        await pool.store.rank_up(0, **joining(identity=identity))
    assert await everything(pool.store) == before


@pytest.mark.bar(15)
async def test_the_first_worker_settles_the_weights_and_others_must_agree(pool):
    await pool.join(0)
    assert (await pool.store.cfg())["weights"] == "w0"
    identity = IDENTITY.to_fields() | {"weights": "w1"}
    with pytest.raises(PoolMismatch, match=r"^weights: the pool has w0, this worker has w1"):
        await pool.store.rank_up(1, **joining(identity=identity))


@pytest.mark.better(5)
async def test_a_rank_that_cannot_hold_the_longest_request_is_refused(pool):
    with pytest.raises(ConfigError, match="15 blocks of 4 tokens cannot hold one request of 64"):
        await pool.store.rank_up(0, **joining(blocks=15))
    assert await pool.store.ranks() == []


async def test_a_rank_that_can_just_hold_the_longest_request_joins(pool):
    await pool.store.rank_up(0, **joining(blocks=16))
    assert (await pool.row(0)).blocks == 16


async def test_a_held_rank_is_refused_to_another_worker(pool):
    epoch = await pool.join(0)
    before = await everything(pool.store)
    with pytest.raises(Conflict, match=rf"rank 0 is held by a live worker \(epoch {epoch}\)"):
        await pool.store.rank_up(0, **joining())
    assert await everything(pool.store) == before


async def test_the_holder_of_a_rank_joins_again_under_a_later_epoch(pool):
    first = await pool.join(0)
    second = await pool.join(0, held=first)
    assert int(second) > int(first)
    with pytest.raises(Stale):
        await pool.store.heartbeat(0, first, LONG_MS)


async def test_a_silent_worker_loses_its_rank_to_the_next(pool):
    first = await pool.join(0)
    await pool.lose(0)
    assert int(await pool.join(0)) > int(first)


async def test_an_epoch_grows_even_when_the_clock_was_set_back(pool):
    await pool.join(0)
    await pool.lose(0)
    row = "up 32 0 0 0 0 0 0 0 4102444800000"
    await pool.store.redis.hset(pool.store.keys.load, "0", row)
    assert await pool.join(0) == "4102444800001"


@pytest.mark.bar(10, 12)
async def test_a_new_epoch_forgets_pages_and_reservations_and_parks_requests(pool):
    first = await pool.join(0)
    await pool.report(0, puts=pages_of(PROMPT))
    await pool.ask("a", PROMPT)
    await pool.join(0, held=first)
    row = await pool.row(0)
    assert (row.pages, row.reserved, row.reserved_tokens, row.version) == (0, 0, 0, 0)
    assert await pool.parked_ids() == ["a"]
    assert await pool.inbox(0) == []


async def test_a_heartbeat_prolongs_the_claim(pool):
    epoch = await pool.join(0)
    await pool.store.heartbeat(0, epoch, 2 * LONG_MS)
    assert await pool.store.redis.pttl(pool.store.keys.alive(0)) > LONG_MS


async def test_a_heartbeat_of_a_fenced_worker_does_not_bring_it_back(pool):
    epoch = await pool.join(0)
    await pool.lose(0)
    await pool.store.reap(100)
    with pytest.raises(Stale, match="rank 0 is down"):
        await pool.store.heartbeat(0, epoch, LONG_MS)
    assert not await pool.store.redis.exists(pool.store.keys.alive(0))


async def test_a_rank_that_never_joined_is_a_conflict(pool):
    for attempt in (
        pool.store.heartbeat(5, "1", LONG_MS),
        pool.store.drain(5, draining=True),
        pool.store.rank_down(5, "1"),
    ):
        with pytest.raises(Conflict, match="rank 5"):
            await attempt


async def test_a_draining_rank_is_sent_nothing_until_it_is_up_again(pool):
    await pool.join(0)
    await pool.store.drain(0, draining=True)
    assert (await pool.row(0)).state == "drain"
    assert (await pool.ask("a", PROMPT)).outcome == "parked"
    await pool.store.drain(0, draining=False)
    assert (await pool.retry("a", PROMPT)).outcome == "routed"


async def test_a_draining_rank_goes_on_serving_what_it_has(pool):
    epoch = await pool.join(0)
    await pool.ask("a", PROMPT)
    await pool.store.drain(0, draining=True)
    assert await pool.store.admit(0, epoch, [("a", 0)]) == []
    (dispatch,) = await pool.deliver(0)
    await pool.finish(0, dispatch, 7)
    assert (await pool.record("a"))["state"] == "done"


async def test_a_rank_given_back_parks_its_requests_one_attempt_later(pool):
    epoch = await pool.join(0)
    await pool.ask("a", PROMPT)
    await pool.ask("b", PROMPT)
    await pool.store.rank_down(0, epoch)
    assert (await pool.row(0)).state == "down"
    assert sorted(await pool.parked_ids()) == ["a", "b"]
    assert (await pool.record("a"))["attempt"] == "1"
    assert not await pool.store.redis.exists(pool.store.keys.alive(0))


async def test_a_rank_given_back_lets_the_next_worker_in_at_once(pool):
    first = await pool.join(0)
    await pool.store.rank_down(0, first)
    assert int(await pool.join(0)) > int(first)


async def test_only_the_holder_gives_a_rank_back(pool):
    first = await pool.join(0)
    await pool.join(0, held=first)
    with pytest.raises(Stale):
        await pool.store.rank_down(0, first)
    assert (await pool.row(0)).state == "up"


async def test_giving_back_a_rank_with_many_requests_moves_all_of_them(pool):
    epoch = await pool.join(0, blocks=1000)
    await pool.report(0, free=1000)
    entries = [await pool.send(prompt="x") for _ in range(130)]
    calls = [pool.call(f"q{i}", [i], entry) for i, entry in enumerate(entries)]
    for start in range(0, 130, 64):
        await pool.store.route(calls[start : start + 64])
    await pool.store.rank_down(0, epoch)
    assert sorted(await pool.parked_ids()) == sorted(f"q{i}" for i in range(130))
    assert await pool.inbox(0) == []


async def test_a_worker_that_finishes_no_step_for_too_long_loses_its_claim(pool):
    epoch = await pool.join(0)
    await pool.set(engine_stall_ms=5000)
    await pool.store.heartbeat(0, epoch, LONG_MS, stuck_ms=4999)
    assert (await pool.ask("a", PROMPT)).rank == 0
    with pytest.raises(Stale, match="finished no step for 5000 ms"):
        await pool.store.heartbeat(0, epoch, LONG_MS, stuck_ms=5000)
    assert (await pool.ask("b", PROMPT)).outcome == "parked"
    assert await pool.store.reap(10) == ["down 0"]
    assert sorted(await pool.parked_ids()) == ["a", "b"]
