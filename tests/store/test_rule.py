"""The terms of the route rule one by one: prefixes in flight, owners, spills, origins, priority."""

import asyncio

import pytest

from lmpoold.protocol.views import parse_words
from tests.store.pool import BLOCK, IDENTITY, LONG_MS, names, pages_of

PROMPT = list(range(64))
TAILS = [[*PROMPT[:48], *[100 + n] * 15] for n in range(40)]
"""Siblings: twelve blocks in common, then each its own."""


async def reason(pool, request_id: str) -> str:
    return (await pool.record(request_id))["reason"]


async def terms(pool, request_id: str) -> dict[int, dict[str, str]]:
    """Rank -> what `explain` says of it as a candidate."""
    lines = await pool.store.explain(request_id)
    rows = [parse_words(line) for line in lines if "verdict=" in line]
    return {int(row["candidate"]): row for row in rows}


async def ranks(pool, count, blocks=1000):
    for rank in range(count):
        await pool.join(rank, blocks=blocks)
        await pool.report(rank, free=blocks)


# --- prefixes in flight


@pytest.mark.bar(20)
async def test_siblings_of_a_burst_follow_the_first_before_anything_is_published(pool):
    await pool.set(w_decode=0, w_flight=0)
    await ranks(pool, 4)
    routed = [await pool.ask(f"q{n}", TAILS[n]) for n in range(4)]
    assert len({one.rank for one in routed}) == 1
    assert [one.hit for one in routed] == [0] * 4
    assert [await reason(pool, f"q{n}") for n in range(4)] == [
        "no_prefix_hit",
        *["prefix_in_flight"] * 3,
    ]
    assert (await terms(pool, "q1"))[routed[0].rank]["deep"] == "12"


@pytest.mark.bar(20)
async def test_siblings_in_one_call_follow_one_another(pool):
    await pool.set(w_decode=0, w_flight=0)
    await ranks(pool, 4)
    calls = [pool.call(f"q{n}", TAILS[n], await pool.send(prompt="x")) for n in range(4)]
    assert len({one.rank for one in await pool.store.route(calls)}) == 1


async def test_a_burst_of_siblings_spreads_when_waiting_costs_more_than_computing(pool):
    await ranks(pool, 4)
    routed = [await pool.ask(f"q{n}", TAILS[n], max_tokens=20) for n in range(40)]
    loads = [sum(one.rank == rank for one in routed) for rank in range(4)]
    assert min(loads) >= 5


async def test_a_prefix_in_flight_is_forgotten_after_its_time(pool):
    await pool.set(flight_ttl_ms=1, w_decode=0)
    await ranks(pool, 2)
    first = await pool.ask("a", TAILS[0])
    await asyncio.sleep(0.02)
    second = await pool.ask("b", TAILS[1])
    assert second.rank != first.rank
    assert await reason(pool, "b") == "no_prefix_hit"


async def test_a_prefix_in_flight_ends_with_the_epoch_that_was_to_compute_it(pool):
    await pool.set(w_decode=0)
    await ranks(pool, 1)
    await pool.ask("a", TAILS[0])
    await pool.store.rank_down(0, pool.epochs[0])
    await ranks(pool, 1)
    await pool.ask("b", TAILS[1])
    assert (await terms(pool, "b"))[0]["deep"] == "0"


