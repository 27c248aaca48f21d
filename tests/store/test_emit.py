"""admit, emit, finish: from the worker's queue to the last answer."""

import pytest

from lmpoold.protocol.errors import Conflict, Stale
from lmpoold.protocol.messages import Output
from tests.store.pool import ended, everything, pages_of

PROMPT = list(range(8))


async def running(pool, request_id: str = "a", **options):
    """Route a request to rank 0 and let its worker take it; returns the dispatch."""
    await pool.ask(request_id, PROMPT, **options)
    (dispatch,) = await pool.deliver(0)
    assert await pool.store.admit(0, pool.epochs[0], [(request_id, dispatch.attempt)]) == []
    return dispatch


async def journal(pool, request_id: str) -> bytes | None:
    return await pool.store.redis.get(pool.store.keys.emitted(request_id))


# --- admit


async def test_an_admitted_request_is_running(pool):
    await pool.join(0)
    await running(pool)
    assert (await pool.record("a"))["state"] == "running"


async def test_admitting_twice_drops_nothing(pool):
    await pool.join(0)
    await running(pool)
    assert await pool.store.admit(0, pool.epochs[0], [("a", 0)]) == []


async def test_a_worker_drops_what_it_was_not_given_or_not_this_time(pool):
    epoch = await pool.join(0)
    await pool.ask("a", PROMPT)
    await pool.ask("b", PROMPT)
    assert await pool.store.admit(0, epoch, [("a", 1), ("b", 0), ("z", 0)]) == ["a", "z"]
    assert (await pool.record("a"))["state"] == "routed"
    assert await pool.record("z") == {}


async def test_a_worker_drops_what_has_ended(pool):
    await pool.join(0)
    dispatch = await running(pool)
    await pool.finish(0, dispatch, 1)
    assert await pool.store.admit(0, pool.epochs[0], [("a", 0)]) == ["a"]
    assert (await pool.record("a"))["state"] == "done"


async def test_a_fenced_worker_admits_nothing(pool):
    old = await pool.join(0)
    await pool.ask("a", PROMPT)
    await pool.join(0, held=old)
    with pytest.raises(Stale):
        await pool.store.admit(0, old, [("a", 0)])


# --- emit


async def test_a_step_reaches_each_client_as_one_entry(pool):
    await pool.join(0)
    await running(pool, "a", client="c")
    await running(pool, "b", client="c")
    await running(pool, "d")
    step = {
        "c": [Output("a", 0, 11, "x"), Output("b", 0, 12, "y")],
        "d": [Output("d", 0, 13, "z")],
    }
    await pool.emit(0, step)
    assert await pool.answers("c") == step["c"]
    assert await pool.answers("d") == step["d"]
    assert await pool.store.redis.xlen(pool.store.keys.out("c")) == 1


async def test_the_journal_grows_by_what_was_emitted(pool):
    await pool.join(0)
    await running(pool)
    await pool.emit(0, {"a": [Output("a", 0, 11, "x"), Output("a", 1, 12)]})
    await pool.emit(0, {"a": [Output("a", 2, 0, "y")]})
    assert await journal(pool, "a") == b"11 12 0 "
    assert await pool.store.redis.ttl(pool.store.keys.emitted("a")) > 0


async def test_a_repeated_step_is_written_once(pool):
    epoch = await pool.join(0)
    await running(pool)
    step = {"a": [Output("a", 0, 11, "x")]}
    await pool.store.emit(0, epoch, 1, step)
    before = await everything(pool.store)
    await pool.store.emit(0, epoch, 1, step)
    assert await everything(pool.store) == before
    await pool.store.emit(0, epoch, 2, {"a": [Output("a", 1, 12, "y")]})
    assert [output.token for output in await pool.answers("a")] == [11, 12]


@pytest.mark.bar(7)
async def test_a_step_that_arrives_again_after_later_ones_is_not_written(pool):
    epoch = await pool.join(0)
    await running(pool)
    for step in range(1, 13):
        await pool.store.emit(0, epoch, step, {"a": [Output("a", step - 1, 10 + step, "x")]})
    before = await everything(pool.store)
    for step in (2, 11, 9):
        await pool.store.emit(0, epoch, step, {"a": [Output("a", step - 1, 10 + step, "x")]})
    assert await everything(pool.store) == before


