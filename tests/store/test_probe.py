"""Plans that measure a link, on both servers: they give way, show nothing, and end as all do."""

import pytest

from lmpoold.protocol.errors import PoolMismatch, ProtocolError
from lmpoold.protocol.hashing import PrefixHash
from lmpoold.protocol.profile import Profile
from lmpoold.protocol.transfer import BlockRef, Phase, PlanOrder, Why
from lmpoold.store.plans import PlanStore
from tests.store.pool import everything

SRC, DST = 0, 1
BLOCKS = 3


class Probe:
    """A probe of three blocks and both its sides."""

    def __init__(self, pool):
        self.pool = pool
        self.plans = PlanStore(pool.store)

    async def begin(self, plan="p", *, blocks=BLOCKS, serving=False):
        return await self.plans.probe(plan, SRC, DST, blocks, serving=serving)

    async def prepared(self, rank):
        refs = tuple(BlockRef(10 * rank + at, 1) for at in range(BLOCKS))
        epoch = self.pool.epochs[rank]
        if rank == DST:
            return await self.plans.reserved("p", rank, epoch, first=0, refs=refs)
        return await self.plans.pinned(
            "p", rank, epoch, first=0, count=BLOCKS, root=PrefixHash(""), refs=refs, tokens=()
        )

    async def orders(self, rank):
        return [one for one in await self.pool.inbox(rank) if isinstance(one, PlanOrder)]

    async def to_the_end(self):
        await self.begin()
        for rank in (SRC, DST):
            await self.prepared(rank)
        await self.plans.executed("p", SRC, self.pool.epochs[SRC], 700)
        await self.plans.publish("p", DST, self.pool.epochs[DST], 800)
        for rank in (SRC, DST):
            phase = await self.plans.finalize("p", rank, self.pool.epochs[rank], 0)
        return phase


@pytest.fixture
async def probe(pool):
    for rank in (SRC, DST):
        await pool.join(rank)
    return Probe(pool)


async def test_a_probe_moves_scratch_through_every_phase_and_shows_no_page(pool, probe):
    pages = [await pool.store.redis.hgetall(pool.store.keys.pages(rank)) for rank in (SRC, DST)]
    assert await probe.to_the_end() is Phase.FINALIZE
    after = [await pool.store.redis.hgetall(pool.store.keys.pages(rank)) for rank in (SRC, DST)]
    assert after == pages


async def test_both_sides_are_told_how_many_blocks_and_what_the_other_holds(probe):
    await probe.begin()
    for rank in (SRC, DST):
        await probe.prepared(rank)
    for rank in (SRC, DST):
        prepare, execute = await probe.orders(rank)
        assert (prepare.why, prepare.count, prepare.hashes) == (Why.CALIBRATE, BLOCKS, ())
        assert (execute.first, execute.count, execute.tokens) == (0, BLOCKS, "")
        assert [ref.block for ref in execute.refs] == [10 * (1 - rank) + at for at in range(BLOCKS)]


async def test_its_figures_stand_beside_those_of_other_plans_and_go_by_themselves(pool, probe):
    await probe.to_the_end()
    ((_, row),) = await probe.plans.probed("0-0", 1)
    assert (row["id"], row["outcome"], row["blocks"]) == ("p", "finalize", str(BLOCKS))
    assert (row["src_us"], row["dst_us"]) == ("700", "800")
    assert float(row["publish_us"]) > 0
    assert 0 < await pool.store.redis.ttl(pool.store.keys.probe_log) <= 600
    assert await probe.plans.log() == []


@pytest.mark.parametrize(
    ("busy", "serving", "word"),
    [
        ({"sequences": 1}, False, "serving"),
        ({"wait": 5}, False, "serving"),
        ({}, True, "idle"),
        ({"free": 2 * BLOCKS - 1, "reclaimable": 20}, False, "no_room"),
    ],
)
@pytest.mark.parametrize("rank", [SRC, DST])
async def test_a_probe_gives_way(pool, probe, rank, busy, serving, word):
    for each in (SRC, DST):
        await pool.report(each, **(busy if each == rank else {"sequences": int(serving)}))
    before = await everything(pool.store)
    assert await probe.begin(serving=serving) == word
    assert await everything(pool.store) == before


@pytest.mark.parametrize("busy", [{"sequences": 1}, {"wait": 5}, {}])
async def test_one_that_may_begin_beside_computing_does(pool, probe, busy):
    await pool.report(SRC, **busy)
    assert await probe.begin(serving=None) is Phase.PREPARE


async def test_beside_another_plan_none_begins(probe):
    assert await probe.begin("p") is Phase.PREPARE
    assert await probe.begin("q") == "plans"
    assert await probe.begin("p") is Phase.PREPARE, "the same one, asked again"


async def test_a_rank_that_drains_can_be_probed_and_one_that_is_gone_cannot(pool, probe):
    await pool.store.drain(DST, draining=True)
    assert await probe.begin("p") is Phase.PREPARE
    await pool.lose(SRC)
    assert await probe.begin("q") == "down"
    assert await probe.plans.probe("r", DST, DST, 1, serving=False) == "down"
    with pytest.raises(ProtocolError, match="cannot probe with 0 blocks"):
        await probe.begin("s", blocks=0)


async def test_a_probe_whose_worker_dies_is_aborted_and_settled(pool, probe):
    token = await pool.store.acquire("me", 60_000)
    await probe.begin()
    for rank in (SRC, DST):
        await probe.prepared(rank)
    await pool.store.rank_down(SRC, pool.epochs[SRC])
    await probe.plans.reap(token, 100)
    await probe.plans.abort("p", DST, pool.epochs[DST], "stopped", stopped=True)
    assert await probe.plans.phase("p") is Phase.ABORTED
    ((_, row),) = await probe.plans.probed("0-0", 1)
    assert (row["outcome"], row["reason"]) == ("aborted", "source_lost")


async def test_a_profile_of_other_blocks_than_the_pools_is_not_kept(pool, probe):
    held = int((await pool.store.cfg())["kv_block_bytes"])
    await probe.plans.keep_profile(Profile(block_bytes=held))
    assert await probe.plans.profile() == Profile(block_bytes=held)
    with pytest.raises(PoolMismatch, match="run lmpoolctl calibrate again"):
        await probe.plans.keep_profile(Profile(block_bytes=2 * held))
    assert await probe.plans.profile() == Profile(block_bytes=held)
