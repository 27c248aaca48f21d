"""How transfer plans end: aborts, deaths, deadlines, on both servers."""

import pytest

from lmpoold.protocol.hashing import HASH_DIGITS
from lmpoold.protocol.transfer import SETTLED, Phase
from tests.store.plan import DST, SRC, begin_plan, finish


@pytest.fixture
async def plan(pool):
    return await begin_plan(pool)


# --- aborts


@pytest.mark.better(14)
@pytest.mark.bar(32)
@pytest.mark.parametrize("phase", [Phase.PREPARE, Phase.EXECUTE])
async def test_nobody_settles_before_both_have_stopped(plan, phase):
    await plan.to(phase)
    assert await plan.abort(DST) is Phase.ABORT
    assert (await plan.kinds(SRC))[-1] == "abort"
    assert "settle" not in await plan.kinds(DST)
    assert await plan.abort(SRC) is Phase.ABORTED
    assert (await plan.kinds(SRC))[-1] == (await plan.kinds(DST))[-1] == "settle"
    assert await plan.visible() == [True, False, False, False, False]
    await plan.settled()


async def test_a_side_that_asks_to_abort_without_having_stopped_is_told_to(plan):
    await plan.to(Phase.EXECUTE)
    assert await plan.abort(SRC, stopped=False) is Phase.ABORT
    assert (await plan.kinds(SRC))[-1] == (await plan.kinds(DST))[-1] == "abort"
    await plan.abort(SRC)
    assert await plan.abort(DST) is Phase.ABORTED


async def test_a_published_plan_only_goes_forward(plan):
    await plan.to(Phase.PUBLISH)
    assert await plan.abort(SRC) is Phase.PUBLISH
    assert await plan.abort(DST) is Phase.PUBLISH
    assert await plan.visible() == [True] * 5
    await finish(plan)


async def test_a_source_whose_sending_failed_after_all_had_landed_clears_up(plan):
    await plan.to(Phase.EXECUTE)
    assert await plan.publish() is Phase.PUBLISH
    assert await plan.abort(SRC) is Phase.PUBLISH
    assert (await plan.kinds(SRC))[-1] == "finalize"


async def test_a_source_clears_up_when_it_has_sent_and_all_has_landed(plan):
    await plan.to(Phase.EXECUTE)
    await plan.publish()
    assert "finalize" not in await plan.kinds(SRC)
    await plan.executed()
    assert (await plan.kinds(SRC))[-1] == "finalize"


# --- the reaper


@pytest.mark.bar(33)
@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in SETTLED])
@pytest.mark.parametrize("side", [SRC, DST])
async def test_a_plan_whose_side_dies_in_any_phase_settles(plan, phase, side):
    await plan.to(phase)
    await plan.pool.lose(side)
    await plan.pool.store.reap(100)
    other = DST if side == SRC else SRC
    await plan.reap()
    if phase is Phase.PUBLISH:
        await plan.finalize(other)
        assert await plan.phase() is Phase.FINALIZE
    else:
        await plan.abort(other)
        assert await plan.phase() is Phase.ABORTED
        assert (await plan.kinds(other))[-1] == "settle"
    await plan.settled()


@pytest.mark.bar(33)
async def test_a_plan_whose_sides_both_die_settles_without_a_word(plan):
    await plan.to(Phase.EXECUTE)
    for rank in (SRC, DST):
        await plan.pool.lose(rank)
    await plan.pool.store.reap(100)
    await plan.reap()
    assert await plan.phase() is Phase.ABORTED
    await plan.settled()


@pytest.mark.better(10)
@pytest.mark.bar(33, 34)
@pytest.mark.parametrize("phase", [Phase.PREPARE, Phase.EXECUTE])
async def test_a_phase_that_lasts_too_long_is_aborted(plan, phase):
    await plan.to(phase)
    assert await plan.reap() == []
    await plan.late()
    assert await plan.reap() == ["p aborted"]
    record = await plan.pool.store.redis.hget(plan.pool.store.keys.plan("p"), "reason")
    assert record.decode() == f"late_{phase}"
    assert (await plan.kinds(SRC))[-1] == (await plan.kinds(DST))[-1] == "abort"


@pytest.mark.parametrize(("phase", "order"), [(Phase.ABORT, "abort"), (Phase.PUBLISH, "finalize")])
async def test_a_side_that_is_silent_is_asked_again(plan, phase, order):
    await plan.to(phase)
    if phase is Phase.PUBLISH:
        await plan.finalize(SRC)
    said = len(await plan.kinds(SRC))
    await plan.late()
    assert await plan.reap() == ["p asked again"]
    assert (await plan.kinds(DST))[-1] == order
    assert len(await plan.kinds(SRC)) == said, "the side that has spoken is left alone"
    assert await plan.reap() == [], "its new deadline has not come"


@pytest.mark.better(10)
@pytest.mark.bar(34)
async def test_a_living_side_that_stays_silent_too_long_is_fenced(plan):
    await plan.to(Phase.ABORT)
    await plan.pool.set(plan_fence_ms=1)
    await plan.pool.store.redis.hset(plan.pool.store.keys.plan("p"), "at_abort", 1)
    await plan.late()
    assert await plan.reap() == ["p fenced a silent side"]
    assert (await plan.pool.row(DST)).state == "down"
    assert (await plan.pool.row(SRC)).state == "up"
    await plan.reap()
    assert await plan.phase() is Phase.ABORTED


async def test_another_leader_goes_on_with_the_plans_of_the_last_one(plan):
    await plan.to(Phase.EXECUTE)
    await plan.pool.store.redis.delete(plan.pool.store.keys.lead)
    plan.token = await plan.pool.store.acquire("another", 60_000)
    await plan.late()
    assert await plan.reap() == ["p aborted"]
    await plan.abort(SRC)
    assert await plan.abort(DST) is Phase.ABORTED


@pytest.mark.bar(34)
async def test_live_plans_are_listed_with_phase_and_age(plan):
    await plan.to(Phase.EXECUTE)
    (row,) = await plan.plans.live()
    assert (row.id, row.phase, row.source, row.destination, row.blocks) == ("p", "execute", 0, 1, 4)
    assert row.age_ms >= 0
    assert 0 < row.left_ms <= 10_000
    await finish(plan)
    assert await plan.plans.live() == []


async def test_hashes_that_are_no_names_begin_nothing(plan):
    for hashes in ([], ["0" * (HASH_DIGITS - 1)]):
        with pytest.raises(Exception, match="cannot read the hashes"):
            await plan.begin(hashes=hashes)
    assert await plan.phase() is None
