"""reap and emit: a request past its deadline is answered once, whatever its worker does."""

import pytest

from lmpoold.protocol.errors import RequestsOver
from lmpoold.protocol.messages import Cancel, Output
from lmpoold.protocol.views import Counts
from lmpoold.store.said import delta_args, emit_args
from tests.store.pool import ended

PROMPT = list(range(8))
COUNTS = Counts(32, 0, 0, 0, 0)


async def due(pool):
    return {raw.decode() for raw in await pool.store.redis.zrange(pool.store.keys.due, 0, -1)}


async def late(pool, *names):
    """Let the time of some requests be over."""
    await pool.store.redis.zadd(pool.store.keys.due, dict.fromkeys(names, 1))


@pytest.mark.better(10)
@pytest.mark.parametrize("stage", ["sent", "delivered", "admitted"])
async def test_a_request_whose_worker_says_nothing_is_answered_by_the_pool(pool, stage):
    await pool.join(0)
    await pool.ask("a", PROMPT, client="c")
    if stage != "sent":
        await pool.deliver(0)
    if stage == "admitted":
        await pool.report(0, admitted=["a.0"])
        await pool.emit(0, {"c": [Output("a", 0, 7, "t")]})
    await late(pool, "a")
    assert await pool.store.reap(10) == ["late a"]
    assert await pool.store.reap(10) == []
    answer = (await pool.answers("c"))[-1]
    assert (answer.code, answer.error) == ("deadline_exceeded", "timeout_error")
    assert answer.index == (1 if stage == "admitted" else 0)
    assert (await pool.record("a"))["state"] == "failed"
    row = await pool.row(0)
    assert (row.state, row.reserved, row.reserved_tokens) == ("up", 0, 0)
    (told,) = await pool.inbox(0)
    assert isinstance(told, Cancel)
    assert told.id == "a"


async def test_a_worker_that_is_well_has_a_while_to_end_a_late_request_itself(pool):
    await pool.join(0)
    await pool.ask("a", PROMPT, deadline_ms=2**42)
    score = await pool.store.redis.zscore(pool.store.keys.due, "a")
    assert score == 2**42 + 1000
    await pool.set(late_grace_ms=50)
    await pool.ask("b", PROMPT, deadline_ms=2**42)
    assert await pool.store.redis.zscore(pool.store.keys.due, "b") == 2**42 + 50


@pytest.mark.parametrize("how", ["emit", "step"])
async def test_what_its_worker_says_of_it_later_is_turned_away_whole(pool, how):
    await pool.join(0)
    for name in "ab":
        await pool.ask(name, PROMPT, client="c")
    first, second = await pool.deliver(0)
    await pool.report(0, admitted=["a.0", "b.0"])
    await late(pool, "a")
    await pool.store.reap(10)
    said = {
        "c": [Output("a", 0, 7, "t"), Output("b", 0, 8, "t"), Output("b", 1, None, "", "", "stop")]
    }

    async def say(outputs, *ends):
        if how == "emit":
            await pool.emit(0, outputs, ends)
            return
        pool.steps += 1
        args = emit_args(0, pool.epochs[0], pool.steps, outputs, ends)
        change = delta_args(0, pool.epochs[0], 1, 2, COUNTS, [], {}, [])
        assert await pool.store.step(args, change) == 2

    with pytest.raises(RequestsOver) as over:
        await say(said, ended(second))
    assert over.value.ids == ("a",)
    assert [output.id for output in await pool.answers("c")] == ["a"]
    with pytest.raises(RequestsOver):
        await say({}, ended(first), ended(second))
    await say({"c": said["c"][1:]}, ended(second))
    assert [output.id for output in await pool.answers("c")] == ["a", "b", "b"]
    assert (await pool.record("a"))["finish"] == "deadline_exceeded"
    assert (await pool.record("b"))["state"] == "done"


async def test_a_worker_that_takes_it_in_later_is_not_told_to_join_again(pool):
    await pool.join(0)
    await pool.ask("a", PROMPT)
    await late(pool, "a")
    await pool.store.reap(10)
    assert await pool.report(0, admitted=["a.0"]) == 1
    assert (await pool.record("a"))["state"] == "failed"


async def test_the_next_epoch_of_the_rank_may_speak_of_everything_it_has(pool):
    await pool.join(0)
    await pool.ask("a", PROMPT)
    await late(pool, "a")
    await pool.store.reap(10)
    await pool.lose(0)
    await pool.join(0)
    assert not await pool.store.redis.exists(pool.store.keys.over(0))


@pytest.mark.parametrize("moved", [True, False])
async def test_a_late_request_of_a_rank_that_is_down_is_answered_too(pool, moved):
    await pool.join(0)
    for name in "abc":
        await pool.ask(name, PROMPT)
    await pool.lose(0)
    await pool.store.reap(1)  # moves the first
    await pool.store.redis.hset(pool.store.keys.request("c"), "deadline", 1)
    await late(pool, "c")
    done = await pool.store.reap(10 if moved else 1)
    assert "late c" in done
    (answer,) = await pool.answers("c")
    assert ("waited for room" in answer.message) == moved
    await pool.store.reap(10)
    assert await pool.inbox(0) == []
    assert await pool.parked_ids() == ["a", "b"]
    assert not await pool.store.redis.exists(pool.store.keys.over(0))


@pytest.mark.parametrize("end", ["done", "cancelled", "refused", "worker"])
async def test_what_has_ended_is_due_no_more(pool, end):
    if end in ("done", "worker"):
        await pool.join(0)
    await pool.ask("a", PROMPT)
    assert await due(pool) == {"a"}
    if end == "done":
        (dispatch,) = await pool.deliver(0)
        await pool.finish(0, dispatch, 1)
    elif end == "worker":
        await pool.set(most_falls=1)
        await pool.lose(0)
        await pool.store.reap(10)
    elif end == "cancelled":
        await pool.store.cancel("a")
    else:
        await pool.store.finish("a", "parked", "a", "worker_failed", "tried thrice", "")
    assert await due(pool) == set()


async def test_a_request_that_moves_on_is_due_at_its_own_deadline(pool):
    await pool.join(0)
    await pool.ask("a", PROMPT, deadline_ms=2**42)
    await pool.lose(0)
    await pool.store.reap(10)
    assert await pool.store.redis.zscore(pool.store.keys.due, "a") == 2**42
    await pool.join(0)
    await pool.retry("a", PROMPT, deadline_ms=2**42)
    assert await pool.store.redis.zscore(pool.store.keys.due, "a") == 2**42 + 1000
