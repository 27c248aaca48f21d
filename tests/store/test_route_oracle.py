"""The Lua rule against the oracle, on random pools and bursts."""

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lmpoold.protocol.views import parse_words
from tests.store.oracle import Asked, Hints, OracleRank, Weights, decide, promise
from tests.store.pool import BLOCK, begin, names, pages_of

STEMS = [[stem] * 12 + list(range(stem, stem + 12)) for stem in (1, 2)]
"""Two prompts of six blocks; those of random pools are beginnings of them, with other tails."""

SHORT = STEMS[0][: 2 * BLOCK]
ASIDE = SHORT + [50] * BLOCK

quarters = st.integers(0, 40).map(lambda n: n / 4)
weights = st.one_of(
    st.just(Weights()),
    st.builds(
        Weights,
        **{
            name: quarters
            for name in Weights.__dataclass_fields__
            if name not in ("w_urgent", "origin_hops")
        },
        w_urgent=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
        origin_hops=st.integers(0, 2),
    ),
)
small = st.one_of(st.just(0), st.integers(0, 60))


@st.composite
def pools(draw):
    """Up to five ranks: (the oracle's, how many blocks of each stem it holds)."""
    found = {}
    for number in draw(
        st.lists(st.sampled_from([0, 1, 2, 3, 4, 12]), min_size=1, max_size=5, unique=True)
    ):
        rank = OracleRank(
            state=draw(st.sampled_from(["up", "up", "up", "drain", "down"])),
            alive=draw(st.sampled_from([True, True, True, False])),
            free=draw(st.integers(0, 24)),
            reclaimable=draw(st.integers(0, 12)),
            wait_tokens=draw(small),
            run_tokens=draw(small),
            sequences=draw(st.integers(0, 2)),
        )
        found[number] = (rank, [draw(st.integers(0, 6)) for _ in STEMS])
    return found


@st.composite
def prompts(draw):
    stem = draw(st.sampled_from(STEMS))
    kept = draw(st.integers(0, len(stem)))
    return stem[:kept] + draw(st.lists(st.integers(50, 60), max_size=6))


@st.composite
def questions(draw):
    prompt = draw(prompts())
    return prompt, Asked(
        prompt_tokens=len(prompt),
        max_tokens=draw(st.integers(1, 20)),
        hashes=names(prompt),
        priority=draw(st.sampled_from([0, 0, 0, 3, -2])),
        origin=draw(st.one_of(st.none(), st.integers(0, 4))),
    )


requests = st.lists(questions(), min_size=1, max_size=6)
numbers = st.integers(0, 4)
links = st.lists(st.tuples(numbers, numbers).filter(lambda pair: pair[0] != pair[1]), max_size=3)
leases = st.lists(
    st.tuples(st.sampled_from(STEMS), st.integers(1, 6), st.lists(st.integers(1, 3), max_size=5)),
    max_size=2,
)


async def build(store, drawn, w, pairs=(), by_hand=True):
    """Make the pool on the server as it was drawn; returns it with the oracle's ranks.

    Its pairs are named by hand, or are the links that a leader found.
    """
    pool = await begin(store)
    constants = {name: getattr(w, name) for name in Weights.__dataclass_fields__}
    if pairs and not by_hand:
        links = {f"{x}>{y}": "1 1" for pair in pairs for x, y in (pair, pair[::-1])}
        await store.redis.hset(store.keys.links, mapping=links)
        pairs = ()
    await pool.set(**constants, pairs=",".join(f"{x}-{y}" for x, y in pairs))
    for number, (rank, depths) in drawn.items():
        pages = {}
        for stem, depth in zip(STEMS, depths, strict=True):
            pages |= pages_of(stem[: depth * BLOCK])
        await pool.join(number)
        await pool.report(
            number,
            free=rank.free,
            reclaimable=rank.reclaimable,
            wait=rank.wait_tokens,
            run=rank.run_tokens,
            sequences=rank.sequences,
            puts=pages,
        )
        rank.pages = frozenset(pages)
    return pool, {number: rank for number, (rank, _) in drawn.items()}


async def grant(pool, ranks, given, hints):
    """Give leases to ranks as drawn: quotas in order of rank."""
    token = await pool.store.acquire("d0", 60_000)
    for stem, depth, quotas in given:
        name = names(stem)[depth - 1]
        sides = dict(zip(sorted(ranks), quotas, strict=False))
        if sides:
            await pool.store.lease_grant(token, name, depth, 60_000, sides)
            hints.leases[name] = (depth, sides)


