"""Transfer plans: phase order, idempotence, fences, deadlines, on both servers."""

from dataclasses import dataclass, field

import pytest

from lmpoold.protocol.errors import Conflict, Stale
from lmpoold.protocol.hashing import HASH_DIGITS
from lmpoold.protocol.transfer import (
    SETTLED,
    SUCCESSORS,
    BlockRef,
    Mode,
    Phase,
    PlanOrder,
    Role,
    Why,
)
from lmpoold.store.plans import PlanStore
from tests.store.pool import BLOCK, ROOT, Pool, everything, names, pages_of

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


@pytest.fixture
async def plan(pool):
    for rank in (SRC, DST):
        await pool.join(rank)
    await pool.report(SRC, puts=pages_of(PROMPT))
    await pool.report(DST, puts=pages_of(PROMPT[:BLOCK], 9))
    token = await pool.store.acquire("me", 60_000)
    return Plan(pool, token=token)


# --- the way through


async def test_a_plan_goes_from_prepare_to_finalize_by_what_both_sides_say(plan):
    assert await plan.begin() is Phase.PREPARE
    assert await plan.pinned() is Phase.PREPARE
    assert await plan.reserved() is Phase.EXECUTE
    assert await plan.executed() is Phase.EXECUTE
    assert await plan.visible() == [True, False, False, False, False]
    assert await plan.publish() is Phase.PUBLISH
    assert await plan.visible() == [True] * 5
    assert await plan.finalize(DST) is Phase.PUBLISH
    assert await plan.finalize(SRC) is Phase.FINALIZE
    assert await plan.kinds(SRC) == ["prepare", "execute", "finalize"]
    assert await plan.kinds(DST) == ["prepare", "execute"]
    await plan.settled()


async def test_orders_tell_each_side_what_the_other_holds(plan):
    await plan.to(Phase.EXECUTE)
    prepare, execute = await plan.orders(DST)
    assert (prepare.role, prepare.peer, prepare.first) == (Role.DESTINATION, SRC, 1)
    assert prepare.hashes == CHAIN
    assert (prepare.epoch, prepare.peer_epoch) == (plan.pool.epochs[DST], plan.pool.epochs[SRC])
    assert (execute.first, execute.count) == (1, 5)
    assert execute.refs == tuple(BlockRef(depth, 1) for depth in range(1, 5))
    assert execute.tokens.split() == [str(token) for token in PROMPT[BLOCK:]]
    assert execute.root == ROOT
    _, execute = await plan.orders(SRC)
    assert execute.role is Role.SOURCE
    assert execute.refs == tuple(BlockRef(20 + depth, 3) for depth in range(1, 5))


async def test_only_what_the_source_has_and_the_destination_lacks_travels(plan):
    await plan.begin(first=0)
    await plan.pinned(count=4, first=0)
    await plan.reserved(first=2)
    execute = (await plan.orders(DST))[-1]
    assert (execute.first, execute.count) == (2, 4)
    assert execute.refs == (BlockRef(2, 1), BlockRef(3, 1))
    assert execute.tokens.split() == [str(token) for token in PROMPT[2 * BLOCK : 4 * BLOCK]]
    assert (await plan.orders(SRC))[-1].refs == (BlockRef(22, 3), BlockRef(23, 3))


@pytest.mark.parametrize(
    ("have", "want", "reason"), [(3, 3, "nothing_missing"), (5, 0, "prefix_reclaimed")]
)
async def test_a_plan_with_nothing_to_send_or_a_hole_before_it_is_aborted(plan, have, want, reason):
    await plan.begin()
    await plan.pinned(count=have)
    assert await plan.reserved(first=want) is Phase.ABORT
    record = await plan.pool.store.redis.hget(plan.pool.store.keys.plan("p"), "reason")
    assert record.decode() == reason


async def test_published_pages_name_the_destinations_blocks_and_their_parents(plan):
    await plan.to(Phase.PUBLISH)
    raw = await plan.pool.store.redis.hgetall(plan.pool.store.keys.pages(DST))
    for depth in range(1, 5):
        value = raw[CHAIN[depth].encode()].decode()
        assert value == f"{20 + depth}:3:{depth}:{CHAIN[depth - 1]}"


async def test_a_page_that_the_destination_reported_meanwhile_stays(plan):
    await plan.to(Phase.EXECUTE)
    own = pages_of(PROMPT[: 2 * BLOCK], 9)
    await plan.pool.report(DST, puts=own)
    await plan.publish()
    raw = await plan.pool.store.redis.hget(plan.pool.store.keys.pages(DST), CHAIN[1])
    assert raw.decode() == str(own[CHAIN[1]])


