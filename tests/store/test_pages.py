"""delta and swap: what a rank holds, whole versions only."""

import pytest

from lmpoold.protocol.errors import Conflict, ProtocolError, Stale
from lmpoold.protocol.messages import Output
from lmpoold.protocol.views import Counts
from lmpoold.store.said import delta_args, emit_args
from tests.store.pool import everything, names, pages_of

PROMPT = list(range(24))
COUNTS = Counts(9, 8, 7, 6, 5)


async def table(pool, rank: int = 0) -> dict[str, str]:
    raw = await pool.store.redis.hgetall(pool.store.keys.pages(rank))
    return {name.decode(): value.decode() for name, value in raw.items() if name != b"_"}


def text_of(pages) -> dict[str, str]:
    return {name: str(entry) for name, entry in pages.items()}


async def delta(pool, base: int, new: int, *, epoch: str = "", counts=COUNTS, **changes) -> int:
    changes.setdefault("puts", {})
    return await pool.store.delta(0, epoch or pool.epochs[0], base, new, counts, **changes)


# --- delta


async def test_a_delta_publishes_drops_and_counts_at_once(pool):
    await pool.join(0)
    pages = pages_of(PROMPT)
    assert await delta(pool, 0, 1, puts=pages) == 1
    assert await delta(pool, 1, 2, dels=names(PROMPT)[4:]) == 2
    assert await table(pool) == text_of(pages_of(PROMPT[:16]))
    row = await pool.row(0)
    assert (row.free, row.reclaimable, row.wait_tokens, row.run_tokens, row.sequences) == (
        9,
        8,
        7,
        6,
        5,
    )
    assert (row.version, row.pages) == (2, 4)


async def test_a_version_may_skip_numbers_but_not_states(pool):
    await pool.join(0)
    assert await delta(pool, 0, 7) == 7
    assert await delta(pool, 6, 8) == 7
    assert await delta(pool, 7, 8) == 8


@pytest.mark.bar(7)
async def test_a_repeated_delta_writes_nothing_and_counts_as_done(pool):
    await pool.join(0)
    await delta(pool, 0, 1, puts=pages_of(PROMPT))
    before = await everything(pool.store)
    assert await delta(pool, 0, 1, counts=Counts(1, 1, 1, 1, 1), dels=names(PROMPT)) == 1
    assert await everything(pool.store) == before


@pytest.mark.better(6)
@pytest.mark.bar(6)
async def test_a_delta_that_skips_a_state_names_the_version_held_and_writes_nothing(pool):
    await pool.join(0)
    before = await everything(pool.store)
    assert await delta(pool, 3, 4, puts=pages_of(PROMPT)) == 0
    assert await everything(pool.store) == before


@pytest.mark.bar(8, 12)
@pytest.mark.parametrize("call", ["delta", "swap"])
async def test_an_older_epoch_publishes_nothing(pool, call):
    old = await pool.join(0)
    await pool.join(0, held=old)
    pages = pages_of(PROMPT)
    if call == "delta":
        publish = delta(pool, 0, 1, epoch=old, puts=pages)
    else:
        publish = pool.store.swap(0, old, 1, COUNTS, pages)
    with pytest.raises(Stale, match="rank 0 is up at epoch"):
        await publish
    assert await table(pool) == {}
    assert (await pool.row(0)).version == 0


async def test_a_fenced_rank_publishes_nothing(pool):
    await pool.join(0)
    await pool.lose(0)
    await pool.store.reap(10)
    before = await everything(pool.store)
    with pytest.raises(Stale, match="rank 0 is down"):
        await delta(pool, 0, 1, puts=pages_of(PROMPT))
    assert await everything(pool.store) == before


@pytest.mark.bar(8)
async def test_a_rank_that_never_joined_reports_nothing(pool):
    with pytest.raises(Conflict, match="never joined"):
        await delta(pool, 0, 1, epoch="1")