async def test_the_same_step_number_of_the_next_epoch_is_another_step(pool):
    first = await pool.join(0)
    await pool.store.emit(0, first, 1, {"a": [Output("a", 0, 11, "x")]})
    second = await pool.join(0, held=first)
    await pool.store.emit(0, second, 1, {"a": [Output("a", 1, 12, "y")]})
    assert [output.token for output in await pool.answers("a")] == [11, 12]


async def test_an_end_is_state_acknowledgement_removal_and_record_in_one(pool):
    await pool.join(0)
    await pool.report(0, puts=pages_of(PROMPT[:4]))
    dispatch = await running(pool)
    await pool.finish(0, dispatch, 11, 12)
    record = await pool.record("a")
    assert record["state"] == "done"
    assert (record["finish"], record["emitted"]) == ("stop", "2")
    assert (record["prompt_tokens"], record["cached_tokens"]) == ("8", "4")
    assert await pool.inbox(0) == []
    (group,) = await pool.store.redis.xinfo_groups(pool.store.keys.worker(0))
    assert group["pending"] == 0
    assert await journal(pool, "a") is None
    assert [(o.index, o.token, o.finish_reason) for o in await pool.answers("a")] == [
        (0, 11, ""),
        (1, 12, ""),
        (2, None, "stop"),
    ]


@pytest.mark.bar(25)
async def test_an_end_gives_the_reservation_back_if_no_report_did(pool):
    await pool.join(0)
    dispatch = await running(pool)
    assert (await pool.row(0)).reserved == 3
    await pool.finish(0, dispatch)
    assert (await pool.row(0)).reserved == 0


async def test_ends_are_counted_by_rank(pool):
    await pool.join(0)
    await pool.report(0, puts=pages_of(PROMPT[:4]))
    for request_id, tokens in (("a", (1,)), ("b", (1, 2, 3))):
        dispatch = await running(pool, request_id)
        await pool.finish(0, dispatch, *tokens)
    row = await pool.row(0)
    assert (row.requests, row.prompt_tokens, row.cached_tokens, row.output_tokens) == (2, 16, 8, 4)
    assert row.hit_rate == 0.5


async def test_counts_of_a_rank_outlive_its_worker(pool):
    await pool.join(0)
    await pool.finish(0, await running(pool), 1)
    await pool.join(0, held=pool.epochs[0])
    assert (await pool.row(0)).requests == 1


@pytest.mark.parametrize("how", ["joined again", "reaped"])
async def test_a_fenced_worker_emits_nothing(pool, how):
    old = await pool.join(0)
    dispatch = await running(pool)
    if how == "reaped":
        await pool.lose(0)
        await pool.store.reap(10)
    else:
        await pool.join(0, held=old)
    before = await everything(pool.store)
    with pytest.raises(Stale):
        await pool.store.emit(0, old, 1, {"a": [Output("a", 0, 1, "x")]}, [ended(dispatch)])
    assert await everything(pool.store) == before


async def test_a_rank_that_never_joined_emits_nothing(pool):
    with pytest.raises(Conflict):
        await pool.store.emit(4, "1", 1, {"a": [Output("a", 0, 1, "x")]})
    assert await pool.answers("a") == []


async def test_an_output_stream_is_cut_and_ends_after_its_last_entry(pool):
    await pool.set(out_maxlen=10, out_ttl_ms=50_000)
    await pool.join(0)
    for index in range(400):
        await pool.emit(0, {"a": [Output("a", index, 1, "x")]})
    assert await pool.store.redis.xlen(pool.store.keys.out("a")) <= 210
    assert 0 < await pool.store.redis.pttl(pool.store.keys.out("a")) <= 50_000


# --- a stream that goes on elsewhere


@pytest.mark.better(7)
async def test_a_moved_request_keeps_its_journal_for_the_next_worker(pool):
    await pool.join(0)
    await running(pool)
    await pool.emit(0, {"a": [Output("a", 0, 11, "x")]})
    await pool.lose(0)
    await pool.store.reap(10)
    assert await pool.parked_ids() == ["a"]
    assert await journal(pool, "a") == b"11 "
    await pool.join(1)
    assert (await pool.retry("a", [*PROMPT, 11])).rank == 1
    (dispatch,) = await pool.inbox(1)
    assert (dispatch.attempt, dispatch.tokens[-1]) == (1, 11)