async def test_pages_wait_for_a_parent_that_a_delta_has_yet_to_bring(plan):
    await plan.to(Phase.EXECUTE)
    await plan.pool.store.redis.hdel(plan.pool.store.keys.pages(DST), CHAIN[0])
    assert await plan.publish() is Phase.PUBLISH
    assert await plan.visible() == [False] * 5


async def test_a_copys_source_stays_in_the_page_table_throughout(plan):
    for phase in (Phase.PREPARE, Phase.EXECUTE, Phase.PUBLISH, Phase.FINALIZE):
        plan.id = f"p-{phase}"
        await plan.to(phase)
        routed = await plan.pool.ask(f"r-{phase}", PROMPT, candidates=(SRC,))
        assert (routed.rank, routed.hit) == (SRC, 5)


async def test_the_log_holds_the_figures_of_a_settled_plan(plan):
    await plan.to(Phase.FINALIZE)
    (row,) = await plan.plans.log()
    assert (row["outcome"], row["blocks"], row["src_us"], row["dst_us"]) == (
        "finalize",
        "4",
        "700",
        "800",
    )
    assert int(row["publish_us"]) > 0


# --- saying things twice, too late, or as somebody else


WORDS = {
    "begin": lambda plan: plan.begin(),
    "pinned": lambda plan: plan.pinned(),
    "reserved": lambda plan: plan.reserved(),
    "executed": lambda plan: plan.executed(),
    "publish": lambda plan: plan.publish(),
    "source clears": lambda plan: plan.finalize(SRC),
    "destination clears": lambda plan: plan.finalize(DST),
    "source stops": lambda plan: plan.abort(SRC),
    "destination stops": lambda plan: plan.abort(DST),
}


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("phase", SETTLED)
async def test_nothing_that_is_said_changes_a_settled_plan(plan, phase, word):
    await plan.to(phase)
    before = await everything(plan.pool.store)
    assert await WORDS[word](plan) is phase
    assert await everything(plan.pool.store) == before


@pytest.mark.parametrize(
    ("phase", "word"),
    [
        (Phase.PREPARE, "begin"),
        (Phase.EXECUTE, "pinned"),
        (Phase.EXECUTE, "reserved"),
        (Phase.PUBLISH, "executed"),
        (Phase.PUBLISH, "publish"),
        (Phase.ABORT, "source stops"),
    ],
)
async def test_saying_the_same_thing_twice_changes_nothing(plan, phase, word):
    await plan.to(phase)
    before = await everything(plan.pool.store)
    assert await WORDS[word](plan) is phase
    assert await everything(plan.pool.store) == before


@pytest.mark.parametrize("phase", Phase)
async def test_a_word_moves_a_plan_along_the_table_or_not_at_all(plan, phase):
    for word, say in WORDS.items():
        plan.id = f"p {word}"
        await plan.to(phase)
        await say(plan)
        after = await plan.phase()
        assert after is phase or after in SUCCESSORS[phase] or after in reached(phase), word
        await finish(plan)


def reached(phase: Phase) -> set[Phase]:
    """Where one call may get to by two steps: an abort whose other side has stopped, say."""
    return {far for near in SUCCESSORS[phase] for far in SUCCESSORS[near]} & {Phase.ABORTED}


async def finish(plan: Plan) -> None:
    await plan.abort(SRC)
    await plan.abort(DST)
    for rank in (SRC, DST):
        await plan.finalize(rank)
    assert await plan.phase() in SETTLED
    await plan.settled()


async def test_publish_before_both_have_prepared_shows_nothing(plan):
    await plan.to(Phase.PREPARE)
    await plan.reserved()
    assert await plan.publish() is Phase.PREPARE
    assert await plan.visible() == [True, False, False, False, False]


async def test_only_the_destination_can_publish(plan):
    await plan.to(Phase.EXECUTE)
    phase = await plan.plans.publish("p", SRC, plan.pool.epochs[SRC], 1)
    assert phase is Phase.EXECUTE
    assert await plan.visible() == [True, False, False, False, False]


async def test_a_plan_nobody_knows_is_a_conflict(plan):
    with pytest.raises(Conflict, match="no plan nowhere"):
        await plan.plans.publish("nowhere", DST, plan.pool.epochs[DST], 1)