@pytest.mark.parametrize("counts", ["", "1 2 3 4", "1 2 3 4 5 6", "1 2 3 4 -5", "a b c d e"])
@pytest.mark.parametrize("call", ["delta", "swap"])
async def test_counts_that_cannot_be_read_write_nothing(pool, call, counts):
    epoch = await pool.join(0)
    before = await everything(pool.store)
    args = (0, epoch, 0, 1, counts, 0, 0) if call == "delta" else (0, epoch, 1, counts, 0)
    with pytest.raises(ProtocolError, match="cannot read counts"):
        await pool.store.call(call, *args)
    assert await everything(pool.store) == before


async def test_a_delta_with_more_pages_than_lua_unpacks_at_once_is_whole(pool):
    await pool.join(0)
    tokens = [7] * (4 * 9000)
    pages = pages_of(tokens)
    await delta(pool, 0, 1, puts=pages)
    assert await table(pool) == text_of(pages)
    await delta(pool, 1, 2, dels=names(tokens))
    assert await table(pool) == {}


# --- reservations


async def test_an_admitted_request_gives_its_reservation_back_once(pool):
    await pool.join(0)
    await pool.ask("a", PROMPT)
    await pool.ask("b", PROMPT)
    assert (await pool.row(0)).reserved == 14
    await pool.report(0, admitted=["a.0"])
    assert (await pool.row(0)).reserved == 7
    await pool.report(0, admitted=["a.0"])
    assert (await pool.row(0)).reserved == 7


@pytest.mark.bar(27)
async def test_a_reservation_of_another_attempt_is_not_given_back(pool):
    await pool.join(0)
    await pool.ask("a", PROMPT)
    for stranger in ("a.1", "z.0"):
        with pytest.raises(Stale):
            await pool.store.delta(0, pool.epochs[0], 0, 1, COUNTS, admitted=[stranger], puts={})
    assert (await pool.row(0)).reserved == 7


@pytest.mark.parametrize(("base", "new"), [(0, 0), (5, 6)])
async def test_a_delta_that_is_not_applied_gives_no_reservation_back(pool, base, new):
    await pool.join(0)
    await pool.ask("a", PROMPT)
    await delta(pool, base, new, admitted=["a.0"])
    assert (await pool.row(0)).reserved == 7


# --- swap


async def test_a_swap_replaces_the_table_and_the_counts(pool):
    await pool.join(0)
    await delta(pool, 0, 1, puts=pages_of([9] * 8))
    await pool.store.swap(0, pool.epochs[0], 5, COUNTS, pages_of(PROMPT))
    assert await table(pool) == text_of(pages_of(PROMPT))
    row = await pool.row(0)
    assert (row.version, row.free, row.pages) == (5, 9, 6)


async def test_a_swapped_table_does_not_expire_as_its_stage_would_have(pool):
    await pool.join(0)
    await pool.store.swap(0, pool.epochs[0], 1, COUNTS, pages_of(PROMPT))
    assert await pool.store.redis.pttl(pool.store.keys.pages(0)) == -1
    assert not await pool.store.redis.exists(pool.store.keys.stage(0, pool.epochs[0], 1))


async def test_a_swap_of_more_pages_than_one_chunk_is_whole(pool):
    await pool.join(0)
    pages = pages_of([3] * (4 * 2500))
    await pool.store.swap(0, pool.epochs[0], 1, COUNTS, pages)
    assert await table(pool) == text_of(pages)


async def test_a_swap_of_nothing_leaves_an_empty_table(pool):
    await pool.join(0)
    await delta(pool, 0, 1, puts=pages_of(PROMPT))
    await pool.store.swap(0, pool.epochs[0], 2, COUNTS, {})
    assert await table(pool) == {}
    assert (await pool.row(0)).pages == 0


@pytest.mark.parametrize("announced", [0, 5, 7])
async def test_a_stage_of_another_size_is_refused_and_the_table_stays(pool, announced):
    epoch = await pool.join(0)
    await delta(pool, 0, 1, puts=pages_of([9] * 8))
    stage = pool.store.keys.stage(0, epoch, 2)
    fields = {"_": "format", **text_of(pages_of(PROMPT))}
    await pool.store.redis.hset(stage, mapping=fields)
    await pool.store.redis.expire(stage, 60)
    with pytest.raises(Conflict, match=rf"staged 7 fields, announced {announced} pages"):
        await pool.store.call("swap", 0, epoch, 2, str(COUNTS), announced)
    assert await table(pool) == text_of(pages_of([9] * 8))
    assert (await pool.row(0)).version == 1


