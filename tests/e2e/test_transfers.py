"""K/V on the move between two real workers: the plain model's answers, and no block astray."""

from __future__ import annotations

import asyncio

import pytest

from lmpoold.protocol.transfer import Mode, Phase
from tests.e2e.transfer_pool import BLOCK, plain_model, plain_output, prompt, running_pair

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def model():
    return plain_model()


@pytest.mark.better(1)
async def test_answers_after_copy_move_and_fetch_are_the_plain_models(tmp_path, model):
    async with running_pair(tmp_path) as pair:
        await copy(pair, model)
        await move(pair, model)
        await fetch(pair, model)
        await pair.until_idle()


async def test_two_workers_are_connected_before_a_plan_needs_it(tmp_path):
    async with running_pair(tmp_path) as pair:
        async with asyncio.timeout(30):
            while not (probed := await pair.plans.probed("0-0", 500)):
                pass
        ((_, made),) = probed
        assert (made["outcome"], made["opened"], made["blocks"]) == ("finalize", "1", "1")
        asked = prompt(1)
        await pair.ask(0, asked)
        assert await pair.settled(await pair.begin(asked, 0, 1)) is Phase.FINALIZE
        (log,) = await pair.plans.log()
        assert (log["outcome"], log["opened"]) == ("finalize", "0")
        await pair.until_idle()


async def copy(pair, model):
    asked = prompt(1)
    wanted = plain_output(model, asked, 10)
    assert (await pair.ask(0, asked)).tokens == wanted
    plan = await pair.begin(asked, 0, 1)
    assert await pair.settled(plan) is Phase.FINALIZE
    assert (await pair.held(0, asked), await pair.held(1, asked)) == (8, 8)
    answer = await pair.ask(1, asked)
    assert answer.tokens == wanted
    assert answer.usage.cached_tokens == 8 * BLOCK


async def move(pair, model):
    asked = prompt(2)
    wanted = plain_output(model, asked, 10)
    assert (await pair.ask(0, asked)).tokens == wanted
    plan = await pair.begin(asked, 0, 1, Mode.MOVE)
    assert await pair.settled(plan) is Phase.FINALIZE
    async with asyncio.timeout(5):
        while await pair.held(0, asked):  # the delta that says so comes after the plan's end
            await asyncio.sleep(0.01)
    assert await pair.held(1, asked) == 8
    (log,) = [row for row in await pair.plans.log() if row["id"] == plan]
    assert (log["mode"], log["blocks"], log["freed"]) == ("move", "8", "8")
    answer = await pair.ask(1, asked)
    assert answer.tokens == wanted
    assert answer.usage.cached_tokens == 8 * BLOCK


async def fetch(pair, model):
    asked = prompt(3)
    wanted = plain_output(model, asked, 10)
    assert (await pair.ask(0, asked)).tokens == wanted
    await pair.until_linked([(0, 1), (1, 0)])
    # Brought along whatever it costs here, and waited for on a busy machine too.
    await pair.store.tune({"w_seq": "1000000", "fetch_ratio": "0", "fetch_wait_ms": "30000"})
    busy = asyncio.create_task(pair.ask(0, prompt(4), 400))
    async with asyncio.timeout(20):
        while not (await pair.rows())[0].sequences:
            await asyncio.sleep(0.01)
    for rank in (0, 1):
        await pair.store.drain(rank, draining=False)
    answer = await pair.ask(None, asked)
    assert answer.tokens == wanted
    assert answer.usage.cached_tokens == 8 * BLOCK
    (log, *_) = await pair.plans.log()
    assert (log["why"], log["outcome"], log["blocks"]) == ("fetch", "finalize", "8")
    await busy


async def fill(pair, rank):
    """Leave no block of a rank free: all hold prompts that nobody asks for again."""
    for number in range(200, 300):
        row = next(row for row in await pair.store.ranks() if row.rank == rank)
        if row.free < 13:
            return
        await pair.ask(rank, prompt(number, blocks=12))
    raise AssertionError("a rank was not filled")


@pytest.mark.better(8)
@pytest.mark.parametrize("full", [False, True], ids=["to-free-blocks", "to-once-used-blocks"])
async def test_a_worker_short_of_blocks_moves_cold_chains_away_and_serves_on(tmp_path, model, full):
    async with running_pair(tmp_path) as pair:
        await pair.store.tune({"foreground_ratio": "0", "fetch": "0", "origin_hops": "0"})
        if full:
            await fill(pair, 1)
        asked = [prompt(number) for number in range(30)]
        for _ in range(2):  # found again, so worth keeping
            for each in asked:
                await pair.ask(0, each)
        long = [prompt(100 + number, blocks=40) for number in range(20)]
        answers = [pair.client.generate(tokens=one, max_tokens=4, origin=0) for one in long]
        await asyncio.wait_for(asyncio.gather(*answers), 120)
        await pair.until_idle()
        moves = [row for row in await pair.plans.log(100) if row["why"] == "foreground"]
        done = [row for row in moves if row["outcome"] == "finalize"]
        assert done, (moves, await pair.plans.refusals())
        assert all((row["mode"], row["src"], row["dst"]) == ("move", "0", "1") for row in done)
        there = [(await pair.held(1, each), each) for each in (*asked, *long)]
        blocks, each = max(there)
        assert blocks > 0
        answer = await pair.ask(1, each)
        assert answer.tokens == plain_output(model, each, 10)
        assert answer.usage.cached_tokens == blocks * BLOCK
