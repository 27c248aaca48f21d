"""cancel, reap, acquire: what ends by decision or by time."""

import asyncio

import pytest

from lmpoold.protocol.config import PoolConstants
from lmpoold.protocol.errors import ConfigError
from lmpoold.protocol.hashing import token_bytes
from lmpoold.protocol.messages import Cancel, Output
from tests.store.pool import everything, pages_of

PROMPT = list(range(8))


# --- cancel


async def test_cancelling_an_unknown_id_leaves_a_mark_that_expires(pool):
    assert await pool.store.cancel("a") == "UNKNOWN"
    left_ms = await pool.store.redis.pttl(pool.store.keys.request("a"))
    assert 0 < left_ms <= PoolConstants().default_deadline_ms


async def test_a_queued_request_is_cancelled_when_it_is_routed(pool):
    await pool.join(0)
    await pool.store.submit("a", "c", {"id": "a", "prompt": "x"})
    assert await pool.store.cancel("a") == "queued"
    reply = await pool.store.redis.xreadgroup("sched", "d0", {pool.store.keys.ingress: ">"})
    entry = reply[0][1][0][0].decode()
    (routed,) = await pool.store.route([pool.call("a", PROMPT, entry, client="c")])
    assert (routed.outcome, routed.detail) == ("refused", "cancelled")
    assert len(await pool.answers("c")) == 1


async def test_a_parked_request_is_cancelled_at_once(pool):
    await pool.ask("a", PROMPT, client="c")
    assert await pool.store.cancel("a") == "parked"
    (answer,) = await pool.answers("c")
    assert (answer.code, answer.error) == ("cancelled", "cancelled_error")
    assert await pool.parked_ids() == []
    assert (await pool.record("a"))["state"] == "cancelled"


@pytest.mark.parametrize("state", ["routed", "running"])
async def test_the_worker_of_a_request_is_told_to_cancel_it(pool, state):
    await pool.join(0)
    await pool.ask("a", PROMPT)
    if state == "running":
        await pool.store.admit(0, pool.epochs[0], [("a", 0)])
    assert await pool.store.cancel("a") == state
    _, message = await pool.inbox(0)
    assert isinstance(message, Cancel)
    assert message.id == "a"
    assert await pool.answers("a") == []


async def test_a_cancelled_request_whose_worker_dies_is_answered_not_moved(pool):
    await pool.join(0)
    await pool.ask("a", PROMPT)
    await pool.store.cancel("a")
    await pool.lose(0)
    await pool.store.reap(10)
    await pool.join(1)
    routed = await pool.retry("a", PROMPT)
    assert (routed.outcome, routed.detail) == ("refused", "cancelled")
    assert len(await pool.answers("a")) == 1
    assert await pool.inbox(1) == []


@pytest.mark.parametrize("end", ["done", "cancelled", "failed"])
async def test_cancelling_an_ended_request_changes_nothing(pool, end):
    if end == "done":
        await pool.join(0)
        await pool.ask("a", PROMPT)
        (dispatch,) = await pool.deliver(0)
        await pool.finish(0, dispatch, 1)
    else:
        await pool.ask("a", PROMPT)
        if end == "cancelled":
            await pool.store.cancel("a")
        else:
            await pool.store.finish("a", "parked", "a", "worker_failed", "tried thrice", "")
    before = await everything(pool.store)
    assert await pool.store.cancel("a") == end
    assert await everything(pool.store) == before


# --- reap: ranks


async def test_a_living_pool_has_nothing_to_reap(pool):
    await pool.join(0)
    await pool.report(0, puts=pages_of(PROMPT))
    await pool.ask("a", PROMPT)
    before = await everything(pool.store)
    assert await pool.store.reap(100) == []
    assert await everything(pool.store) == before


