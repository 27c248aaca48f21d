"""What the gateway serves: known once, and read again beside requests."""

import asyncio
import contextlib

import fakeredis
import pytest

import lmpoold.gateway.served as module
from lmpoold.gateway.faults import Fault
from lmpoold.gateway.served import Served
from lmpoold.protocol.keys import Keyspace
from lmpoold.store.scripts import PoolStore


async def test_a_request_waits_for_the_pools_description_only_until_there_is_one(monkeypatch):
    redis = fakeredis.FakeAsyncRedis()
    store = PoolStore(redis, Keyspace())
    served = Served(store, ["other"])
    with pytest.raises(Fault) as caught:
        await served.resolve("m")
    assert (caught.value.status, caught.value.code) == (503, "pool_not_ready")
    await redis.hset(store.keys.cfg, mapping={"model": "m", "max_model_len": "9"})
    assert await served.resolve("other") == "m"
    await redis.hset(store.keys.cfg, "model", "n")
    assert await served.resolve("m") == "m"

    monkeypatch.setattr(module, "FRESH_S", 0.01)
    reading = asyncio.create_task(served.keep_fresh())
    async with asyncio.timeout(5):
        while (await served.model()).name != "n":
            await asyncio.sleep(0.01)
    with pytest.raises(Fault) as caught:
        await served.resolve("m")
    assert caught.value.status == 404
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reading
    await redis.aclose()
