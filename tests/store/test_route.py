"""route: one atomic call chooses, reserves, dispatches and acknowledges."""

import itertools
from collections import Counter
from types import SimpleNamespace

import pytest
from fakeredis.commands_mixins import server_mixin

from lmpoold.protocol.errors import ConfigError, ProtocolError
from lmpoold.protocol.messages import Dispatch
from tests.store.pool import BLOCK, everything, names, pages_of

PROMPT = list(range(16))


async def reason(pool, request_id: str) -> str:
    return (await pool.record(request_id))["reason"]


# --- where it goes


async def test_the_longest_prefix_wins_between_equal_loads(pool):
    for rank, blocks in ((0, 1), (1, 3), (2, 2)):
        await pool.join(rank)
        await pool.report(rank, puts=pages_of(PROMPT[: blocks * BLOCK]))
    routed = await pool.ask("a", PROMPT)
    assert (routed.rank, routed.hit, routed.need) == (1, 3, 2)
    assert await reason(pool, "a") == "prefix_hit"


@pytest.mark.parametrize("held", range(5))
async def test_the_hit_is_the_published_depth(pool, held):
    await pool.join(0)
    await pool.report(0, puts=pages_of(PROMPT[: held * BLOCK]))
    assert (await pool.ask("a", PROMPT)).hit == held


async def test_a_cached_prompt_still_needs_a_block_for_what_is_to_come(pool):
    await pool.join(0)
    await pool.report(0, puts=pages_of(PROMPT))
    routed = await pool.ask("a", PROMPT)
    assert (routed.hit, routed.need) == (4, 1)


async def test_a_prompt_that_leaves_room_in_its_last_block_needs_no_more(pool):
    await pool.join(0)
    assert (await pool.ask("a", PROMPT[:15])).need == 4


@pytest.mark.better(18)
@pytest.mark.bar(21)
async def test_a_busy_owner_of_the_prefix_is_passed_over(pool):
    await pool.join(0)
    await pool.join(1)
    await pool.report(0, puts=pages_of(PROMPT), wait=1000)
    routed = await pool.ask("a", PROMPT)
    assert (routed.rank, routed.hit) == (1, 0)
    assert await reason(pool, "a") == "load_outweighs_prefix"


@pytest.mark.bar(24)
async def test_a_shorter_prefix_on_an_idler_rank_may_win(pool):
    await pool.join(0)
    await pool.join(1)
    await pool.report(0, puts=pages_of(PROMPT), wait=1000)
    await pool.report(1, puts=pages_of(PROMPT[:8]))
    routed = await pool.ask("a", PROMPT)
    assert (routed.rank, routed.hit) == (1, 2)
    assert await reason(pool, "a") == "shorter_prefix_cheaper"


async def test_making_room_by_forgetting_costs(pool):
    await pool.join(0)
    await pool.join(1)
    await pool.report(0, free=0, reclaimable=32)
    assert (await pool.ask("a", PROMPT)).rank == 1


@pytest.mark.better(4)
async def test_a_rank_that_cannot_win_is_not_searched_to_the_end(pool):
    prompt = list(range(32))
    for rank, held, wait in ((0, 32, 0), (1, 20, 300)):
        await pool.join(rank)
        await pool.report(rank, wait=wait, puts=pages_of(prompt[:held]))
    await pool.ask("a", prompt)
    first, second = (await pool.record("a"))["terms"].split(";")
    assert first == "0 8 1 32 0 0 1 ok"
    assert second == "1 7 2 32 0 300 304 worse"


@pytest.mark.bar(44)
async def test_a_prompt_without_a_complete_block_goes_by_load(pool):
    await pool.join(0)
    await pool.join(1)
    await pool.report(0, wait=50)
    routed = await pool.ask("a", PROMPT[:3])
    assert (routed.rank, routed.hit, routed.need) == (1, 0, 1)
    assert await reason(pool, "a") == "no_complete_block"


@pytest.mark.bar(23)
async def test_equal_ranks_share_a_run_of_requests(pool):
    for rank in range(3):
        await pool.join(rank, blocks=1000)
        await pool.report(rank, free=1000)
    used = set()
    for i in range(60):
        routed = await pool.ask(f"q{i}", [])
        used.add(routed.rank)
        await pool.report(routed.rank, free=1000, admitted=[f"q{i}.0"])
    assert used == {0, 1, 2}


@pytest.mark.parametrize("store", ["fake"], indirect=True)
async def test_requests_at_even_times_do_not_all_go_to_one_of_equal_ranks(pool, monkeypatch):
    for rank in range(2):
        await pool.join(rank, blocks=1000)
    base_s, clock = int(server_mixin.time.time()), itertools.count()
    even = SimpleNamespace(time=lambda: base_s + next(clock) * 0.016)
    monkeypatch.setattr(server_mixin, "time", even)
    shares = Counter[int]()
    for i in range(40):
        for rank in range(2):
            await pool.report(rank, free=1000)
        routed = await pool.ask(f"q{i}", [])
        shares[routed.rank] += 1
        await pool.report(routed.rank, free=1000, admitted=[f"q{i}.0"])
    assert min(shares[0], shares[1]) >= 8