@pytest.mark.better(7)
async def test_the_first_worker_cannot_end_what_the_second_runs(pool):
    old = await pool.join(0)
    first = await running(pool)
    await pool.lose(0)
    await pool.store.reap(10)
    await pool.join(1)
    await pool.retry("a", PROMPT)
    with pytest.raises(Stale):
        await pool.store.emit(0, old, 9, {"a": [Output("a", 0, 5, "x")]}, [ended(first)])
    assert (await pool.record("a"))["state"] == "routed"


# --- finish


async def bad_entry(pool, request_id: str = "a", client: str = "c"):
    return await pool.send(id=request_id, client=client, prompt="", nonsense="1")


def refusal(request_id, entry, *, excerpt="{}"):
    return (request_id, entry, "c", "invalid_request", "`prompt` is empty", excerpt)


async def test_an_unreadable_entry_is_answered_kept_and_gone_from_ingress(pool):
    entry = await bad_entry(pool)
    assert await pool.store.finish(*refusal("a", entry))
    (answer,) = await pool.answers("c")
    assert (answer.id, answer.code, answer.message) == ("a", "invalid_request", "`prompt` is empty")
    assert (answer.error, answer.index, answer.ends) == ("invalid_request_error", 0, True)
    ((_, dead),) = await pool.store.redis.xrange(pool.store.keys.dead)
    assert dead == {
        b"entry": entry.encode(),
        b"id": b"a",
        b"client": b"c",
        b"code": b"invalid_request",
        b"reason": b"`prompt` is empty",
        b"excerpt": b"{}",
    }
    assert await pool.store.redis.xlen(pool.store.keys.ingress) == 0
    assert (await pool.record("a"))["state"] == "failed"


async def test_an_unreadable_entry_is_answered_once(pool):
    entry = await bad_entry(pool)
    await pool.store.finish(*refusal("a", entry))
    before = await everything(pool.store)
    assert not await pool.store.finish(*refusal("a", entry))
    assert await everything(pool.store) == before


async def test_a_refusal_without_an_excerpt_leaves_no_dead_entry(pool):
    entry = await bad_entry(pool)
    await pool.store.finish(*refusal("a", entry, excerpt=""))
    assert await pool.store.redis.xlen(pool.store.keys.dead) == 0
    assert len(await pool.answers("c")) == 1


async def test_a_bad_entry_does_not_end_the_running_request_of_its_id(pool):
    await pool.join(0)
    await running(pool)
    entry = await bad_entry(pool)
    assert not await pool.store.finish(*refusal("a", entry))
    assert (await pool.record("a"))["state"] == "running"
    assert await pool.answers("c") == []


async def test_a_parked_request_is_finished_once(pool):
    await pool.ask("a", PROMPT)
    assert await pool.store.finish("a", "parked", "a", "worker_failed", "tried thrice", "")
    assert not await pool.store.finish("a", "parked", "a", "worker_failed", "tried thrice", "")
    (answer,) = await pool.answers("a")
    assert (answer.code, answer.error) == ("worker_failed", "server_error")
    assert await pool.parked_ids() == []


async def test_an_error_after_tokens_is_numbered_behind_them(pool):
    await pool.join(0)
    await running(pool)
    await pool.emit(0, {"a": [Output("a", 0, 11, "x"), Output("a", 1, 12, "y")]})
    await pool.lose(0)
    await pool.store.reap(10)
    await pool.store.finish("a", "parked", "a", "worker_failed", "tried thrice", "")
    assert (await pool.answers("a"))[-1].index == 2
    assert await journal(pool, "a") is None


async def test_a_request_named_like_the_journal_of_another_is_a_request_of_its_own(pool):
    await pool.join(0)
    await running(pool, "a")
    await pool.emit(0, {"a": [Output("a", 0, 11, "x")]})
    for name in ("a:out", "a:emitted", "a:p", "a.0"):
        assert (await pool.ask(name, PROMPT)).outcome == "routed"
    assert await journal(pool, "a") == b"11 "
