"""kill -9 at every await of a transfer: no block lost, leaked, owned twice or wrongly published.

All awaits of both sides are 30; a run takes a seeded few of them, LMPOOL_EVERY_AWAIT=1 all. After
each the pools pass their own checks (the workers run with --check and would have ended), every
block is free or cached, the page tables say what the pools hold, the plan is settled, and both
ranks answer as the plain model does.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from lmpoold.protocol.errors import RequestFailed
from lmpoold.protocol.transfer import Phase
from tests.e2e.transfer_pool import Pair, plain_model, plain_output, prompt, running_pair

EVERY = bool(os.environ.get("LMPOOL_EVERY_AWAIT"))
AWAITS = {"source": 14, "destination": 16}
RANK = {"source": 0, "destination": 1}

pytestmark = pytest.mark.timeout(1800 if EVERY else 300)


def chosen(salt: str, count: int) -> list[tuple[str, int]]:
    """Awaits to fail at: all of them, or a few of each side, spread over its life."""
    points = [(side, at) for side, last in AWAITS.items() for at in range(last)]
    if EVERY:
        return points
    seed = os.environ.get("LMPOOL_SEED", "7")
    return sorted(random.Random(f"{seed} {salt}").sample(points, count))


@pytest.fixture(scope="module")
def model():
    return plain_model()


async def holds(pair: Pair, plan: str, asked, wanted, where: str) -> Phase:
    """Everything that must be true after a fault."""
    phase = await pair.settled(plan)
    for rank in (0, 1):
        assert await pair.held(rank, asked) in (0, 8), where
    for rank in (0, 1):
        assert (await pair.ask(rank, asked)).tokens == wanted, f"{where}: rank {rank}"
    await pair.until_idle()
    assert not (dead := pair.dead()), f"{where}: {pair.logs(dead[0])}"
    return phase


@pytest.mark.better(14)
@pytest.mark.bar(32, 33)
async def test_a_worker_killed_at_any_await_of_a_transfer_leaves_no_block_astray(tmp_path, model):
    async with running_pair(tmp_path) as pair:
        await pair.keep_apart()
        for number, (side, at) in enumerate(chosen("kill", 4)):
            where = f"{side} await {at}"
            await pair.restart_worker(RANK[side], f"{side}:{at}:kill")
            asked = prompt(number)
            wanted = plain_output(model, asked, 10)
            assert (await pair.ask(0, asked)).tokens == wanted, where
            plan = await pair.begin(asked, 0, 1)
            victim = pair.children[f"worker{RANK[side]}"]
            async with asyncio.timeout(20):
                while victim.runs():
                    await asyncio.sleep(0.01)
            await pair.restart_worker(RANK[side])
            phase = await holds(pair, plan, asked, wanted, where)
            if side == "destination":  # its ninth await is for the word that publishes
                assert phase is (Phase.ABORTED if at < 9 else Phase.FINALIZE), where


@pytest.mark.bar(33)
@pytest.mark.parametrize("victim", ["lmpoold", "server"])
async def test_plans_survive_the_death_of_lmpoold_and_of_the_server_at_any_await(
    tmp_path, model, victim
):
    async with running_pair(tmp_path) as pair:
        await pair.keep_apart()
        for number, (side, at) in enumerate(chosen(victim, 3)):
            where = f"{victim} killed at {side} await {at}"
            gate = tmp_path / f"gate{number}"
            await pair.restart_worker(RANK[side], f"{side}:{at}:{gate}")
            asked = prompt(100 + number)
            wanted = plain_output(model, asked, 10)
            assert (await pair.ask(0, asked)).tokens == wanted, where
            plan = await pair.begin(asked, 0, 1)
            async with asyncio.timeout(20):
                while not gate.exists():
                    await asyncio.sleep(0.01)
            if victim == "server":
                pair.server.kill()
                gate.unlink()
                await asyncio.sleep(0.2)
                await pair.server.start()
            else:
                pair.kill("lmpoold")
                pair.start_daemon()
                await asyncio.sleep(0.2)
                gate.unlink()
            await pair.until_up()
            assert await holds(pair, plan, asked, wanted, where) is Phase.FINALIZE, where


async def test_a_transfer_that_its_stopped_peer_holds_up_is_given_up_and_the_next_one_works(
    tmp_path, model
):
    async with running_pair(tmp_path) as pair:
        await pair.keep_apart()
        gate = tmp_path / "gate"
        await pair.restart_worker(0, f"source:6:{gate}")
        await pair.store.tune({"plan_execute_ms": "1000"})
        asked = prompt(200)
        wanted = plain_output(model, asked, 10)
        assert (await pair.ask(0, asked)).tokens == wanted
        plan = await pair.begin(asked, 0, 1)
        async with asyncio.timeout(20):
            while await pair.plans.phase(plan) is not Phase.ABORT:
                await asyncio.sleep(0.01)
        rows = await pair.rows()
        assert rows[1].free + rows[1].reclaimable < 300, "kept until the sender has stopped"
        gate.unlink()
        assert await holds(pair, plan, asked, wanted, "late sender") is Phase.ABORTED
        again = prompt(201)
        wanted = plain_output(model, again, 10)
        assert (await pair.ask(0, again)).tokens == wanted
        plan = await pair.begin(again, 0, 1)
        assert await holds(pair, plan, again, wanted, "again") is Phase.FINALIZE
        await cancelled_while_its_prefix_is_on_the_way(pair, gate)


async def cancelled_while_its_prefix_is_on_the_way(pair: Pair, gate: Path) -> None:
    """The request ends at once; the plan that it waited for goes on and leaves nothing."""
    await pair.restart_worker(0, f"source:0:{gate}")
    asked = prompt(202)
    await pair.ask(0, asked)
    await pair.until_linked([(0, 1), (1, 0)])
    await pair.redis.hset(pair.store.keys.rank_facts(1), "prefill_us", "1000")
    await pair.store.tune({"w_seq": "1000000", "fetch_ratio": "0", "fetch_wait_ms": "30000"})
    await pair.store.tune({"plan_execute_ms": "30000", "fetch": "1"})
    busy = asyncio.create_task(pair.ask(0, prompt(203), 400))
    async with asyncio.timeout(20):
        while not (await pair.rows())[0].sequences:
            await asyncio.sleep(0.01)
    await pair.store.drain(1, draining=False)
    name = await pair.client.submit(tokens=asked, max_tokens=10, ignore_eos=True)
    async with asyncio.timeout(20):
        while not gate.exists():
            await asyncio.sleep(0.01)
    assert await pair.client.cancel(name) == "routed"
    with pytest.raises(RequestFailed, match="cancelled"):
        async with asyncio.timeout(10):
            await anext(pair.client.stream(name))
    assert gate.exists()
    assert [live.phase for live in await pair.plans.live()] == [Phase.PREPARE]
    gate.unlink()
    await busy
    await pair.until_idle()
    assert not (dead := pair.dead()), pair.logs(dead[0])
