"""The leader has workers make their pair as soon as they have met, on both servers."""

import pytest

from lmpoold.daemon import links, pairs
from lmpoold.daemon.links import LinkKeeper
from lmpoold.daemon.pairs import USES, PairOpener
from lmpoold.protocol.transfer import PlanOrder, Role, Why
from lmpoold.store.plans import PlanStore


class Led:
    """Three ranks of which two can move blocks, and the leader's turns."""

    def __init__(self, pool):
        self.pool = pool
        self.plans = PlanStore(pool.store)
        self.links = LinkKeeper(self.plans)
        self.opener = PairOpener(self.plans, self.links)
        self.read = {0: 0, 1: 0, 2: 0}

    async def join(self, rank, way="gloo"):
        await self.pool.join(rank)
        if way:
            facts = self.pool.store.keys.rank_facts(rank)
            await self.pool.store.redis.hset(facts, mapping={"way": way})

    async def turn(self):
        await self.links.turn("t")
        await self.opener.turn("t")

    async def asked(self, rank):
        """What a rank was ordered since the last time: (role, its peer)."""
        orders = [one for one in await self.pool.inbox(rank) if isinstance(one, PlanOrder)]
        found = [one for one in orders if one.kind == "plan_prepare"]
        new, self.read[rank] = found[self.read[rank] :], len(found)
        assert all((one.why, one.count) == (Why.CALIBRATE, 1) for one in new)
        return [(one.role, one.peer) for one in new]

    async def settle(self):
        """End what is under way as if both had stopped."""
        for name in {one.id for one in await self.pool.inbox(0) if isinstance(one, PlanOrder)}:
            for rank in (0, 1):
                epoch = self.pool.epochs[rank]
                await self.plans.abort(name, rank, epoch, "stopped", stopped=True)


@pytest.fixture
async def led(pool, monkeypatch):
    monkeypatch.setattr(links, "EVERY_S", 0.0)
    monkeypatch.setattr(pairs, "EVERY_S", 0.0)
    found = Led(pool)
    for rank in (0, 1):
        await found.join(rank)
    await found.join(2, way="")
    return found


async def test_two_that_can_move_blocks_are_asked_once(led):
    for _ in range(3):
        await led.turn()
    assert await led.asked(0) == [(Role.SOURCE, 1)]
    assert await led.asked(1) == [(Role.DESTINATION, 0)]
    assert await led.asked(2) == []


async def test_a_worker_that_comes_anew_is_asked_again(led):
    await led.turn()
    await led.settle()
    await led.asked(0)
    await led.pool.lose(1)
    await led.turn()
    assert await led.asked(0) == []
    await led.join(1)
    await led.turn()
    assert await led.asked(0) == [(Role.SOURCE, 1)]


async def test_what_was_refused_is_asked_for_again(led):
    await led.pool.report(1, free=1, reclaimable=20)
    await led.turn()
    assert await led.asked(0) == []
    await led.pool.report(1, free=20)
    await led.turn()
    assert await led.asked(0) == [(Role.SOURCE, 1)]


async def test_where_no_blocks_are_moved_none_is_asked(led):
    await led.pool.store.tune(dict.fromkeys(USES, "0"))
    await led.turn()
    assert await led.asked(0) == []
    await led.pool.store.tune({"foreground": "1"})
    await led.turn()
    assert await led.asked(0) == [(Role.SOURCE, 1)]
