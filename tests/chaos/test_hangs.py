"""A worker that lives, beats and computes no more: its requests are not held for ever."""

from __future__ import annotations

import asyncio

import pytest

from lmpoold.protocol.errors import RequestFailed
from tests.chaos.hang import GO_ON, HANG

pytestmark = pytest.mark.timeout(90)


async def owner(pool) -> int:
    """The rank that runs a sequence."""
    async with asyncio.timeout(20):
        while True:
            for row in await pool.store.ranks():
                if row.sequences:
                    return row.rank
            await asyncio.sleep(0.01)


async def test_a_late_request_is_answered_while_its_engine_hangs_and_the_rest_goes_on(scene):
    async with scene(workers=1) as pool:
        worker = pool.cast.children["worker 0"]
        whole = await pool.ask_all(2, 200)
        asking = asyncio.create_task(pool.ask_all(2, 200))
        await owner(pool)
        (before,) = await pool.store.ranks()
        worker.signal(HANG)
        with pytest.raises(RequestFailed) as late:
            async with asyncio.timeout(20):
                await pool.client.generate(tokens=[6] * 40, max_tokens=4, deadline_ms=1000)
        assert late.value.code == "deadline_exceeded"
        worker.signal(GO_ON)
        assert await asking == whole
        (row,) = await pool.store.ranks()
        assert (row.epoch, row.state) == (before.epoch, "up"), "fenced for a late request"
        assert await pool.leftovers(1) == []


@pytest.mark.better(8)
async def test_requests_of_an_engine_that_hangs_go_on_elsewhere_and_it_joins_when_it_moves(scene):
    async with scene() as pool:
        await pool.store.tune({"engine_stall_ms": "2000"})
        whole = await pool.ask_all(4, 200)
        asking = asyncio.create_task(pool.ask_all(4, 200))
        rank = await owner(pool)
        before = {row.rank: row for row in await pool.store.ranks()}
        pool.cast.children[f"worker {rank}"].signal(HANG)
        assert await asking == whole
        rows = {row.rank: row for row in await pool.store.ranks()}
        assert rows[rank].state == "down", "it must not join again while its engine hangs"
        assert rows[1 - rank].epoch == before[1 - rank].epoch
        pool.cast.children[f"worker {rank}"].signal(GO_ON)
        await pool.until_up({0, 1})
        rows = {row.rank: row for row in await pool.store.ranks()}
        assert rows[rank].epoch > before[rank].epoch
        assert rows[rank].pid == before[rank].pid
        assert await pool.leftovers(2) == []


async def test_a_worker_whose_engine_never_comes_back_ends_so_that_another_takes_its_rank(scene):
    async with scene(workers=1) as pool:
        await pool.store.tune({"engine_stall_ms": "1000"})
        whole = await pool.ask_all(2)
        worker = pool.cast.children["worker 0"]
        worker.signal(HANG)
        assert await pool.ask_all(2) == whole
        assert worker.deaths == [1]
        assert "the engine finished no step" in worker.log.read_text()


async def test_an_idle_engine_is_not_taken_for_one_that_hangs(scene):
    async with scene(workers=1) as pool:
        await pool.store.tune({"engine_stall_ms": "500"})
        await pool.ask_all(1)
        (before,) = await pool.store.ranks()
        await asyncio.sleep(2.5)  # two heartbeats and more
        (after,) = await pool.store.ranks()
        assert (after.epoch, after.state) == (before.epoch, "up")
