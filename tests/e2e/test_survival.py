"""kill -9 each in turn: what was accepted is answered, once, and as if nothing had happened."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from lmpoold.client import PoolClient
from lmpoold.protocol.keys import Keyspace
from lmpoold.store.embedded import EmbeddedServer
from lmpoold.store.scripts import PoolStore
from tests.e2e.forge import Child, forge

pytestmark = pytest.mark.timeout(240)
MODEL = "random:tiny-qwen3"


def spawn(url: str, program: str, *argv: str) -> Child:
    argv = (*argv, "--model", MODEL, "--redis-url", url)
    return forge().start(program, *argv, log=Path(os.devnull))


async def until_up(store, ranks: set[int], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while {row.rank for row in await store.ranks() if row.state == "up"} != ranks:
            await asyncio.sleep(0.1)


async def ask(client, number: int):
    return await client.generate(tokens=[7 + number] * 30 + [3], max_tokens=300, ignore_eos=True)


@pytest.mark.better(7)
@pytest.mark.bar(37)
async def test_requests_of_a_killed_worker_go_on_elsewhere_without_a_token_lost_or_repeated(pool):
    async with pool(MODEL, workers=1, options=("--blocks", "300")) as running:
        undisturbed = [await ask(running.client, number) for number in range(4)]
        second = spawn(running.url, "workers", "--rank", "1", "--blocks", "300", "--threads", "1")
        try:
            await until_up(running.store, {0, 1})
            asking = [asyncio.create_task(ask(running.client, n)) for n in range(4)]
            async with asyncio.timeout(30):
                while not any(row.sequences for row in await running.store.ranks()):
                    await asyncio.sleep(0.01)
            rows = {row.rank: row for row in await running.store.ranks()}
            busiest = max(rows, key=lambda rank: rows[rank].sequences)
            os.kill(int(rows[busiest].pid), signal.SIGKILL)
            answers = await asyncio.wait_for(asyncio.gather(*asking), 60)
            assert [a.tokens for a in answers] == [a.tokens for a in undisturbed]
            assert [a.text for a in answers] == [a.text for a in undisturbed]
            await until_up(running.store, {0, 1} - {busiest})
        finally:
            second.kill()
            second.wait()


@pytest.mark.better(3)
async def test_entries_of_a_killed_lmpoold_are_answered_by_the_next_one(pool):
    async with pool(MODEL) as running:
        other = spawn(running.url, "lmpoold")
        try:
            asking = [asyncio.create_task(ask(running.client, n % 4)) for n in range(12)]
            await asyncio.sleep(0)
            other.kill()
            answers = await asyncio.wait_for(asyncio.gather(*asking), 90)
            assert [len(answer.tokens) for answer in answers] == [300] * 12
        finally:
            other.kill()
            other.wait()


@pytest.mark.bar(10, 27)
async def test_a_stopped_worker_is_fenced_and_joins_again_with_its_cache(pool):
    async with pool(MODEL, options=("--blocks", "300")) as running:
        first = await ask(running.client, 0)
        before = (await running.store.ranks())[0]
        os.kill(int(before.pid), signal.SIGSTOP)
        try:
            async with asyncio.timeout(20):
                while (await running.store.ranks())[0].state != "down":
                    await asyncio.sleep(0.1)
        finally:
            os.kill(int(before.pid), signal.SIGCONT)
        again = await asyncio.wait_for(ask(running.client, 0), 30)
        after = (await running.store.ranks())[0]
        assert again.tokens == first.tokens
        assert again.usage.cached_tokens > 0
        assert after.epoch > before.epoch


async def test_a_killed_server_comes_back_and_everybody_goes_on(tmp_path):
    server = EmbeddedServer(tmp_path / "s")
    await server.start()
    children = [
        spawn(server.url, "lmpoold"),
        spawn(server.url, "workers", "--blocks", "300", "--threads", "1"),
    ]
    try:
        async with PoolClient(server.url) as client:
            await until_up(PoolStore(client._redis, Keyspace()), {0})
            async with asyncio.timeout(60):
                undisturbed = await ask(client, 0)
            asking = asyncio.create_task(ask(client, 0))
            await asyncio.sleep(0.05)
            server.kill()
            await server.start()
            answer = await asyncio.wait_for(asking, 60)
            assert answer.tokens == undisturbed.tokens
            later = await asyncio.wait_for(ask(client, 1), 60)
            assert len(later.tokens) == 300
    finally:
        for child in children:
            child.kill()
            child.wait()
        server.stop()


async def test_a_full_pool_parks_requests_and_answers_them_all(pool):
    options = ("--blocks", "130", "--max-num-seqs", "4", "--max-batched-tokens", "256")
    async with pool(MODEL, options=options) as running:
        answers = await asyncio.wait_for(
            asyncio.gather(
                *(
                    running.client.generate(
                        tokens=[5 + number] * 600, max_tokens=20, ignore_eos=True
                    )
                    for number in range(12)
                )
            ),
            120,
        )
        assert [len(answer.tokens) for answer in answers] == [20] * 12
        row = (await running.store.ranks())[0]
        assert (row.reserved, row.reserved_tokens) == (0, 0)
