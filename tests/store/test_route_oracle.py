"""The Lua rule against the oracle, on random pools and bursts."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.store.oracle import OracleRank, Weights, decide, promise
from tests.store.pool import BLOCK, begin, names, pages_of

STEMS = [[stem] * 12 + list(range(stem, stem + 12)) for stem in (1, 2)]
"""Two prompts of six blocks; those of random pools are beginnings of them, with other tails."""

quarters = st.integers(0, 40).map(lambda n: n / 4)
weights = st.one_of(
    st.just(Weights()),
    st.builds(
        Weights,
        w_wait=quarters,
        w_run=quarters,
        w_seq=quarters,
        w_decode=quarters,
        w_prefill=quarters,
        w_reclaim=quarters,
    ),
)
small = st.one_of(st.just(0), st.integers(0, 60))


@st.composite
def pools(draw):
    """Up to five ranks: (the oracle's, how many blocks of each stem it holds)."""
    found = {}
    for number in draw(st.lists(st.integers(0, 12), min_size=1, max_size=5, unique=True)):
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


requests = st.lists(st.tuples(prompts(), st.integers(1, 20)), min_size=1, max_size=6)


async def build(store, drawn, w):
    """Make the pool on the server as it was drawn; returns it with the oracle's ranks."""
    pool = await begin(store)
    await pool.set(**{name: getattr(w, name) for name in Weights.__dataclass_fields__})
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
        if rank.state == "drain":
            await store.drain(number, draining=True)
        elif rank.state == "down":
            await store.rank_down(number, pool.epochs[number])
        if not rank.alive:
            await pool.lose(number)
    return pool, {number: rank for number, (rank, _) in drawn.items()}


async def check(store, ranks, w, request_id, prompt, max_tokens, routed):
    """One reply is one the oracle allows; then the oracle follows it."""
    verdict = decide(ranks, len(prompt), names(prompt), BLOCK, w)
    raw = await store.redis.hgetall(store.keys.request(request_id))
    record = {name.decode(): value.decode() for name, value in raw.items()}
    told = {int(n): text for n, _, text in (t.partition(" ") for t in record["terms"].split(";"))}
    assert told.keys() == verdict.terms.keys()
    for number, text in told.items():
        assert verdict.agrees(number, text), (number, text, verdict)
    if not verdict.choices:
        assert routed.outcome == "parked"
        assert record["reason"] == verdict.reason(None)
        return
    assert routed.outcome == "routed"
    assert routed.rank in verdict.choices
    made = verdict.offers[routed.rank]
    assert (routed.hit, routed.need) == (made.hit, made.need)
    assert record["reason"] == verdict.reason(routed.rank)
    promise(ranks[routed.rank], made, len(prompt), max_tokens, BLOCK, w)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("calls", ["one call each", "one call for all"])
@given(drawn=pools(), w=weights, asked=requests)
async def test_the_function_decides_as_the_rule_says(store, calls, drawn, w, asked):
    await store.redis.flushall()
    for rank, _ in drawn.values():
        rank.promised.clear()
    pool, ranks = await build(store, drawn, w)
    rows = [
        (f"q{i}", prompt, max_tokens, await pool.send(prompt="x"))
        for i, (prompt, max_tokens) in enumerate(asked)
    ]
    made = [
        pool.call(request_id, prompt, entry, max_tokens=max_tokens)
        for request_id, prompt, max_tokens, entry in rows
    ]
    if calls == "one call for all":
        replies = await store.route(made)
    for i, (request_id, prompt, max_tokens, _) in enumerate(rows):
        routed = replies[i] if calls == "one call for all" else (await store.route([made[i]]))[0]
        await check(store, ranks, w, request_id, prompt, max_tokens, routed)


async def test_the_oracle_sees_a_rule_that_forgets_the_prefix(store):
    """The comparison can fail: against an oracle without pages, a hit is a contradiction."""
    drawn = {0: (OracleRank(free=24), [3, 0]), 1: (OracleRank(free=24), [0, 0])}
    pool, ranks = await build(store, drawn, Weights())
    ranks[0].pages = frozenset()
    routed = await pool.ask("a", STEMS[0])
    with pytest.raises(AssertionError):
        await check(store, ranks, Weights(), "a", STEMS[0], 1, routed)
