"""submit: a request enters once, and only while there is room."""

import pytest

from lmpoold.protocol.errors import NoCapacity, ProtocolError
from tests.store.pool import everything

VALUES = {"id": "a", "client": "c", "prompt": "why", "max_tokens": "3"}


async def test_a_submitted_request_lies_in_ingress_as_it_was_given(pool):
    entry = await pool.store.submit("a", "c", VALUES)
    ((found, values),) = await pool.store.redis.xrange(pool.store.keys.ingress)
    assert found.decode() == entry
    assert {name.decode(): value.decode() for name, value in values.items()} == VALUES


async def test_a_submitted_request_is_on_record_as_queued(pool):
    await pool.store.submit("a", "c", VALUES)
    assert await pool.record("a") == {"state": "queued", "client": "c"}


async def test_submitting_an_id_twice_sends_it_once(pool):
    assert await pool.store.submit("a", "c", VALUES)
    before = await everything(pool.store)
    assert await pool.store.submit("a", "c", VALUES) == ""
    assert await everything(pool.store) == before


async def test_an_id_that_was_served_is_not_served_again(pool):
    await pool.join(0)
    await pool.ask("a", [1, 2])
    (dispatch,) = await pool.deliver(0)
    await pool.finish(0, dispatch, 5)
    assert await pool.store.submit("a", "c", VALUES) == ""


@pytest.mark.better(17)
@pytest.mark.bar(30)
async def test_a_full_ingress_refuses_and_keeps_no_record(pool):
    await pool.set(max_ingress=2)
    for request_id in ("a", "b"):
        await pool.store.submit(request_id, "c", VALUES)
    with pytest.raises(NoCapacity, match="ingress backlog is full"):
        await pool.store.submit("z", "c", VALUES)
    assert await pool.record("z") == {}
    assert await pool.store.redis.xlen(pool.store.keys.ingress) == 2


async def test_a_routed_request_makes_room_in_ingress(pool):
    await pool.set(max_ingress=1)
    await pool.join(0)
    await pool.ask("a", [1, 2])
    assert await pool.store.submit("b", "c", VALUES)


async def test_a_cancel_that_came_first_meets_its_request(pool):
    await pool.join(0)
    assert await pool.store.cancel("a") == "UNKNOWN"
    entry = await pool.store.submit("a", "c", VALUES)
    assert entry
    assert await pool.store.redis.ttl(pool.store.keys.request("a")) == -1
    await pool.store.redis.xreadgroup("sched", "d0", {pool.store.keys.ingress: ">"})
    (routed,) = await pool.store.route([pool.call("a", [1, 2], entry, client="c")])
    assert (routed.outcome, routed.detail) == ("refused", "cancelled")
    assert [output.code for output in await pool.answers("c")] == ["cancelled"]


@pytest.mark.parametrize("args", [("a", "c"), ("a", "c", "prompt"), ()])
async def test_a_submit_without_whole_pairs_writes_nothing(pool, args):
    before = await everything(pool.store)
    with pytest.raises(ProtocolError):
        await pool.store.call("submit", *args)
    assert await everything(pool.store) == before
