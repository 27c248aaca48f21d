"""Placement leases: quotas that make a rank cheaper for a hot prefix, for a while."""

import pytest

from lmpoold.protocol.errors import Conflict, NoCapacity, ProtocolError, Stale
from tests.store.pool import everything, names, pages_of

PROMPT = list(range(32))
HOT = names(PROMPT)[-1]


@pytest.fixture
async def token(pool):
    """Ranks 0 and 1 hold the prompt, rank 0 is a little busier; the leader's token."""
    for rank in range(3):
        await pool.join(rank, blocks=1000)
        puts = pages_of(PROMPT) if rank < 2 else {}
        await pool.report(rank, free=1000, wait=0 if rank else 100, puts=puts)
    await pool.set(w_decode=0)
    return await pool.store.acquire("d0", 60_000)


async def take(pool, request_id, prompt=PROMPT):
    """Route a request; its worker takes it at once, so that no reservation stays."""
    routed = await pool.ask(request_id, prompt)
    wait = 0 if routed.rank else 100
    await pool.report(routed.rank, free=1000, wait=wait, admitted=[f"{request_id}.0"])
    return routed.rank


@pytest.mark.better(12)
async def test_a_lease_draws_its_quota_and_no_more(pool, token):
    await pool.store.lease_grant(token, HOT, 8, 60_000, {0: 3})
    assert [await take(pool, f"q{n}") for n in range(5)] == [0, 0, 0, 1, 1]
    reasons = [(await pool.record(f"q{n}"))["reason"] for n in (0, 3)]
    assert reasons == ["placement_lease", "prefix_hit"]
    assert await pool.store.redis.hlen(pool.store.keys.leases) == 0


@pytest.mark.better(12)
async def test_a_lease_lowers_a_cost_and_does_not_override_it(pool, token):
    await pool.set(w_lease=50)
    await pool.store.lease_grant(token, HOT, 8, 60_000, {0: 3})
    assert await take(pool, "a") == 1


async def test_a_lease_is_worth_nothing_on_a_rank_that_does_not_hold_the_prefix(pool, token):
    await pool.report(0, free=1000, wait=100, dels=names(PROMPT)[-1:])
    await pool.store.lease_grant(token, HOT, 8, 60_000, {0: 3})
    assert await take(pool, "a") == 1


async def test_a_lease_counts_for_every_prompt_that_begins_with_its_prefix_and_no_other(
    pool, token
):
    await pool.store.lease_grant(token, HOT, 8, 60_000, {0: 9})
    assert await take(pool, "a", [*PROMPT, 7, 7, 7, 7, 7]) == 0
    assert await take(pool, "b", PROMPT[:28]) == 1
    assert await take(pool, "c", [*PROMPT[:28], 9, 9, 9, 9]) == 1


async def test_of_two_leases_the_deeper_one_counts(pool, token):
    await pool.store.lease_grant(token, names(PROMPT)[3], 4, 60_000, {1: 9})
    await pool.store.lease_grant(token, HOT, 8, 60_000, {0: 9})
    assert await take(pool, "a") == 0
    held = await pool.store.redis.hget(pool.store.keys.leases, names(PROMPT)[3])
    assert held.endswith(b":9")


@pytest.mark.better(12)
async def test_a_lease_ends_with_its_time(pool, token):
    await pool.store.lease_grant(token, HOT, 8, 0, {0: 3})
    assert await take(pool, "a") == 1
    assert await pool.store.lease_expire(token) == [HOT]
    assert await pool.store.redis.hlen(pool.store.keys.leases) == 0


@pytest.mark.better(10)
async def test_the_reaper_ends_leases_too(pool, token):
    await pool.store.lease_grant(token, HOT, 8, 0, {0: 3})
    assert await pool.store.reap(10) == [f"lease {HOT}"]
    assert await pool.store.reap(10) == []


@pytest.mark.better(12)
async def test_a_lease_dies_with_the_epoch_of_its_owner(pool, token):
    await pool.store.lease_grant(token, HOT, 8, 60_000, {0: 3})
    await pool.store.rank_down(0, pool.epochs[0])
    assert await pool.store.reap(10) == [f"lease {HOT}"]


async def test_a_new_epoch_of_an_owner_gains_nothing_from_the_old_one_s_lease(pool, token):
    await pool.store.lease_grant(token, HOT, 8, 60_000, {0: 3, 1: 1})
    await pool.store.rank_down(0, pool.epochs[0])
    await pool.join(0, blocks=1000)
    await pool.report(0, free=1000, wait=100, puts=pages_of(PROMPT))
    assert [await take(pool, f"q{n}") for n in range(3)] == [1, 1, 1]


async def test_a_lease_can_be_ended_by_name(pool, token):
    await pool.store.lease_grant(token, HOT, 8, 60_000, {0: 3})
    assert await pool.store.lease_expire(token, [HOT]) == [HOT]
    assert await pool.store.lease_expire(token, [HOT]) == []
    assert await take(pool, "a") == 1


async def test_a_lease_granted_again_begins_anew(pool, token):
    await pool.store.lease_grant(token, HOT, 8, 60_000, {0: 1})
    await pool.store.lease_grant(token, HOT, 8, 60_000, {0: 2})
    assert [await take(pool, f"q{n}") for n in range(3)] == [0, 0, 1]


async def test_only_the_leader_changes_leases(pool, token):
    await pool.store.lease_grant(token, HOT, 8, 60_000, {0: 3})
    await pool.store.redis.delete(pool.store.keys.lead)
    newer = await pool.store.acquire("d1", 60_000)
    before = await everything(pool.store)
    with pytest.raises(Stale):
        await pool.store.lease_grant(token, HOT, 8, 60_000, {0: 3})
    with pytest.raises(Stale):
        await pool.store.lease_expire(token)
    assert await everything(pool.store) == before
    assert await pool.store.lease_expire(newer, [HOT]) == [HOT]


@pytest.mark.parametrize(
    ("name", "depth", "sides", "error"),
    [
        (HOT, 8, {0: 0}, ProtocolError),
        (HOT, 8, {}, ProtocolError),
        ("short", 8, {0: 1}, ProtocolError),
        (HOT, "x", {0: 1}, ProtocolError),
        (HOT, 8, {0: 1, 9: 1}, Conflict),
    ],
)
async def test_a_lease_that_cannot_be_is_refused_and_nothing_written(
    pool, token, name, depth, sides, error
):
    before = await everything(pool.store)
    with pytest.raises(error):
        await pool.store.lease_grant(token, name, depth, 60_000, sides)
    assert await everything(pool.store) == before


@pytest.mark.bar(30)
async def test_leases_are_bounded(pool, token):
    for n in range(256):
        await pool.store.lease_grant(token, f"{n:032x}", 1, 60_000, {0: 1})
    with pytest.raises(NoCapacity, match="256 leases"):
        await pool.store.lease_grant(token, HOT, 8, 60_000, {0: 1})
    await pool.store.lease_grant(token, f"{7:032x}", 1, 60_000, {0: 2})