async def test_an_epoch_of_the_same_millisecond_does_not_inherit_what_was_in_flight(pool):
    await pool.set(w_decode=0)
    await ranks(pool, 1)
    call = pool.call("a", TAILS[0], await pool.send(prompt="x"))
    identity = [part for pair in IDENTITY.to_fields().items() for part in pair]
    # The server's clock stands still within a transaction.
    async with pool.store.redis.pipeline(transaction=True) as pipe:
        for words in (
            ("route", *call.to_args()),
            ("rank_down", 0, pool.epochs[0], 100, "left"),
            ("rank_up", 0, "", LONG_MS, 1000, len(identity) // 2, *identity),
        ):
            pipe.execute_command("FCALL", words[0], 1, pool.store.keys.load, *words[1:])
        *_, epoch = await pipe.execute()
    assert int(epoch) > int(pool.epochs[0])
    await pool.ask("b", TAILS[1])
    assert (await terms(pool, "b"))[0]["deep"] == "0"


async def test_the_published_prefix_takes_the_place_of_the_one_in_flight(pool):
    await ranks(pool, 2)
    first = await pool.ask("a", PROMPT)
    await pool.report(first.rank, free=900, admitted=["a.0"], puts=pages_of(PROMPT))
    await pool.ask("b", PROMPT)
    assert await reason(pool, "b") == "prefix_hit"
    assert (await terms(pool, "b"))[first.rank]["hit"] == "16"


# --- the owner of a prefix


async def test_an_owner_keeps_a_request_within_the_slack(pool):
    await pool.set(bypass_slack=40)
    await ranks(pool, 2)
    await pool.report(0, free=1000, wait=48 + 39, puts=pages_of(PROMPT[:48]))
    assert (await pool.ask("a", PROMPT)).rank == 0
    assert await reason(pool, "a") == "prefix_hit"


async def test_an_owner_loses_a_request_past_the_slack(pool):
    await pool.set(bypass_slack=40)
    await ranks(pool, 2)
    await pool.report(0, free=1000, wait=48 + 41, puts=pages_of(PROMPT[:48]))
    assert (await pool.ask("a", PROMPT)).rank == 1
    assert await reason(pool, "a") == "load_outweighs_prefix"


async def test_the_slack_is_never_more_than_the_prefix_saves(pool):
    await pool.set(bypass_slack=1000)
    await ranks(pool, 2)
    await pool.report(0, free=1000, wait=4 + 5, puts=pages_of(PROMPT[:4]))
    assert (await pool.ask("a", PROMPT)).rank == 1


# --- spills to a neighbour


@pytest.mark.parametrize(
    ("pairs", "queue", "slack", "taken"),
    [
        ("0-1", 100, 60, 1),
        ("1-0", 100, 60, 1),
        ("", 100, 60, 0),
        ("0-2", 100, 60, 2),
        ("0-1", 99, 60, 0),
        ("0-1", 100, 40, 0),
    ],
)
async def test_a_neighbour_takes_over_within_both_bounds(pool, pairs, queue, slack, taken):
    """The owner queues `queue`, holds 12 blocks: it costs queue + 16, an idle neighbour 64."""
    await pool.set(pairs=pairs, spill_gap=100, spill_slack=slack, w_wait=0.04, bypass_slack=0)
    await ranks(pool, 3)
    waiting = queue * 25
    await pool.report(0, free=1000, wait=waiting, puts=pages_of(PROMPT[:48]))
    for rank in (1, 2):
        await pool.report(rank, free=1000, puts={}, wait=0)
    await pool.set(w_prefill=3)  # the owner costs 100 + 48, the others 192
    assert (await pool.ask("a", PROMPT)).rank == taken
    assert await reason(pool, "a") == ("pair_spill" if taken else "prefix_hit")


@pytest.mark.better(13)
@pytest.mark.parametrize(("pairs", "taken"), [("", 1), ("0-2", 2)])
async def test_neighbours_are_those_whom_a_link_joins_unless_pairs_are_named(pool, pairs, taken):
    """As above, with what the leader found between the workers."""
    links = {"0>1": "100 1", "1>0": "100 1"}
    await pool.store.redis.hset(pool.store.keys.links, mapping=links)
    await pool.set(spill_gap=100, spill_slack=60, w_wait=0.04, w_prefill=3, bypass_slack=0)
    await pool.set(pairs=pairs)
    await ranks(pool, 3)
    await pool.report(0, free=1000, wait=2500, puts=pages_of(PROMPT[:48]))
    assert (await pool.ask("a", PROMPT)).rank == taken
    assert await reason(pool, "a") == "pair_spill"


# --- where the asker is


async def test_between_equals_the_origin_then_its_neighbour_is_nearer(pool):
    await pool.set(pairs="0-1")
    await ranks(pool, 3)
    assert (await pool.ask("a", [], origin=1)).rank == 1
    await pool.report(1, free=1000, wait=100)
    assert (await pool.ask("b", [], origin=1)).rank == 0
    hops = {rank: row["hop"] for rank, row in (await terms(pool, "b")).items()}
    assert hops == {0: "64", 1: "0", 2: "128"}


async def test_a_prefix_far_away_outweighs_the_way(pool):
    await pool.set(w_hop=10)
    await ranks(pool, 2)
    await pool.report(1, free=1000, puts=pages_of(PROMPT))
    assert (await pool.ask("a", PROMPT, origin=0)).rank == 1


async def test_a_request_kept_to_the_neighbours_of_its_origin_goes_to_those_whom_a_link_joins(pool):
    links = {"0>1": "100 1", "1>0": "100 1"}
    await pool.store.redis.hset(pool.store.keys.links, mapping=links)
    await pool.set(origin_hops=1)
    await ranks(pool, 3)
    await pool.ask("a", PROMPT, origin=0)
    assert {rank: row["hop"] for rank, row in (await terms(pool, "a")).items()} == {
        0: "0",
        1: "64",
    }


@pytest.mark.parametrize(("limit", "allowed"), [(0, {0}), (1, {0, 1}), (2, {0, 1, 2})])
async def test_candidates_lie_within_the_hops_from_the_origin(pool, limit, allowed):
    await pool.set(pairs="0-1,1-2", origin_hops=limit)
    await ranks(pool, 3)
    await pool.ask("a", PROMPT, origin=0)
    assert set(await terms(pool, "a")) == allowed


async def test_an_origin_that_is_gone_limits_nobody(pool):
    await pool.set(origin_hops=0)
    await ranks(pool, 2)
    await pool.lose(0)
    assert (await pool.ask("a", PROMPT, origin=0)).rank == 1
    assert (await pool.ask("b", PROMPT, origin=77)).rank == 1


async def test_a_parked_request_is_retried_under_the_origin_and_priority_it_came_with(pool):
    """What the daemon resumes carries them: see reading.py; here the function takes them again."""
    await pool.ask("a", PROMPT, origin=1, priority=5)
    await ranks(pool, 2)
    assert (await pool.retry("a", PROMPT, origin=1, priority=5)).rank == 1


# --- priority


async def test_an_urgent_request_counts_a_part_of_what_waits(pool):
    await pool.set(w_urgent=0.25, bypass_slack=0, w_flight=1)
    await ranks(pool, 2)
    await pool.report(0, free=1000, wait=100, puts=pages_of(PROMPT[:48]))
    assert (await pool.ask("a", PROMPT)).rank == 1
    await pool.report(1, free=1000, admitted=["a.0"])
    assert (await pool.ask("b", PROMPT, priority=1)).rank == 0
    assert (await terms(pool, "b"))[0]["queue"] == "25"


# --- overload


@pytest.mark.bar(21)
async def test_one_hot_prefix_at_twice_a_worker_s_capacity_spreads(pool):
    """A round brings two workers' worth of requests; each worker ends one worth of its queue."""
    worth = 8  # requests that one worker ends in a round
    await ranks(pool, 3)
    await pool.report(0, free=1000, puts=pages_of(PROMPT))
    queues: dict[int, list[str]] = {0: [], 1: [], 2: []}
    done = dict.fromkeys(queues, 0)
    longest = 0
    for round_number in range(30):
        for n in range(2 * worth):
            request_id = f"q{round_number}-{n}"
            routed = await pool.ask(request_id, [*PROMPT, n], max_tokens=16)
            queues[routed.rank].append(request_id)
        for rank, queue in queues.items():
            new = [name for name in queue if name.startswith(f"q{round_number}-")]
            ended, queues[rank] = queue[:worth], queue[worth:]
            done[rank] += len(ended)
            waiting = len(queues[rank]) * (8 * 16 + 1)
            pages = pages_of(PROMPT) if new else {}
            tickets = [f"{name}.0" for name in new]
            await pool.report(rank, free=1000, wait=waiting, admitted=tickets, puts=pages)
        longest = max(longest, *map(len, queues.values()))
    assert sum(done.values()) >= 28 * 2 * worth
    assert min(sorted(done.values())[1:]) >= 0.6 * max(done.values())
    assert longest <= 3 * worth


@pytest.mark.bar(21)
async def test_a_missing_prefix_never_goes_to_an_overloaded_worker(pool):
    await ranks(pool, 3)
    await pool.report(0, free=1000, wait=5000, run=5000, sequences=64, puts=pages_of(PROMPT))
    for n in range(30):
        prompt = [1000 + n] * (BLOCK * (n % 8) + 1)
        routed = await pool.ask(f"q{n}", prompt, origin=0 if n % 2 else -1)
        assert routed.rank != 0
        assert routed.hit == 0
        assert names(prompt)[:1] not in (names(PROMPT)[:1],)
