"""One fault a test, on real processes: what stops, what goes on, what is left."""

import asyncio
import random
import signal

import pytest

from lmpoold.protocol.keys import Keyspace

pytestmark = pytest.mark.timeout(120)
KEYS = Keyspace()


async def test_requests_run_on_when_the_server_was_out_of_reach_for_ten_seconds(scene):
    async with scene(workers=2) as pool:
        undisturbed = await pool.ask_all(6)
        asking = asyncio.create_task(pool.ask_all(6))
        await pool.until_running(3)
        for link in pool.cast.links:
            link.cut()
        await asyncio.sleep(10)
        for link in pool.cast.links:
            link.heal()
        assert await asyncio.wait_for(asking, 30) == undisturbed
        await pool.until_up({0, 1})
        assert await pool.leftovers(2) == []


async def test_flushed_functions_and_scripts_are_loaded_again_by_whoever_calls(scene):
    async with scene(workers=2) as pool:
        undisturbed = await pool.ask_all(6)
        asking = asyncio.create_task(pool.ask_all(6))
        await pool.until_running(3)
        for _ in range(5):
            await pool.redis.function_flush("SYNC")
            await pool.redis.script_flush()
            await asyncio.sleep(0.05)
        assert await asking == undisturbed
        assert await pool.leftovers(2) == []


@pytest.mark.bar(2, 50)
async def test_a_rolling_restart_of_everybody_fails_no_request(scene):
    async with scene(lmpoolds=2, workers=2) as pool:
        undisturbed = await pool.ask_all(8)
        answers, over = [], asyncio.Event()

        async def go_on_asking():
            while not over.is_set():
                answers.append(await pool.ask_all(8))

        asking = asyncio.create_task(go_on_asking())
        for name, child in pool.cast.children.items():
            await pool.until_running()
            before = {row.rank: row.epoch for row in await pool.store.ranks()}
            pid = child.pid
            child.signal(signal.SIGTERM)
            async with asyncio.timeout(20):
                while child.pid in (pid, None):
                    await asyncio.sleep(0.05)
            await pool.until_up({0, 1})
            if name.startswith("worker"):
                rank = int(name.split()[1])
                after = {row.rank: row.epoch for row in await pool.store.ranks()}
                assert after[rank] > before[rank]
        over.set()
        await asking
        assert len(answers) >= 2
        assert all(answer == undisturbed for answer in answers)
        assert await pool.leftovers(2) == []


async def test_a_draining_rank_ends_what_it_has_and_gets_nothing_new(scene):
    async with scene(workers=2) as pool:
        undisturbed = await pool.ask_all(8)
        asking = asyncio.create_task(pool.ask_all(8))
        await pool.until_running(4)
        await pool.store.drain(0, draining=True)
        later = [await pool.ask(number, 5) for number in range(4)]
        places = [(await pool.redis.hget(KEYS.request(one.id), "rank")) for one in later]
        assert places == [b"1"] * 4
        assert await asking == undisturbed
        row = next(row for row in await pool.store.ranks() if row.rank == 0)
        assert (row.state, row.sequences) == ("drain", 0)
        pool.cast.children["worker 0"].signal(signal.SIGTERM)
        await pool.until_up({0, 1})
        assert await pool.leftovers(2) == []


@pytest.mark.better(3)
@pytest.mark.bar(2, 37)
async def test_what_a_killed_lmpoold_had_read_is_claimed_by_the_next(scene):
    async with scene(lmpoolds=2, workers=1) as pool:
        undisturbed = await pool.ask_all(4)
        pool.cast.children["lmpoold 1"].kill()
        first = pool.cast.children["lmpoold 0"]
        first.signal(signal.SIGSTOP)  # its read is waiting at the server, and gets the entries
        asking = asyncio.create_task(pool.ask_all(4))
        async with asyncio.timeout(10):
            while (await pool.redis.xpending(KEYS.ingress, "sched"))["pending"] == 0:
                await asyncio.sleep(0.01)
        first.kill()
        assert not asking.done()
        pool.cast.children["lmpoold 1"].allow()
        assert await asking == undisturbed
        first.allow()
        assert await pool.leftovers(1) == []


