"""A worker that lives, beats and computes no more: its requests are not held for ever."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from lmpoold.client import PoolClient
from lmpoold.protocol.errors import RequestFailed
from lmpoold.protocol.keys import Keyspace
from lmpoold.store.connect import open_redis
from lmpoold.store.scripts import PoolStore
from tests.chaos.hang import GO_ON, HANG
from tests.chaos.processes import Cast

pytestmark = pytest.mark.timeout(90)


@contextlib.asynccontextmanager
async def running(folder: Path, *, workers: int = 2):
    """A pool of paper workers: (cast, store, client)."""
    cast = Cast(folder, lmpoolds=1, workers=workers, worker_argv=("tests.chaos.paper_worker",))
    redis = open_redis(cast.server.url)
    store = PoolStore(redis, Keyspace())
    try:
        await cast.start()
        async with asyncio.timeout(30):
            while sum(row.state == "up" for row in await store.ranks()) < workers:
                await asyncio.sleep(0.05)
        async with PoolClient(cast.server.url) as client:
            yield cast, store, client
    finally:
        await redis.aclose()
        await cast.end()


async def owner(store: PoolStore) -> int:
    """The rank that runs a sequence."""
    async with asyncio.timeout(20):
        while True:
            for row in await store.ranks():
                if row.sequences:
                    return row.rank
            await asyncio.sleep(0.01)


async def test_a_late_request_is_answered_while_its_engine_hangs_and_the_rest_goes_on(tmp_path):
    async with running(tmp_path, workers=1) as (cast, store, client):
        whole = await client.generate(tokens=[5] * 40, max_tokens=400, ignore_eos=True)
        long = asyncio.create_task(
            client.generate(tokens=[5] * 40, max_tokens=400, ignore_eos=True)
        )
        await owner(store)
        epoch = (await store.ranks())[0].epoch
        cast.children["worker 0"].signal(HANG)
        with pytest.raises(RequestFailed) as late:
            async with asyncio.timeout(20):
                await client.generate(tokens=[6] * 40, max_tokens=4, deadline_ms=1000)
        assert late.value.code == "deadline_exceeded"
        cast.children["worker 0"].signal(GO_ON)
        answer = await asyncio.wait_for(long, 30)
        assert answer.tokens == whole.tokens
        (row,) = await store.ranks()
        assert (row.epoch, row.state) == (epoch, "up"), "the rank was fenced for a late request"
        again = await client.generate(tokens=[6] * 40, max_tokens=4)
        assert len(again.tokens) == 4


async def test_requests_of_an_engine_that_hangs_go_on_elsewhere_and_it_joins_when_it_moves(
    tmp_path,
):
    async with running(tmp_path) as (cast, store, client):
        await store.tune({"engine_stall_ms": "2000"})
        whole = await client.generate(tokens=[5] * 40, max_tokens=400, ignore_eos=True)
        asking = asyncio.create_task(
            client.generate(tokens=[5] * 40, max_tokens=400, ignore_eos=True)
        )
        rank = await owner(store)
        before = {row.rank: row for row in await store.ranks()}
        cast.children[f"worker {rank}"].signal(HANG)
        answer = await asyncio.wait_for(asking, 30)
        assert answer.tokens == whole.tokens
        rows = {row.rank: row for row in await store.ranks()}
        assert rows[rank].state == "down", "it must not join again while its engine hangs"
        assert rows[1 - rank].epoch == before[1 - rank].epoch
        cast.children[f"worker {rank}"].signal(GO_ON)
        async with asyncio.timeout(20):
            while (rows := {row.rank: row for row in await store.ranks()})[rank].state != "up":
                await asyncio.sleep(0.05)
        assert rows[rank].epoch > before[rank].epoch
        assert rows[rank].pid == before[rank].pid
        assert not cast.children[f"worker {rank}"].codes


async def test_a_worker_whose_engine_never_comes_back_ends_so_that_another_can_take_its_rank(
    tmp_path,
):
    async with running(tmp_path, workers=1) as (cast, store, client):
        await store.tune({"engine_stall_ms": "1000"})
        whole = await client.generate(tokens=[5] * 40, max_tokens=100, ignore_eos=True)
        cast.children["worker 0"].signal(HANG)
        pid = cast.children["worker 0"].pid
        answer = await asyncio.wait_for(
            client.generate(tokens=[5] * 40, max_tokens=100, ignore_eos=True), 60
        )
        assert answer.tokens == whole.tokens
        assert cast.children["worker 0"].pid != pid
        assert "finished no step" in (tmp_path / "worker0.log").read_text()


async def test_an_idle_engine_is_not_taken_for_one_that_hangs(tmp_path):
    async with running(tmp_path, workers=1) as (_, store, client):
        await store.tune({"engine_stall_ms": "500"})
        await client.generate(tokens=[5] * 40, max_tokens=4)
        (before,) = await store.ranks()
        await asyncio.sleep(3)
        (after,) = await store.ranks()
        assert (after.epoch, after.state) == (before.epoch, "up")
