"""Ingress is read by several at once: nobody waits behind a prompt that takes long to read."""

import asyncio
import threading
from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry

from lmpoold.core.admission import Limits
from lmpoold.daemon.ingress import GROUP_BYTES, Ingress
from lmpoold.daemon.metrics import RouterMetrics
from lmpoold.daemon.reading import Reader
from lmpoold.protocol.keys import Keyspace
from lmpoold.protocol.messages import read_outputs
from lmpoold.store.scripts import PoolStore
from lmpoold.store.streams import Entry, Inbox
from lmpoold.text.folder import resolve
from lmpoold.text.tokenizer import TextModel
from tests.store.pool import BLOCK, begin


class SlowReader(Reader):
    """Reads a long text only when it is let to."""

    def __init__(self, cache) -> None:
        text = TextModel.load(resolve("random:tiny-qwen3", cache=cache))
        limits = Limits(1000, text.vocab_size)
        super().__init__(text, model="toy", fingerprint="f0", block_size=BLOCK, limits=limits)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def read(self, entries: Sequence[Entry]):
        if any(len(values[b"prompt"]) > GROUP_BYTES for _, values in entries):
            self.begun.set()
            assert self.go_on.wait(30)
        return super().read(entries)


@pytest.fixture
async def pool(redis):
    pool = await begin(PoolStore(redis, Keyspace()))
    await pool.join(0, blocks=300)
    await pool.report(0, free=300)
    return pool


async def until(what) -> None:
    async with asyncio.timeout(20):
        while not await what():
            await asyncio.sleep(0.01)


@pytest.mark.better(17)
async def test_a_short_prompt_passes_a_long_one_that_is_still_being_read(
    pool, redis, lane_over, tmp_path
):
    reader, keys, stop = SlowReader(tmp_path), pool.store.keys, asyncio.Event()
    inbox = Inbox(lane_over(redis), keys.ingress, "sched", "d0")
    metrics = RouterMetrics(CollectorRegistry(), BLOCK)
    reading = asyncio.create_task(Ingress(pool.store, inbox, reader, metrics).run(stop))
    await redis.xadd(keys.ingress, {"id": "long", "prompt": "x" * (GROUP_BYTES + 1)})
    await until(lambda: asyncio.to_thread(reader.begun.is_set))
    for name in ("a", "b"):
        await redis.xadd(keys.ingress, {"id": name, "prompt": "hello", "max_tokens": "1"})
    await until(lambda: redis.hexists(keys.request("b"), "rank"))
    assert await redis.hexists(keys.request("a"), "rank")
    assert await redis.xlen(keys.out("long")) == 0, "the long one is answered once it is read"
    reader.go_on.set()
    await until(lambda: redis.xlen(keys.out("long")))
    ((_, values),) = await redis.xrange(keys.out("long"))
    assert [one.code for one in read_outputs(values)] == ["context_length_exceeded"]
    stop.set()
    await reading