@pytest.mark.bar(21, 23)
async def test_a_burst_in_one_call_spreads_by_its_own_reservations(pool):
    for rank in range(4):
        await pool.join(rank, blocks=1000)
        await pool.report(rank, free=1000)
    calls = [pool.call(f"q{i}", [i] * 8, await pool.send(prompt="x")) for i in range(64)]
    routed = await pool.store.route(calls)
    assert [one.id for one in routed] == [f"q{i}" for i in range(64)]
    loads = [sum(one.rank == rank for one in routed) for rank in range(4)]
    assert loads == [16, 16, 16, 16]


async def test_candidates_bound_the_choice(pool):
    for rank in range(3):
        await pool.join(rank)
    await pool.report(0, puts=pages_of(PROMPT))
    await pool.report(1, wait=10)
    assert (await pool.ask("a", PROMPT, candidates=(1, 2))).rank == 2


async def test_a_candidate_that_never_joined_is_passed_over(pool):
    await pool.join(1)
    assert (await pool.ask("a", PROMPT, candidates=(7, 1))).rank == 1


# --- who is no candidate


@pytest.mark.bar(4)
@pytest.mark.parametrize("how", ["silent", "reaped", "given back", "draining"])
async def test_a_rank_that_is_not_up_is_not_chosen_for_its_prefix(pool, how):
    epoch = await pool.join(0)
    await pool.join(1)
    await pool.report(0, puts=pages_of(PROMPT))
    await pool.report(1, wait=1000)
    if how == "draining":
        await pool.store.drain(0, draining=True)
    elif how == "given back":
        await pool.store.rank_down(0, epoch)
    else:
        await pool.lose(0)
    if how == "reaped":
        await pool.store.reap(100)
    assert (await pool.ask("a", PROMPT)).rank == 1


@pytest.mark.bar(4)
async def test_an_alive_key_of_another_epoch_does_not_make_a_rank_live(pool):
    await pool.join(0)
    await pool.store.redis.set(pool.store.keys.alive(0), "1", px=60_000)
    assert (await pool.ask("a", PROMPT)).outcome == "parked"


async def test_a_pool_without_workers_parks(pool):
    assert (await pool.ask("a", PROMPT)).outcome == "parked"
    assert await reason(pool, "a") == "no_capacity"


# --- room


async def test_reservations_fill_a_rank_before_its_worker_says_so(pool):
    await pool.join(0, blocks=16)
    outcomes = [(await pool.ask(f"q{i}", PROMPT)).outcome for i in range(4)]
    assert outcomes == ["routed", "routed", "routed", "parked"]
    assert (await pool.row(0)).reserved == 15


async def test_a_request_that_just_fits_is_routed(pool):
    await pool.join(0)
    await pool.report(0, free=2, reclaimable=3)
    assert (await pool.ask("a", PROMPT)).outcome == "routed"


async def test_a_request_that_misses_by_one_block_is_parked(pool):
    await pool.join(0)
    await pool.report(0, free=2, reclaimable=2)
    assert (await pool.ask("a", PROMPT)).outcome == "parked"


async def test_a_parked_request_keeps_all_that_a_retry_needs(pool):
    call = pool.call("a", PROMPT, await pool.send(prompt="x"), client="c", deadline_ms=2**42)
    await pool.store.route([call])
    redis, keys = pool.store.redis, pool.store.keys
    fields = await redis.hmget(keys.parked_requests, ["a:p", "a:t", "a:a"])
    assert fields == [call.payload.encode(), call.tokens, b"0"]
    assert await redis.zscore(keys.due, "a") == 2**42
    record = await pool.record("a")
    assert (record["state"], record["client"]) == ("parked", "c")
    assert await pool.pending() == 0


async def test_a_parked_request_is_dispatched_when_there_is_room(pool):
    await pool.ask("a", PROMPT)
    await pool.join(0)
    assert (await pool.retry("a", PROMPT)).outcome == "routed"
    assert await pool.parked_ids() == []
    assert [message.id for message in await pool.inbox(0)] == ["a"]


async def test_a_retry_without_room_changes_nothing(pool):
    await pool.ask("a", PROMPT)
    before = await everything(pool.store)
    assert (await pool.retry("a", PROMPT)).outcome == "parked"
    assert await everything(pool.store) == before


@pytest.mark.better(17)
@pytest.mark.bar(30)
async def test_past_the_parked_bound_a_request_is_overloaded_at_once(pool):
    await pool.set(max_parked=1)
    await pool.ask("a", PROMPT)
    routed = await pool.ask("b", PROMPT)
    assert (routed.outcome, routed.detail) == ("refused", "overloaded")
    (answer,) = await pool.answers("b")
    assert (answer.code, answer.error, answer.index) == ("overloaded", "overloaded_error", 0)
    assert (await pool.record("b"))["state"] == "failed"
    assert await pool.pending() == 0