async def test_a_third_rank_has_no_say(plan):
    epoch = await plan.pool.join(2)
    await plan.to(Phase.EXECUTE)
    with pytest.raises(Stale, match="not of rank 2"):
        await plan.plans.abort("p", 2, epoch, "no", stopped=True)


# --- fences


async def test_a_leader_of_the_past_begins_nothing(plan):
    await plan.pool.store.redis.delete(plan.pool.store.keys.lead)
    await plan.pool.store.acquire("another", 60_000)
    before = await everything(plan.pool.store)
    with pytest.raises(Stale, match="another lmpoold leads"):
        await plan.begin()
    with pytest.raises(Stale, match="another lmpoold leads"):
        await plan.reap()
    assert await everything(plan.pool.store) == before


async def test_a_worker_begins_plans_for_itself_under_its_own_epoch_only(plan):
    assert await plan.begin(rank=SRC, token=plan.pool.epochs[SRC]) is Phase.PREPARE
    plan.id = "q"
    with pytest.raises(Stale):
        await plan.begin(rank=SRC, token="1")


@pytest.mark.parametrize("side", [SRC, DST])
async def test_what_a_side_says_under_an_old_epoch_is_refused(plan, side):
    await plan.to(Phase.EXECUTE)
    await plan.pool.lose(side)
    old = plan.pool.epochs[side]
    await plan.pool.join(side)
    with pytest.raises(Stale):
        await plan.plans.abort("p", side, old, "x", stopped=True)
    with pytest.raises(Stale, match="is not of rank"):
        await plan.plans.abort("p", side, plan.pool.epochs[side], "x", stopped=True)


@pytest.mark.parametrize("how", ["down", "lost", "back"])
async def test_blocks_of_a_source_that_is_gone_are_not_published(plan, how):
    await plan.to(Phase.EXECUTE)
    await plan.pool.lose(SRC)
    if how == "down":
        await plan.pool.store.reap(100)
    if how == "back":
        await plan.pool.join(SRC)
    assert await plan.publish() is Phase.ABORT
    assert await plan.visible() == [True, False, False, False, False]


@pytest.mark.parametrize("side", ["source", "destination"])
async def test_a_plan_needs_two_ranks_that_are_up(plan, side):
    lost = SRC if side == "source" else DST
    await plan.pool.lose(lost)
    await plan.pool.store.reap(100)
    assert await plan.begin() == "down"


async def test_a_draining_rank_gives_but_does_not_get(plan):
    await plan.pool.store.drain(SRC, draining=True)
    assert await plan.begin() is Phase.PREPARE
    await plan.pool.store.drain(DST, draining=True)
    plan.id = "q"
    assert await plan.begin() == "down"


async def test_a_rank_takes_part_in_so_many_plans_and_no_more(plan):
    await plan.pool.set(plans_per_rank=2)
    for number, wanted in enumerate([Phase.PREPARE, Phase.PREPARE, "busy"]):
        plan.id = f"p{number}"
        assert await plan.begin() == wanted
    plan.id = "p0"
    await finish(plan)
    plan.id = "p3"
    assert await plan.begin() is Phase.PREPARE


# --- aborts


@pytest.mark.parametrize("phase", [Phase.PREPARE, Phase.EXECUTE])
async def test_nobody_settles_before_both_have_stopped(plan, phase):
    await plan.to(phase)
    assert await plan.abort(DST) is Phase.ABORT
    assert (await plan.kinds(SRC))[-1] == "abort"
    assert "settle" not in await plan.kinds(DST)
    assert await plan.abort(SRC) is Phase.ABORTED
    assert (await plan.kinds(SRC))[-1] == (await plan.kinds(DST))[-1] == "settle"
    assert await plan.visible() == [True, False, False, False, False]
    await plan.settled()


async def test_a_side_that_asks_to_abort_without_having_stopped_is_told_to(plan):
    await plan.to(Phase.EXECUTE)
    assert await plan.abort(SRC, stopped=False) is Phase.ABORT
    assert (await plan.kinds(SRC))[-1] == (await plan.kinds(DST))[-1] == "abort"
    await plan.abort(SRC)
    assert await plan.abort(DST) is Phase.ABORTED


async def test_a_published_plan_only_goes_forward(plan):
    await plan.to(Phase.PUBLISH)
    assert await plan.abort(SRC) is Phase.PUBLISH
    assert await plan.abort(DST) is Phase.PUBLISH
    assert await plan.visible() == [True] * 5
    await finish(plan)


