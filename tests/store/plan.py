"""One plan of the store tests: both sides of it in one hand."""

from dataclasses import dataclass, field

from lmpoold.protocol.transfer import SETTLED, BlockRef, Mode, Phase, PlanOrder, Why
from lmpoold.store.plans import PlanStore
from tests.store.pool import BLOCK, ROOT, Pool, names, pages_of

PROMPT = list(range(5 * BLOCK))
CHAIN = names(PROMPT)
SRC, DST = 0, 1


@dataclass
class Plan:
    """One plan of four missing blocks from rank 0 to rank 1, and both sides of it."""

    pool: Pool
    id: str = "p"
    first: int = 1
    token: str = ""
    plans: PlanStore = field(init=False)

    def __post_init__(self) -> None:
        self.plans = PlanStore(self.pool.store)

    async def begin(self, **changes) -> Phase | str:
        options = {
            "token": self.token,
            "mode": Mode.COPY,
            "why": Why.BACKGROUND,
            "source": SRC,
            "destination": DST,
            "hashes": CHAIN,
            "first": self.first,
        }
        return await self.plans.prepare(self.id, **{**options, **changes})

    async def pinned(self, *, count: int = 5, first: int = 1) -> Phase:
        refs = tuple(BlockRef(depth, 1) for depth in range(first, count))
        tokens = PROMPT[first * BLOCK : count * BLOCK]
        return await self.plans.pinned(
            self.id,
            SRC,
            self.pool.epochs[SRC],
            first=first,
            count=count,
            root=ROOT,
            refs=refs,
            tokens=tokens,
        )

    async def reserved(self, *, first: int = 1) -> Phase:
        refs = tuple(BlockRef(20 + depth, 3) for depth in range(first, 5))
        return await self.plans.reserved(
            self.id, DST, self.pool.epochs[DST], first=first, refs=refs
        )

    async def executed(self) -> Phase:
        return await self.plans.executed(self.id, SRC, self.pool.epochs[SRC], 700)

    async def publish(self) -> Phase:
        return await self.plans.publish(self.id, DST, self.pool.epochs[DST], 800)

    async def finalize(self, rank: int) -> Phase:
        return await self.plans.finalize(self.id, rank, self.pool.epochs[rank], 0)

    async def abort(self, rank: int, *, stopped: bool = True) -> Phase:
        epoch = self.pool.epochs[rank]
        return await self.plans.abort(self.id, rank, epoch, "why not", stopped=stopped)

    async def reap(self) -> list[str]:
        return await self.plans.reap(self.token, 100)

    async def late(self) -> None:
        """The deadline of the plan's phase passes."""
        await self.pool.store.redis.zadd(self.pool.store.keys.plans, {self.id: 1})

    async def to(self, phase: Phase) -> None:
        """Bring a new plan to a phase by what both sides say."""
        assert await self.begin() is Phase.PREPARE
        if phase is Phase.PREPARE:
            return
        if phase in (Phase.ABORT, Phase.ABORTED):
            await self.abort(SRC)
            if phase is Phase.ABORTED:
                await self.abort(DST)
            return
        await self.pinned()
        await self.reserved()
        if phase is Phase.EXECUTE:
            return
        await self.executed()
        await self.publish()
        if phase is Phase.FINALIZE:
            await self.finalize(SRC)
            await self.finalize(DST)

    async def phase(self) -> Phase | None:
        return await self.plans.phase(self.id)

    async def orders(self, rank: int) -> list[PlanOrder]:
        return [one for one in await self.pool.inbox(rank) if isinstance(one, PlanOrder)]

    async def kinds(self, rank: int) -> list[str]:
        return [order.kind.removeprefix("plan_") for order in await self.orders(rank)]

    async def visible(self) -> list[bool]:
        pages = self.pool.store.keys.pages(DST)
        return [bool(await self.pool.store.redis.hexists(pages, name)) for name in CHAIN]

    async def settled(self) -> None:
        """Nothing is left of the plan but its record, which goes by itself."""
        redis, keys = self.pool.store.redis, self.pool.store.keys
        assert await redis.zscore(keys.plans, self.id) is None
        assert 0 < await redis.ttl(keys.plan(self.id)) <= 600
        assert await redis.hexists(keys.plan(self.id), "tokens") == 0
        for rank in (SRC, DST):
            taken = await redis.smembers(f"{keys.prefix}r:{rank}:plans")
            incoming = await redis.hvals(f"{keys.prefix}r:{rank}:incoming")
            assert self.id.encode() not in {*taken, *incoming}


async def begin_plan(pool: Pool) -> Plan:
    """Two ranks, the chain on the first, its root on the second, and a leader: no plan yet."""
    for rank in (SRC, DST):
        await pool.join(rank)
    await pool.report(SRC, puts=pages_of(PROMPT))
    await pool.report(DST, puts=pages_of(PROMPT[:BLOCK], 9))
    return Plan(pool, token=await pool.store.acquire("me", 60_000))


async def finish(plan: Plan) -> None:
    """Say whatever brings a plan to its end."""
    await plan.abort(SRC)
    await plan.abort(DST)
    for rank in (SRC, DST):
        await plan.finalize(rank)
    assert await plan.phase() in SETTLED
    await plan.settled()