async def test_a_parked_request_is_not_overloaded_by_its_own_retry(pool):
    await pool.set(max_parked=1)
    await pool.ask("a", PROMPT)
    assert (await pool.retry("a", PROMPT)).outcome == "parked"


# --- ends before a rank is chosen


async def test_a_request_cancelled_before_it_was_routed_is_answered_not_run(pool):
    await pool.join(0)
    await pool.store.cancel("a")
    routed = await pool.ask("a", PROMPT)
    assert (routed.outcome, routed.detail) == ("refused", "cancelled")
    assert [answer.code for answer in await pool.answers("a")] == ["cancelled"]
    assert (await pool.record("a"))["state"] == "cancelled"
    assert await pool.inbox(0) == []


@pytest.mark.parametrize("source", ["ingress", "parked"])
async def test_a_request_past_its_deadline_is_answered_not_run(pool, source):
    if source == "parked":
        await pool.ask("a", PROMPT)
    await pool.join(0)
    ask = pool.retry if source == "parked" else pool.ask
    routed = await ask("a", PROMPT, deadline_ms=1)
    assert (routed.outcome, routed.detail) == ("refused", "deadline_exceeded")
    assert [answer.code for answer in await pool.answers("a")] == ["deadline_exceeded"]
    assert await pool.inbox(0) == []
    assert await pool.parked_ids() == []


# --- what it leaves behind


async def test_the_worker_gets_what_the_caller_gave(pool):
    await pool.join(0)
    await pool.report(0, puts=pages_of(PROMPT[:4]))
    await pool.ask("a", PROMPT, client="c", max_tokens=9, attempt=2)
    (dispatch,) = await pool.inbox(0)
    assert isinstance(dispatch, Dispatch)
    assert (dispatch.id, dispatch.attempt, dispatch.hit, dispatch.tokens) == ("a", 2, 1, PROMPT)
    assert (dispatch.payload.client, dispatch.payload.sampling.max_tokens) == ("c", 9)


async def test_the_reservation_names_blocks_tokens_deadline_and_prefix(pool):
    await pool.join(0)
    await pool.report(0, puts=pages_of(PROMPT[:8]))
    await pool.ask("a", PROMPT, max_tokens=3)
    value = await pool.store.redis.hget(pool.store.keys.reservations(0), "a.0")
    blocks, tokens, deadline, deepest = value.decode().split(":")
    (seconds, micros) = await pool.store.redis.time()
    assert (blocks, tokens, deepest) == ("3", str(8 + 8 * 3), names(PROMPT)[-1])
    assert 0 < int(deadline) - (seconds * 1000 + micros // 1000) <= 30_000


async def test_the_record_says_where_and_why(pool):
    await pool.join(0)
    await pool.join(1)
    await pool.report(1, free=1)
    await pool.ask("a", PROMPT, client="c", deadline_ms=2**42)
    record = await pool.record("a")
    (dispatch,) = await pool.inbox(0)
    assert record == {
        "state": "routed",
        "rank": "0",
        "attempt": "0",
        "client": "c",
        "deadline": str(2**42),
        "entry": dispatch.entry,
        "reason": "no_prefix_hit",
        "terms": "0 0 5 32 0 0 16 ok;1 0 5 1 0 0 24 full 0 8 0 0",
    }


# --- what it refuses to read


@pytest.mark.parametrize(
    "damage",
    [
        {2: "1 2 3"},
        {2: "1 2 3 x"},
        {2: "1.5 2 3 4"},
        {2: "-1 2 3 4"},
        {2: ""},
        {3: "abc"},
        {4: "*@x"},
        {2: "1 2 3 4 high"},
    ],
)
async def test_a_call_that_cannot_be_read_writes_nothing_for_any_of_its_requests(pool, damage):
    await pool.join(0)
    good = pool.call("a", PROMPT, await pool.send(prompt="x")).to_args()
    bad = list(pool.call("b", PROMPT, await pool.send(prompt="x")).to_args())
    for position, value in damage.items():
        bad[position] = value
    before = await everything(pool.store)
    with pytest.raises(ProtocolError, match="cannot read meta, hashes or candidates of b"):
        await pool.store.call("route", *good, *bad)
    assert await everything(pool.store) == before


@pytest.mark.parametrize("count", [0, 1, 7, 9, 8 * 65])
async def test_a_call_of_another_shape_is_refused(pool, count):
    with pytest.raises(ProtocolError, match="1 to 64 requests"):
        await pool.store.call("route", *["x"] * count)


async def test_nothing_is_routed_before_the_pool_is_described(store):
    with pytest.raises(ConfigError, match="start lmpoold"):
        await store.call("route", *["x"] * 8)
