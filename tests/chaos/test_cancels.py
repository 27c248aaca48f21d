"""A request may be cancelled wherever it is: it ends once, with that word, and leaves nothing."""

from __future__ import annotations

import asyncio
import signal

import pytest

from lmpoold.protocol.errors import RequestFailed
from lmpoold.protocol.keys import Keyspace
from tests.chaos.hang import GO_ON, HANG

pytestmark = pytest.mark.timeout(90)
KEYS = Keyspace()
LONG = 900


async def submit(pool, name: str, count: int = LONG) -> None:
    tokens = [7] * 32 + [len(name)] * 20
    await pool.client.submit(request_id=name, tokens=tokens, max_tokens=count, ignore_eos=True)


async def until_state(pool, name: str, *states: str) -> None:
    async with asyncio.timeout(20):
        while True:
            state = await pool.redis.hget(KEYS.request(name), "state")
            if state is not None and state.decode() in states:
                return
            await asyncio.sleep(0.01)


async def cancelled(pool, name: str, *, at: int = -1) -> int:
    """Read a stream to its end, which must be that it was cancelled; returns its tokens.

    After `at` tokens it is the reader who cancels.
    """
    tokens, code = 0, ""
    try:
        async with asyncio.timeout(20):
            async for _ in pool.client.stream(name):
                tokens += 1
                if tokens == at:
                    await pool.client.cancel(name)
    except RequestFailed as end:
        code = end.code
    assert code == "cancelled"
    return tokens


@pytest.mark.better(17)
async def test_a_request_is_cancelled_at_every_stage(scene):
    async with scene(workers=1) as pool:
        daemon, worker = pool.cast.children["lmpoold 0"], pool.cast.children["worker 0"]

        # before it is sent: whoever sends it later is told
        assert await pool.client.cancel("early") == "UNKNOWN"
        await submit(pool, "early")
        assert await cancelled(pool, "early") == 0

        # in ingress, read by nobody
        daemon.kill()
        await submit(pool, "queued")
        assert await pool.client.cancel("queued") == "queued"
        daemon.allow()
        assert await cancelled(pool, "queued") == 0

        # parked, for want of a rank that takes requests
        await pool.store.drain(0, draining=True)
        await submit(pool, "parked")
        await until_state(pool, "parked", "parked")
        assert await pool.client.cancel("parked") == "parked"
        assert await cancelled(pool, "parked") == 0
        await pool.store.drain(0, draining=False)

        # given to a worker that has not looked yet
        worker.signal(signal.SIGSTOP)
        await submit(pool, "routed")
        await until_state(pool, "routed", "routed")
        await pool.client.cancel("routed")
        worker.signal(signal.SIGCONT)
        assert await cancelled(pool, "routed") < LONG

        # in a step that does not end for a while
        await submit(pool, "hanging")
        await pool.until_running()
        worker.signal(HANG)
        await pool.client.cancel("hanging")
        worker.signal(GO_ON)
        assert await cancelled(pool, "hanging") < LONG

        # while it is being answered
        await submit(pool, "running")
        assert 5 <= await cancelled(pool, "running", at=5) < LONG

        # between the worker that died and the next one
        await submit(pool, "fallen")
        await pool.until_running()
        worker.kill()
        await pool.until_down(0)
        await until_state(pool, "fallen", "parked")
        assert await pool.client.cancel("fallen") == "parked"
        assert await cancelled(pool, "fallen") < LONG
        worker.allow()
        await pool.until_up({0})

        # when it is over: nothing changes
        await submit(pool, "over", 5)
        assert len([one async for one in pool.client.stream("over")]) == 5
        assert await pool.client.cancel("over") == "done"
        assert await pool.leftovers(1) == []
