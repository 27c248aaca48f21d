"""What a client reads of its answers: every token once, whatever happens to its connections."""

import asyncio

import pytest
from redis.exceptions import ConnectionError as ServerLost

from lmpoold.client import PoolClient
from lmpoold.protocol.errors import PoolUnknown
from lmpoold.protocol.keys import Keyspace
from lmpoold.protocol.messages import Output
from lmpoold.store.scripts import PoolStore
from tests.store.pool import begin, ended


@pytest.mark.parametrize("error", [ServerLost("again"), PoolUnknown("not described yet")])
async def test_answers_read_just_before_the_next_loss_are_handed_over(
    redis, server_url, monkeypatch, error
):
    pool = await begin(PoolStore(redis, Keyspace()))
    async with PoolClient(server_url) as client:
        request_id = await client.submit(tokens=[1, 2], max_tokens=3)
        await pool.join(0)
        reply = await redis.xreadgroup("sched", "d0", {pool.store.keys.ingress: ">"})
        entry = reply[0][1][0][0].decode()
        owner = client._client
        await pool.store.route([pool.call(request_id, [1, 2], entry, client=owner)])
        (dispatch,) = await pool.deliver(0)
        remind, failures = client._remind, []

        async def fail_once():
            if not failures:
                failures.append(error)
                raise error
            await remind()

        monkeypatch.setattr(client, "_remind", fail_once)
        # The reader loses its connection; the answer comes while it is away.
        await redis.client_kill_filter(_type="normal", skipme=True)
        await pool.emit(0, {owner: [Output(request_id, 0, 7, "a")]})
        async with asyncio.timeout(10):
            while not failures:
                await asyncio.sleep(0.01)
        rest = [Output(request_id, 1, 8, "b"), Output(request_id, 2, finish_reason="stop")]
        await pool.emit(0, {owner: rest}, [ended(dispatch, output_tokens=2)])
        async with asyncio.timeout(10):
            tokens = [output.token async for output in client.stream(request_id)]
        assert tokens == [7, 8, None]
