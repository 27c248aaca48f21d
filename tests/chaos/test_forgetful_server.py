"""A server that forgets: writes that it had acknowledged are gone after it was killed.

`appendfsync everysec` lets the server answer before it has written, while an fsync is under way;
power that fails and a replica that was behind do the same on a larger scale. Whoever relied on what
is gone has to notice and to begin again from what the server still knows.
"""

import asyncio
import shutil

import pytest

pytestmark = pytest.mark.timeout(120)


def log_of(server):
    """The part of the append-only file that is being written."""
    (file,) = (server.folder / "appendonlydir").glob("*.incr.aof")
    return file


async def kill_and_forget(server, bytes_kept: int) -> int:
    """Kill the server and start it without what it wrote behind `bytes_kept`; returns how much."""
    server.kill()
    file = log_of(server)
    forgotten = file.stat().st_size - bytes_kept
    with file.open("r+b") as log:
        log.truncate(bytes_kept)
    await server.start()
    return forgotten


@pytest.mark.bar(1, 6)
@pytest.mark.parametrize("behind_s", [0.02, 0.15, 0.5])
async def test_answers_are_whole_when_the_server_forgot_its_last_moments(scene, behind_s):
    async with scene(lmpoolds=2, workers=2) as pool:
        undisturbed = await pool.ask_all(8, 90)
        for turn in range(2):
            asking = asyncio.create_task(pool.ask_all(8, 90))
            await pool.until_running(4)
            await asyncio.sleep(0.2)
            kept = log_of(pool.cast.server).stat().st_size
            await asyncio.sleep(behind_s)
            assert await kill_and_forget(pool.cast.server, kept) > 0
            await asyncio.sleep(0.15)
            worker = pool.cast.children[f"worker {turn % 2}"]
            worker.kill()  # whoever goes on has only what the server still knows
            assert await asking == undisturbed
            worker.allow()
            await pool.until_up({0, 1})
        assert await pool.leftovers(2) == []


async def test_requests_that_were_forgotten_as_soon_as_they_were_sent_are_sent_again(scene):
    async with scene(lmpoolds=1, workers=1) as pool:
        undisturbed = await pool.ask_all(4)
        kept = log_of(pool.cast.server).stat().st_size
        asking = asyncio.create_task(pool.ask_all(4))
        await pool.until_running(4)
        worker = pool.cast.children["worker 0"]
        worker.kill()
        await kill_and_forget(pool.cast.server, kept)
        worker.allow()
        assert await asking == undisturbed
        assert await pool.leftovers(1) == []


async def test_an_end_that_was_forgotten_is_noticed_by_an_idle_worker(scene):
    async with scene(lmpoolds=1, workers=1) as pool:
        asking = asyncio.create_task(pool.ask_all(1, 200))
        await pool.until_running(1)
        await asyncio.sleep(0.5)
        kept = log_of(pool.cast.server).stat().st_size
        await asking
        await asyncio.sleep(0.1)
        await kill_and_forget(pool.cast.server, kept)
        before = (await pool.store.ranks())[0].epoch
        async with asyncio.timeout(10):  # nobody asks any more: the heartbeat alone can tell
            while (await pool.store.ranks())[0].epoch == before:
                await asyncio.sleep(0.05)
        assert await pool.leftovers(1) == []


@pytest.mark.bar(1)
async def test_a_server_that_comes_back_empty_is_filled_by_those_who_know(scene):
    async with scene(lmpoolds=2, workers=2) as pool:
        undisturbed = await pool.ask_all(6, 90)
        children = pool.cast.children.values()
        before = {child.name: child.pid for child in children}
        cached = {row.rank: row.pages for row in await pool.store.ranks()}
        asking = asyncio.create_task(pool.ask_all(6, 90))
        await pool.until_running(4)
        pool.cast.server.kill()
        shutil.rmtree(pool.cast.server.folder / "appendonlydir")
        await pool.cast.server.start()
        assert await asking == undisturbed
        await pool.until_up({0, 1})
        assert {child.name: child.pid for child in children} == before, "somebody ended"
        pages = {row.rank: row.pages for row in await pool.store.ranks()}
        assert all(pages[rank] >= cached[rank] > 0 for rank in cached), "caches were lost"
        assert await pool.leftovers(2) == []


async def test_a_client_waits_while_an_empty_server_has_no_pool_yet(scene):
    async with scene(lmpoolds=1, workers=1) as pool:
        undisturbed = await pool.ask_all(2, 40)
        daemon = pool.cast.children["lmpoold 0"]
        daemon.kill()
        asking = asyncio.create_task(pool.ask_all(2, 40))
        pool.cast.server.kill()
        shutil.rmtree(pool.cast.server.folder / "appendonlydir")
        await pool.cast.server.start()
        await pool.store.load_library()  # no lmpoold describes the pool for a while
        await asyncio.sleep(1.0)
        assert not asking.done()
        daemon.allow()
        assert await asking == undisturbed