async def test_a_source_whose_sending_failed_after_all_had_landed_clears_up(plan):
    await plan.to(Phase.EXECUTE)
    assert await plan.publish() is Phase.PUBLISH
    assert await plan.abort(SRC) is Phase.PUBLISH
    assert (await plan.kinds(SRC))[-1] == "finalize"


async def test_a_source_clears_up_when_it_has_sent_and_all_has_landed(plan):
    await plan.to(Phase.EXECUTE)
    await plan.publish()
    assert "finalize" not in await plan.kinds(SRC)
    await plan.executed()
    assert (await plan.kinds(SRC))[-1] == "finalize"


# --- the reaper


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in SETTLED])
@pytest.mark.parametrize("side", [SRC, DST])
async def test_a_plan_whose_side_dies_in_any_phase_settles(plan, phase, side):
    await plan.to(phase)
    await plan.pool.lose(side)
    await plan.pool.store.reap(100)
    other = DST if side == SRC else SRC
    await plan.reap()
    if phase is Phase.PUBLISH:
        await plan.finalize(other)
        assert await plan.phase() is Phase.FINALIZE
    else:
        await plan.abort(other)
        assert await plan.phase() is Phase.ABORTED
        assert (await plan.kinds(other))[-1] == "settle"
    await plan.settled()


async def test_a_plan_whose_sides_both_die_settles_without_a_word(plan):
    await plan.to(Phase.EXECUTE)
    for rank in (SRC, DST):
        await plan.pool.lose(rank)
    await plan.pool.store.reap(100)
    await plan.reap()
    assert await plan.phase() is Phase.ABORTED
    await plan.settled()


@pytest.mark.parametrize("phase", [Phase.PREPARE, Phase.EXECUTE])
async def test_a_phase_that_lasts_too_long_is_aborted(plan, phase):
    await plan.to(phase)
    assert await plan.reap() == []
    await plan.late()
    assert await plan.reap() == ["p aborted"]
    record = await plan.pool.store.redis.hget(plan.pool.store.keys.plan("p"), "reason")
    assert record.decode() == f"late_{phase}"
    assert (await plan.kinds(SRC))[-1] == (await plan.kinds(DST))[-1] == "abort"


@pytest.mark.parametrize(("phase", "order"), [(Phase.ABORT, "abort"), (Phase.PUBLISH, "finalize")])
async def test_a_side_that_is_silent_is_asked_again(plan, phase, order):
    await plan.to(phase)
    if phase is Phase.PUBLISH:
        await plan.finalize(SRC)
    said = len(await plan.kinds(SRC))
    await plan.late()
    assert await plan.reap() == ["p asked again"]
    assert (await plan.kinds(DST))[-1] == order
    assert len(await plan.kinds(SRC)) == said, "the side that has spoken is left alone"
    assert await plan.reap() == [], "its new deadline has not come"


async def test_a_living_side_that_stays_silent_too_long_is_fenced(plan):
    await plan.to(Phase.ABORT)
    await plan.pool.set(plan_fence_ms=1)
    await plan.pool.store.redis.hset(plan.pool.store.keys.plan("p"), "at_abort", 1)
    await plan.late()
    assert await plan.reap() == ["p fenced a silent side"]
    assert (await plan.pool.row(DST)).state == "down"
    assert (await plan.pool.row(SRC)).state == "up"
    await plan.reap()
    assert await plan.phase() is Phase.ABORTED


async def test_another_leader_goes_on_with_the_plans_of_the_last_one(plan):
    await plan.to(Phase.EXECUTE)
    await plan.pool.store.redis.delete(plan.pool.store.keys.lead)
    plan.token = await plan.pool.store.acquire("another", 60_000)
    await plan.late()
    assert await plan.reap() == ["p aborted"]
    await plan.abort(SRC)
    assert await plan.abort(DST) is Phase.ABORTED


async def test_live_plans_are_listed_with_phase_and_age(plan):
    await plan.to(Phase.EXECUTE)
    (row,) = await plan.plans.live()
    assert (row.id, row.phase, row.source, row.destination, row.blocks) == ("p", "execute", 0, 1, 4)
    assert row.age_ms >= 0
    assert 0 < row.left_ms <= 10_000
    await finish(plan)
    assert await plan.plans.live() == []


async def test_hashes_that_are_no_names_begin_nothing(plan):
    for hashes in ([], ["0" * (HASH_DIGITS - 1)]):
        with pytest.raises(Exception, match="cannot read the hashes"):
            await plan.begin(hashes=hashes)
    assert await plan.phase() is None
