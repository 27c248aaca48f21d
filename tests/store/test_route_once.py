"""Route: an entry is dispatched once, whoever else reads it."""

import asyncio

import pytest

PROMPT = list(range(16))


async def test_an_entry_is_dispatched_once_however_often_it_is_routed(pool):
    await pool.join(0)
    call = pool.call("a", PROMPT, await pool.send(prompt="x"))
    outcomes = [one.outcome for one in await pool.store.route([call, call])]
    outcomes += [one.outcome for one in await pool.store.route([call])]
    assert outcomes == ["routed", "dup", "dup"]
    assert len(await pool.inbox(0)) == 1


async def test_an_entry_is_not_dispatched_again_when_its_record_is_gone(pool):
    await pool.join(0)
    call = pool.call("a", PROMPT, await pool.send(prompt="x"))
    await pool.store.route([call])
    await pool.store.redis.delete(pool.store.keys.request("a"))
    await pool.store.redis.zrem(pool.store.keys.due, "a")
    assert [one.outcome for one in await pool.store.route([call])] == ["dup"]
    assert len(await pool.inbox(0)) == 1


async def test_two_daemons_that_read_the_same_entries_dispatch_each_once(pool):
    for rank in range(2):
        await pool.join(rank, blocks=1000)
        await pool.report(rank, free=1000)
    calls = [pool.call(f"q{i}", [i] * 5, await pool.send(prompt="x")) for i in range(40)]
    both = [pool.store.route(calls[start : start + 8]) for start in range(0, 40, 8)]
    both += [pool.store.route(calls[start : start + 10]) for start in range(0, 40, 10)]
    replies = [one for batch in await asyncio.gather(*both) for one in batch]
    assert [one.outcome for one in replies].count("routed") == 40
    sent = [message.id for rank in range(2) for message in await pool.inbox(rank)]
    assert sorted(sent) == sorted(call.id for call in calls)


@pytest.mark.parametrize("forgotten", [False, True])
async def test_of_a_batch_only_what_another_daemon_took_is_left_out(pool, forgotten):
    await pool.join(0)
    calls = [pool.call(f"q{i}", [i] * 5, await pool.send(prompt="x")) for i in range(4)]
    await pool.store.route([calls[1], calls[3]])
    if forgotten:
        await pool.store.redis.delete(*(pool.store.keys.request(name) for name in ("q1", "q3")))
        await pool.store.redis.zrem(pool.store.keys.due, "q1", "q3")
    outcomes = [one.outcome for one in await pool.store.route(calls)]
    assert outcomes == ["routed", "dup", "routed", "dup"]
    assert sorted(message.id for message in await pool.inbox(0)) == ["q0", "q1", "q2", "q3"]


async def test_an_entry_that_its_producer_trimmed_is_served_beside_one_that_was_taken(pool):
    await pool.join(0)
    calls = [pool.call(f"q{i}", [i] * 5, await pool.send(prompt="x")) for i in range(2)]
    await pool.store.route([calls[1]])
    await pool.store.redis.xtrim(pool.store.keys.ingress, maxlen=0, approximate=False)
    assert [one.outcome for one in await pool.store.route(calls)] == ["routed", "dup"]


async def test_an_id_sent_twice_is_dispatched_once(pool):
    await pool.join(0)
    await pool.ask("a", PROMPT)
    row = await pool.row(0)
    assert (await pool.ask("a", PROMPT)).outcome == "dup"
    assert await pool.row(0) == row
    assert await pool.pending() == 0


async def test_a_parked_request_is_dispatched_by_one_of_two_retries(pool):
    await pool.ask("a", PROMPT)
    await pool.join(0)
    assert (await pool.retry("a", PROMPT)).outcome == "routed"
    assert (await pool.retry("a", PROMPT)).outcome == "dup"


async def test_a_routed_entry_is_gone_from_ingress(pool):
    await pool.join(0)
    await pool.ask("a", PROMPT)
    assert await pool.store.redis.xlen(pool.store.keys.ingress) == 0
    assert await pool.pending() == 0