@pytest.mark.bar(10, 27)
async def test_a_flapping_worker_is_another_epoch_each_time_and_its_late_reports_count_nothing(
    scene,
):
    async with scene(workers=2) as pool:
        undisturbed = await pool.ask_all(6)
        asking = asyncio.create_task(pool.ask_all(6, 60))
        worker, epochs = pool.cast.children["worker 0"], []
        for _ in range(3):
            epochs.append(next(r.epoch for r in await pool.store.ranks() if r.rank == 0))
            late = list(worker.link.sent)
            worker.kill()
            await pool.until_down(0)
            pages = await pool.redis.hlen(KEYS.pages(0))
            assert pages == 0, "the pages of a dead epoch went with it"
            worker.allow()
            await pool.until_up({0, 1})
            worker.link.sent.extend(late)
            await worker.link.replay(random.Random(1), 50)
        assert epochs == sorted(set(epochs))
        assert await asking == undisturbed
        assert await pool.leftovers(2) == []


@pytest.mark.bar(2, 37)
async def test_everybody_is_killed_at_once_and_everything_is_answered(scene):
    async with scene(lmpoolds=2, workers=2) as pool:
        undisturbed = await pool.ask_all(8)
        asking = asyncio.create_task(pool.ask_all(8))
        await pool.until_running(4)
        for child in pool.cast.children.values():
            child.kill()
        pool.cast.server.kill()
        await pool.cast.server.start()
        for name in ("lmpoold 1", "worker 1"):
            pool.cast.children[name].allow()
        assert await asking == undisturbed
        await pool.cast.heal()
        await pool.until_up({0, 1})
        assert await pool.leftovers(2) == []


@pytest.mark.bar(1)
async def test_a_server_that_comes_back_is_routed_by_cache_from_the_workers_own_pages(scene):
    """What was cached before the restart is hit after it."""
    async with scene(workers=2) as pool:
        await pool.ask_all(4)
        pool.cast.server.kill()
        await asyncio.sleep(4)  # the claims on the ranks lapse meanwhile
        await pool.cast.server.start()
        await pool.until_up({0, 1})
        answer = await pool.ask(1)
        assert answer.usage.cached_tokens >= 32
        assert await pool.leftovers(2) == []


async def test_a_worker_that_starts_waits_for_a_server_that_goes_away_at_any_call(scene):
    async with scene(workers=1) as pool:
        worker = pool.cast.children["worker 0"]
        for word in (b"HGETALL", b"\r\nINFO\r\n", b"TIME", b"rank_up"):
            worker.kill()
            await pool.until_down(0)
            worker.link.cut_at(word)
            worker.allow()
            async with asyncio.timeout(20):
                while not worker.link.refusing:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            worker.link.heal()
            await pool.until_up({0})
            assert worker.deaths == [], word


async def test_everybody_leaves_in_good_order_while_the_server_is_away(scene):
    async with scene(lmpoolds=1, workers=1) as pool:
        pool.cast.server.kill()
        await asyncio.sleep(0.5)
        for child in pool.cast.children.values():
            pid = child.pid
            child.signal(signal.SIGTERM)
            async with asyncio.timeout(20):
                while child.pid == pid:
                    await asyncio.sleep(0.05)
            assert child.codes[-1] == 0, child.name


@pytest.mark.bar(47)
async def test_an_idle_pool_keeps_its_workers_with_the_settings_it_comes_with(scene):
    async with scene(lmpoolds=2, workers=2) as pool:
        before = [(row.rank, row.state, row.epoch) for row in await pool.store.ranks()]
        await asyncio.sleep(12)  # four times the life of a claim
        assert [(row.rank, row.state, row.epoch) for row in await pool.store.ranks()] == before
        consumers = await pool.redis.xinfo_consumers(KEYS.ingress, "sched")
        assert all(consumer["idle"] < 5000 for consumer in consumers)


async def test_a_worker_behind_a_path_that_swallows_packets_serves_on(scene):
    async with scene(workers=1) as pool:
        undisturbed = await pool.ask_all(3)
        asking = asyncio.create_task(pool.ask_all(3))
        await pool.until_running()
        pool.cast.children["worker 0"].link.hole()
        pool.cast.children["lmpoold 0"].link.hole()
        assert await asking == undisturbed
        assert await pool.leftovers(1) == []
