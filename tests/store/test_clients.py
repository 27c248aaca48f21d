"""max_client_requests: how many requests one client may have open."""

import pytest

from lmpoold.protocol.errors import NoCapacity
from tests.store.pool import ended

PROMPT = list(range(8))


@pytest.fixture
async def pool(pool):
    """Two at a time, and a worker with room."""
    await pool.set(max_client_requests=2)
    await pool.join(0, blocks=1000)
    await pool.report(0, free=1000)
    return pool


async def opened(pool, client="c") -> set[str]:
    return {raw.decode() for raw in await pool.store.redis.smembers(pool.store.keys.open(client))}


async def ask(pool, request_id, client="c", **options):
    return (await pool.ask(request_id, PROMPT, client=client, **options)).outcome


@pytest.mark.better(17)
async def test_past_its_bound_a_client_is_overloaded_at_once_and_others_are_not(pool):
    assert [await ask(pool, f"q{n}") for n in range(3)] == ["routed", "routed", "refused"]
    (answer,) = await pool.answers("c")
    assert (answer.id, answer.code) == ("q2", "overloaded")
    assert "2 requests open" in answer.message
    assert await ask(pool, "other", client="d") == "routed"
    assert await opened(pool) == {"q0", "q1"}


async def test_submit_says_so_before_anything_waits(pool):
    for n in range(2):
        await pool.store.submit(f"q{n}", "c", {"id": f"q{n}", "client": "c", "prompt": "x"})
    with pytest.raises(NoCapacity, match="client c has as many"):
        await pool.store.submit("q2", "c", {"id": "q2", "client": "c", "prompt": "x"})
    assert await pool.store.redis.xlen(pool.store.keys.ingress) == 2
    assert await pool.store.redis.exists(pool.store.keys.request("q2")) == 0


async def test_a_submitted_request_does_not_count_twice_when_it_is_routed(pool):
    for n in range(2):
        await pool.store.submit(f"q{n}", "c", {"id": f"q{n}", "client": "c", "prompt": "x"})
    reply = await pool.store.redis.xreadgroup("sched", "d0", {pool.store.keys.ingress: ">"})
    calls = [
        pool.call(f"q{n}", PROMPT, entry.decode(), client="c")
        for n, (entry, _) in enumerate(reply[0][1])
    ]
    assert [one.outcome for one in await pool.store.route(calls)] == ["routed", "routed"]


@pytest.mark.parametrize("end", ["done", "cancelled by its worker", "failed", "refused", "late"])
async def test_each_end_makes_room(pool, end):
    if end in ("done", "cancelled by its worker"):
        assert [await ask(pool, name) for name in ("a", "b")] == ["routed"] * 2
        first, _ = await pool.deliver(0)
        state = "done" if end == "done" else "cancelled"
        await pool.emit(0, {}, [ended(first, state=state)])
    elif end == "refused":
        await pool.store.cancel("a")
        assert [await ask(pool, name) for name in ("a", "b")] == ["refused", "routed"]
    else:
        await pool.store.drain(0, draining=True)
        assert [await ask(pool, name) for name in ("a", "b")] == ["parked"] * 2
        if end == "failed":
            await pool.store.finish("a", "parked", "c", "worker_failed", "tried thrice", "")
        else:
            await pool.store.redis.zadd(pool.store.keys.due, {"a": 1})
            await pool.store.reap(10)
        await pool.store.drain(0, draining=False)
    assert await opened(pool) == {"b"}
    assert await ask(pool, "x") == "routed"


async def test_a_request_between_two_workers_counts_once_and_is_not_refused(pool):
    assert [await ask(pool, name) for name in ("a", "b")] == ["routed"] * 2
    await pool.lose(0)
    await pool.store.reap(10)
    assert await opened(pool) == {"a", "b"}
    await pool.join(1)
    assert (await pool.retry("a", PROMPT, client="c")).outcome == "routed"


async def test_a_name_whose_request_is_gone_is_dropped_when_the_bound_meets_it(pool):
    await pool.store.redis.sadd(pool.store.keys.open("c"), "ghost", "spirit")
    assert [await ask(pool, name) for name in ("a", "b", "x")] == ["routed", "routed", "refused"]
    assert await opened(pool) == {"a", "b"}


async def test_without_a_bound_nothing_is_counted(pool):
    await pool.set(max_client_requests=0)
    assert [await ask(pool, f"q{n}") for n in range(5)] == ["routed"] * 5
    assert await opened(pool) == set()


async def test_a_bound_that_is_lifted_lets_everybody_in(pool):
    assert [await ask(pool, f"q{n}") for n in range(3)] == ["routed", "routed", "refused"]
    await pool.store.tune({"max_client_requests": "3"})
    assert [await ask(pool, f"r{n}") for n in range(2)] == ["routed", "refused"]
