"""Four workers over gloo, in two pairs and as a full mesh: many transfers at once, and a death.

After each part every plan is settled, every block is free or cached, and the ranks that received
blocks answer from them as the plain model does: the bytes are equal.
"""

from __future__ import annotations

import asyncio
from itertools import permutations

import pytest

from lmpoold.protocol.transfer import Phase
from tests.e2e.transfer_pool import BLOCK, plain_model, plain_output, prompt, running_pair

pytestmark = pytest.mark.timeout(300)

FULL_MESH = list(permutations(range(4), 2))
TWO_PAIRS = [(0, 1), (1, 0), (2, 3), (3, 2)]


@pytest.fixture(scope="module")
def model():
    return plain_model()


async def test_transfers_between_four_workers_run_beside_each_other_and_outlive_a_death(
    tmp_path, model
):
    asked = {rank: prompt(40 + rank) for rank in range(4)}
    wanted = {rank: plain_output(model, tokens, 10) for rank, tokens in asked.items()}
    async with running_pair(tmp_path, workers=4) as pool:
        await pool.store.tune({"plans_per_rank": "16", "background": "0", "foreground": "0"})
        for rank, tokens in asked.items():
            assert (await pool.ask(rank, tokens)).tokens == wanted[rank]
        await pool.until_linked(FULL_MESH)
        await several_into_one(pool, asked, wanted)
        await everyone_to_everyone(pool, asked)
        await pool.store.tune({"pairs": "0-1,2-3"})
        await pool.until_linked(TWO_PAIRS)
        await both_pairs_at_once(pool, model)
        await a_death_amid_two_plans(pool, model)


async def ends(pool, plans):
    """How each plan ended, once all have; nothing is left of them."""
    phases = await asyncio.gather(*(pool.settled(plan, 60.0) for plan in plans))
    await pool.until_idle(60.0)
    return phases


async def answers_from_cache(pool, rank, tokens, wanted):
    answer = await pool.ask(rank, tokens)
    assert (answer.tokens, answer.usage.cached_tokens) == (wanted, 8 * BLOCK)


async def several_into_one(pool, asked, wanted):
    plans = await asyncio.gather(*(pool.begin(asked[rank], rank, 0) for rank in (1, 2, 3)))
    assert await ends(pool, plans) == [Phase.FINALIZE] * 3
    for rank in (1, 2, 3):
        await answers_from_cache(pool, 0, asked[rank], wanted[rank])


async def everyone_to_everyone(pool, asked):
    """All twelve directed links at once; rank 0 has what the others would send it."""
    plans = await asyncio.gather(*(pool.begin(asked[a], a, b) for a, b in FULL_MESH))
    phases = dict(zip(FULL_MESH, await ends(pool, plans), strict=True))
    assert {pair: phase for pair, phase in phases.items() if pair[1] != 0} == {
        pair: Phase.FINALIZE for pair in FULL_MESH if pair[1] != 0
    }
    assert {phases[rank, 0] for rank in (1, 2, 3)} == {Phase.ABORTED}
    for rank in pool.ranks:
        held = [await pool.held(rank, tokens) for tokens in asked.values()]
        assert held == [8] * 4


async def both_pairs_at_once(pool, model):
    """Disjoint pairs, both ways each, and every receiver answers from what it got."""
    tokens = {pair: prompt(60 + number) for number, pair in enumerate(TWO_PAIRS)}
    for (source, _), each in tokens.items():
        await pool.ask(source, each, 1)
    plans = await asyncio.gather(*(pool.begin(each, *pair) for pair, each in tokens.items()))
    assert await ends(pool, plans) == [Phase.FINALIZE] * 4
    for (_, destination), each in tokens.items():
        await answers_from_cache(pool, destination, each, plain_output(model, each, 10))


async def a_death_amid_two_plans(pool, model):
    """kill -9 of a rank that one plan fills and another empties; the other pair goes on."""
    tokens = {pair: prompt(80 + number) for number, pair in enumerate(TWO_PAIRS)}
    for (source, _), each in tokens.items():
        await pool.ask(source, each, 1)
    plans = await asyncio.gather(*(pool.begin(each, *pair) for pair, each in tokens.items()))
    pool.kill("worker3")
    first, second, into_dead, from_dead = await asyncio.gather(
        *(pool.settled(plan, 60.0) for plan in plans)
    )
    assert (first, second) == (Phase.FINALIZE, Phase.FINALIZE)
    assert {into_dead, from_dead} <= {Phase.FINALIZE, Phase.ABORTED}
    pool.start_worker(3)
    await pool.until_up()
    await pool.until_idle(60.0)
    assert not await pool.plans.live()
    for (source, destination), each in tokens.items():
        wanted = plain_output(model, each, 10)
        for rank in (source, destination):
            assert (await pool.ask(rank, each)).tokens == wanted
    again = await pool.begin(tokens[2, 3], 2, 3) if not await pool.held(3, tokens[2, 3]) else ""
    assert not again or await pool.settled(again) is Phase.FINALIZE
    await pool.until_idle(60.0)