@pytest.mark.bar(12, 37)
async def test_a_silent_rank_is_taken_down_and_its_requests_move(pool):
    await pool.join(0)
    await pool.report(0, puts=pages_of(PROMPT))
    await pool.ask("a", PROMPT)
    await pool.ask("b", PROMPT)
    await pool.store.admit(0, pool.epochs[0], [("b", 0)])
    await pool.lose(0)
    assert await pool.store.reap(100) == ["down 0"]
    row = await pool.row(0)
    assert (row.state, row.pages, row.reserved, row.free) == ("down", 0, 0, 0)
    assert sorted(await pool.parked_ids()) == ["a", "b"]
    for request_id in ("a", "b"):
        record = await pool.record(request_id)
        assert (record["state"], record["attempt"]) == ("parked", "1")
    fields = await pool.store.redis.hmget(pool.store.keys.parked_requests, ["a:t", "a:a"])
    assert fields == [token_bytes(range(8)), b"1"]
    assert await pool.store.redis.llen(pool.store.keys.wake) == 1


async def test_reaping_again_moves_nothing_twice(pool):
    await pool.join(0)
    await pool.ask("a", PROMPT)
    await pool.lose(0)
    await pool.store.reap(100)
    before = await everything(pool.store)
    assert await pool.store.reap(100) == []
    assert await everything(pool.store) == before


async def test_a_rank_with_many_requests_is_moved_in_bounded_calls(pool):
    await pool.join(0)
    for i in range(5):
        await pool.ask(f"q{i}", [])
    await pool.lose(0)
    assert await pool.store.reap(2) == ["down 0"]
    assert len(await pool.parked_ids()) == 2
    assert await pool.store.reap(2) == ["moved 0 1"]
    assert await pool.store.reap(2) == ["moved 0 0"]
    assert len(await pool.parked_ids()) == 5


async def test_an_entry_of_an_earlier_attempt_does_not_move_the_request_again(pool):
    await pool.join(0)
    await pool.ask("a", PROMPT)
    ((_, stale),) = await pool.store.redis.xrange(pool.store.keys.worker(0))
    await pool.lose(0)
    await pool.store.reap(10)
    await pool.join(1)
    await pool.retry("a", PROMPT)
    await pool.join(2)
    await pool.store.redis.xadd(pool.store.keys.worker(2), stale)
    await pool.lose(2)
    await pool.store.reap(10)
    assert await pool.parked_ids() == []
    assert (await pool.record("a"))["state"] == "routed"


async def test_a_moved_request_keeps_its_deadline(pool):
    await pool.join(0)
    await pool.ask("a", PROMPT, deadline_ms=2**42)
    await pool.lose(0)
    await pool.store.reap(10)
    assert await pool.store.redis.zscore(pool.store.keys.due, "a") == 2**42


async def test_a_draining_rank_that_falls_silent_is_taken_down_too(pool):
    await pool.join(0)
    await pool.ask("a", PROMPT)
    await pool.store.drain(0, draining=True)
    await pool.lose(0)
    assert await pool.store.reap(10) == ["down 0"]
    assert await pool.parked_ids() == ["a"]


async def test_a_request_that_its_workers_fall_over_is_refused_in_the_end(pool):
    await pool.join(0)
    await pool.ask("a", PROMPT, client="c")
    for fall in range(1, 8):
        await pool.lose(0)
        await pool.store.reap(10)
        assert await pool.parked_ids() == ["a"], fall
        await pool.join(0)
        await pool.retry("a", PROMPT, client="c")
    await pool.lose(0)
    await pool.store.reap(10)
    assert await pool.parked_ids() == []
    (answer,) = await pool.answers("c")
    assert (answer.code, answer.error) == ("worker_failed", "server_error")
    assert "8 workers in a row were lost" in answer.message


async def test_a_worker_that_leaves_in_good_order_or_made_progress_blames_nobody(pool):
    await pool.join(0)
    await pool.ask("a", PROMPT)
    for turn in range(12):
        await pool.emit(0, {"a": [Output("a", turn, 1, "t")]})
        await pool.lose(0)
        await pool.store.reap(10)
        await pool.join(0)
        await pool.retry("a", PROMPT)
    for _ in range(12):
        await pool.store.rank_down(0, pool.epochs[0])
        await pool.join(0)
        await pool.retry("a", PROMPT)
    assert (await pool.record("a"))["state"] == "routed"