async def unsettle(pool, ranks):
    """Now ranks drain, leave and fall silent as drawn."""
    for number, rank in ranks.items():
        if rank.state == "drain":
            await pool.store.drain(number, draining=True)
        elif rank.state == "down":
            await pool.store.rank_down(number, pool.epochs[number])
        if not rank.alive:
            await pool.lose(number)


async def candidates_of(store, request_id):
    """Rank -> what `explain` says of it as a candidate."""
    rows = [parse_words(line) for line in await store.explain(request_id) if "verdict=" in line]
    return {
        int(row.pop("candidate")): {
            name: word if name == "verdict" else int(word) for name, word in row.items()
        }
        for row in rows
    }


async def check(store, ranks, w, request_id, asked, routed, hints):
    """One reply is one the oracle allows; then the oracle follows it."""
    verdict = decide(ranks, asked, BLOCK, w, hints)
    raw = await store.redis.hgetall(store.keys.request(request_id))
    record = {name.decode(): value.decode() for name, value in raw.items()}
    told = await candidates_of(store, request_id)
    assert told.keys() == verdict.terms.keys()
    for number, said in told.items():
        assert verdict.agrees(number, said), (number, said, verdict)
    if not verdict.choices:
        assert routed.outcome == "parked"
        assert record["reason"] == "no_capacity"
        return
    assert routed.outcome == "routed"
    assert routed.rank in verdict.choices
    made = verdict.offers[routed.rank]
    assert (routed.hit, routed.need) == (made.hit, made.need)
    assert record["reason"] in verdict.choices[routed.rank]
    promise(routed.rank, ranks[routed.rank], made, asked, BLOCK, w, hints)


@pytest.mark.better(18)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("calls", ["one call each", "one call for all"])
@given(
    drawn=pools(),
    w=weights,
    asked=requests,
    pairs=links,
    by_hand=st.booleans(),
    given_leases=leases,
)
@example(  # a cost below zero is told cut towards zero, which is up
    drawn={0: (OracleRank(reclaimable=2), [2, 0]), 1: (OracleRank(run_tokens=1), [2, 0])},
    w=Weights(),
    asked=[(ASIDE, Asked(len(ASIDE), 1, names(ASIDE)))],
    pairs=[],
    by_hand=False,
    given_leases=[(STEMS[0], 1, [1, 1])],
)
@example(  # a lease that is used up no longer hides the one on a shorter beginning
    drawn={0: (OracleRank(free=24), [2, 0])},
    w=Weights(),
    asked=[(SHORT, Asked(len(SHORT), 1, names(SHORT)))] * 2,
    pairs=[],
    by_hand=False,
    given_leases=[(STEMS[0], 1, [1]), (STEMS[0], 2, [1])],
)
async def test_the_function_decides_as_the_rule_says(
    store, calls, drawn, w, asked, pairs, by_hand, given_leases
):
    await store.redis.flushall()
    for rank, _ in drawn.values():
        rank.promised.clear()
    hints = Hints(links=frozenset(frozenset(pair) for pair in pairs))
    pool, ranks = await build(store, drawn, w, pairs, by_hand)
    await grant(pool, ranks, given_leases, hints)
    await unsettle(pool, ranks)
    made = [
        pool.call(
            f"q{i}",
            prompt,
            await pool.send(prompt="x"),
            max_tokens=one.max_tokens,
            priority=one.priority,
            origin=-1 if one.origin is None else one.origin,
        )
        for i, (prompt, one) in enumerate(asked)
    ]
    if calls == "one call for all":
        replies = await store.route(made)
    for i, (_, one) in enumerate(asked):
        routed = replies[i] if calls == "one call for all" else (await store.route([made[i]]))[0]
        await check(store, ranks, w, f"q{i}", one, routed, hints)


async def test_the_oracle_sees_a_rule_that_forgets_the_prefix(store):
    """The comparison can fail: against an oracle without pages, a hit is a contradiction."""
    drawn = {0: (OracleRank(free=24), [3, 0]), 1: (OracleRank(free=24), [0, 0])}
    pool, ranks = await build(store, drawn, Weights())
    ranks[0].pages = frozenset()
    routed = await pool.ask("a", STEMS[0])
    asked = Asked(len(STEMS[0]), 1, names(STEMS[0]))
    with pytest.raises(AssertionError):
        await check(store, ranks, Weights(), "a", asked, routed, Hints())
