"""Transfer plans: phase order, idempotence, fences, on both servers."""

import pytest

from lmpoold.protocol.errors import Conflict, Stale
from lmpoold.protocol.transfer import SETTLED, SUCCESSORS, BlockRef, Phase, Role
from tests.store.plan import CHAIN, DST, PROMPT, SRC, begin_plan, finish
from tests.store.pool import BLOCK, ROOT, everything, pages_of


@pytest.fixture
async def plan(pool):
    return await begin_plan(pool)


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


async def test_the_log_says_whether_the_two_had_to_connect(plan):
    await plan.begin()
    await plan.pinned()
    epoch = plan.pool.epochs[DST]
    refs = tuple(BlockRef(20 + depth, 3) for depth in range(1, 5))
    await plan.plans.reserved("p", DST, epoch, first=1, refs=refs, opened=True)
    await plan.executed()
    await plan.publish()
    await plan.finalize(SRC)
    await plan.finalize(DST)
    (row,) = await plan.plans.log()
    assert (row["outcome"], row["opened"]) == ("finalize", "1")


async def test_the_log_tells_the_phases_in_their_order(plan):
    await plan.to(Phase.FINALIZE)
    (row,) = await plan.plans.log()
    times = [int(row[name]) for name in ("prepare_us", "publish_us", "settle_us")]
    assert times == sorted(times)
    assert times[0] > 0
    assert row["opened"] == "0"


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


@pytest.mark.better(15)
async def test_a_copys_source_stays_in_the_page_table_throughout(plan):
    for phase in (Phase.PREPARE, Phase.EXECUTE, Phase.PUBLISH, Phase.FINALIZE):
        plan.id = f"p-{phase}"
        await plan.to(phase)
        routed = await plan.pool.ask(f"r-{phase}", PROMPT, candidates=(SRC,))
        assert (routed.rank, routed.hit) == (SRC, 5)


@pytest.mark.better(20)
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
@pytest.mark.parametrize("phase", sorted(SETTLED))
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


@pytest.mark.better(14)
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
    with pytest.raises(Stale, match="not the leader"):
        await plan.begin()
    with pytest.raises(Stale, match="not the leader"):
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


@pytest.mark.bar(35)
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