# --- reap: consumers


@pytest.mark.bar(12)
async def test_the_consumer_of_a_dead_lmpoold_goes_once_it_holds_nothing(pool):
    redis, keys = pool.store.redis, pool.store.keys
    entry = await pool.send(prompt="x", id="a")  # read by d0
    await asyncio.sleep(0.01)
    assert await pool.store.reap(10, consumer_idle_ms=0) == []
    await redis.xack(keys.ingress, "sched", entry)
    await redis.xdel(keys.ingress, entry)
    assert await pool.store.reap(10) == []
    assert await pool.store.reap(10, consumer_idle_ms=0) == ["gone d0"]
    assert await redis.xinfo_consumers(keys.ingress, "sched") == []


# --- reap: reservations


@pytest.mark.better(10)
@pytest.mark.bar(25)
async def test_a_reservation_nobody_took_ends_with_its_time(pool):
    await pool.set(resv_ttl_ms=-1000)
    await pool.join(0)
    await pool.ask("a", PROMPT)
    assert (await pool.row(0)).reserved == 3
    assert await pool.store.reap(10) == ["expired a.0"]
    row = await pool.row(0)
    assert (row.reserved, row.reserved_tokens) == (0, 0)
    assert [message.id for message in await pool.inbox(0)] == ["a"]


async def test_a_reservation_within_its_time_stays(pool):
    await pool.join(0)
    await pool.ask("b", PROMPT)
    await pool.set(resv_ttl_ms=-1000)
    await pool.ask("a", PROMPT)
    assert await pool.store.reap(10) == ["expired a.0"]
    assert (await pool.row(0)).reserved == 3


# --- reap: parked


@pytest.mark.better(10)
async def test_a_parked_request_past_its_deadline_is_answered_once(pool):
    await pool.ask("a", PROMPT, client="c")
    await pool.ask("b", PROMPT)
    await pool.store.redis.zadd(pool.store.keys.due, {"a": 1})
    assert await pool.store.reap(10) == ["late a"]
    assert await pool.store.reap(10) == []
    (answer,) = await pool.answers("c")
    assert (answer.code, answer.error) == ("deadline_exceeded", "timeout_error")
    assert (await pool.record("a"))["state"] == "failed"
    assert await pool.parked_ids() == ["b"]


async def test_late_requests_are_ended_in_bounded_calls(pool):
    for i in range(3):
        await pool.ask(f"q{i}", PROMPT)
        await pool.store.redis.zadd(pool.store.keys.due, {f"q{i}": i + 1})
    assert await pool.store.reap(2) == ["late q0", "late q1"]
    assert await pool.store.reap(2) == ["late q2"]


async def test_nothing_is_reaped_before_the_pool_is_described(store):
    with pytest.raises(ConfigError):
        await store.reap(1)


# --- acquire


async def test_one_leads_and_goes_on_leading_under_one_token(pool):
    first = await pool.store.acquire("d0", 60_000)
    assert await pool.store.acquire("d1", 60_000) is None
    assert await pool.store.acquire("d0", 90_000) == first
    assert await pool.store.redis.pttl(pool.store.keys.lead) > 60_000


async def test_the_token_grows_with_each_leader(pool):
    first = await pool.store.acquire("d0", 60_000)
    await pool.store.redis.delete(pool.store.keys.lead)
    second = await pool.store.acquire("d1", 60_000)
    assert int(second) > int(first)


async def test_the_token_grows_even_when_the_clock_was_set_back(pool):
    await pool.store.redis.set(pool.store.keys.prefix + "sched:fence", "4102444800000")
    assert await pool.store.acquire("d0", 60_000) == "4102444800001"