async def test_a_stage_that_expired_is_refused(pool):
    epoch = await pool.join(0)
    with pytest.raises(Conflict, match="staged 0 fields"):
        await pool.store.call("swap", 0, epoch, 2, str(COUNTS), 0)


@pytest.mark.bar(6, 7)
async def test_an_older_snapshot_does_not_undo_a_later_delta(pool):
    await pool.join(0)
    await delta(pool, 0, 5, puts=pages_of(PROMPT))
    await pool.store.swap(0, pool.epochs[0], 4, COUNTS, {})
    assert await table(pool) == text_of(pages_of(PROMPT))
    assert (await pool.row(0)).version == 5


async def test_deltas_go_on_from_a_snapshot(pool):
    await pool.join(0)
    assert await delta(pool, 2, 3) == 0
    await pool.store.swap(0, pool.epochs[0], 3, COUNTS, pages_of(PROMPT[:8]))
    assert await delta(pool, 3, 4, puts=pages_of(PROMPT)) == 4
    assert await table(pool) == text_of(pages_of(PROMPT))


async def test_reservations_survive_a_swap(pool):
    await pool.join(0)
    await pool.ask("a", PROMPT)
    await pool.store.swap(0, pool.epochs[0], 1, COUNTS, {})
    assert (await pool.row(0)).reserved == 7


# --- waking


@pytest.mark.parametrize("how", ["delta", "swap"])
async def test_room_wakes_one_lmpoold_while_somebody_is_parked(pool, how):
    await pool.ask("a", PROMPT)
    epoch = await pool.join(0)
    for version in (1, 2):
        if how == "delta":
            await delta(pool, version - 1, version)
        else:
            await pool.store.swap(0, epoch, version, COUNTS, {})
    assert await pool.store.redis.llen(pool.store.keys.wake) == 1


async def test_nobody_is_woken_without_room_or_without_anybody_parked(pool):
    await pool.join(0)
    await delta(pool, 0, 1)
    await delta(pool, 1, 2, counts=Counts(0, 0, 0, 0, 0))
    await pool.ask("a", PROMPT)
    await delta(pool, 2, 3, counts=Counts(0, 0, 0, 0, 0))
    assert await pool.store.redis.llen(pool.store.keys.wake) == 0


# --- a server that forgot


async def test_a_request_that_the_pool_gave_to_nobody_is_not_reported_nor_answered(pool):
    await pool.join(0)
    before = await everything(pool.store)
    with pytest.raises(Stale, match=r"gave x\.0 to nobody"):
        await pool.report(0, admitted=["x.0"])
    pool.versions[0] -= 1
    said = emit_args(0, pool.epochs[0], 1, {"c": [Output("x", 0, 7, "t")]}, [])
    counts = Counts(1, 0, 0, 0, 1)
    changed = delta_args(0, pool.epochs[0], 0, 1, counts, ["x.0"], {}, [])
    with pytest.raises(Stale):
        await pool.store.step(said, changed)
    assert await everything(pool.store) == before


async def test_a_step_behind_a_gap_says_nothing(pool):
    await pool.join(0)
    before = await everything(pool.store)
    said = emit_args(0, pool.epochs[0], 5, {"c": [Output("x", 3, 7, "t")]}, [])
    changed = delta_args(0, pool.epochs[0], 4, 5, Counts(1, 0, 0, 0, 1), [], {}, [])
    assert await pool.store.step(said, changed) == 0
    assert await everything(pool.store) == before


async def test_a_heartbeat_that_knows_of_later_reports_than_the_server_fences_its_worker(pool):
    epoch = await pool.join(0)
    await pool.report(0)
    await pool.store.heartbeat(0, epoch, 60_000, 1)
    with pytest.raises(Stale, match="forgot reports up to version 2"):
        await pool.store.heartbeat(0, epoch, 60_000, 2)
