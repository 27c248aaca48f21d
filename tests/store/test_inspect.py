"""page, ranks, explain: the text that people read."""

import pytest

from lmpoold.protocol.errors import Conflict
from tests.store.pool import ROOT, everything, names, pages_of

PROMPT = list(range(8))


async def test_page_names_every_rank_that_holds_a_block_by_number(pool):
    for rank in (10, 2, 1):
        await pool.join(rank)
    await pool.report(10, puts=pages_of(PROMPT, first_block=70))
    await pool.report(2, puts=pages_of(PROMPT, first_block=5))
    root, leaf = names(PROMPT)
    assert await pool.store.page(root) == [
        f"rank=2 block=5 gen=1 depth=0 parent={ROOT} ready",
        f"rank=10 block=70 gen=1 depth=0 parent={ROOT} ready",
    ]
    assert await pool.store.page(leaf) == [
        f"rank=2 block=6 gen=1 depth=1 parent={root} ready",
        f"rank=10 block=71 gen=1 depth=1 parent={root} ready",
    ]


@pytest.mark.parametrize("name", ["_", "0" * 32, ""])
async def test_page_prints_nothing_for_what_is_no_block(pool, name):
    await pool.join(0)
    await pool.report(0, puts=pages_of(PROMPT))
    assert await pool.store.page(name) == []


async def test_ranks_prints_each_rank_in_order_of_number(pool):
    for rank in (10, 2):
        await pool.join(rank)
    assert [row.rank for row in await pool.store.ranks()] == [2, 10]


async def test_a_line_of_ranks_reads_as_documented(pool):
    epoch = await pool.join(3)
    await pool.report(3, free=20, reclaimable=4, wait=5, run=6, sequences=2, puts=pages_of(PROMPT))
    await pool.ask("a", PROMPT, max_tokens=2)
    (line,) = await pool.store.call("ranks")
    assert line.decode() == (
        "rank=3 state=up blocks=32 free=20 reclaimable=4 reserved=1 pages=2 sequences=2 "
        f"wait_tokens=5 run_tokens=6 reserved_tokens=17 version=1 epoch={epoch} requests=0 "
        "prompt_tokens=0 cached_tokens=0 output_tokens=0 device=cpu host=here pid=1"
    )


async def test_a_silent_rank_reads_lost_until_it_is_reaped(pool):
    await pool.join(0)
    await pool.lose(0)
    assert (await pool.row(0)).state == "lost"
    await pool.store.reap(10)
    assert (await pool.row(0)).state == "down"


async def test_explain_prints_the_record_the_reason_and_each_candidate(pool):
    await pool.join(0)
    await pool.join(1)
    await pool.report(0, puts=pages_of(PROMPT[:4]))
    await pool.report(1, free=2, reclaimable=1, run=40, sequences=1)
    await pool.join(2)
    await pool.store.drain(2, draining=True)
    await pool.ask("a", PROMPT, client="c", deadline_ms=2**42)
    (dispatch,) = await pool.inbox(0)
    assert await pool.store.explain("a") == [
        "id=a",
        "attempt=0",
        "client=c",
        f"deadline={2**42}",
        f"entry={dispatch.entry}",
        "rank=0",
        "reason=prefix_hit",
        "state=routed",
        "candidate=0 hit=1 deep=1 need=2 free=32 reclaimable=0 queue=0 prefill=4 reclaim=0 hop=0 "
        "lease=0 cost=4 verdict=ok",
        "candidate=1 hit=0 deep=0 need=3 free=2 reclaimable=1 queue=42 prefill=8 reclaim=2 hop=0 "
        "lease=0 cost=52 verdict=ok",
        "candidate=2 hit=0 deep=0 need=0 free=0 reclaimable=0 queue=0 prefill=0 reclaim=0 hop=0 "
        "lease=0 cost=0 verdict=drain",
    ]


async def test_explain_of_a_parked_request_shows_who_was_full(pool):
    await pool.join(0)
    await pool.report(0, free=1)
    await pool.ask("a", PROMPT)
    lines = await pool.store.explain("a")
    assert {"state=parked", "reason=no_capacity"} <= set(lines)
    assert lines[-1] == (
        "candidate=0 hit=0 deep=0 need=3 free=1 reclaimable=0 queue=0 prefill=8 reclaim=4 hop=0 "
        "lease=0 cost=12 verdict=full"
    )


async def test_explain_leaves_out_who_was_a_candidate_of_an_earlier_attempt_only(pool):
    await pool.join(0)
    await pool.join(1)
    await pool.ask("a", PROMPT, candidates=(0,))
    await pool.lose(0)
    await pool.store.reap(10)
    await pool.retry("a", PROMPT, candidates=(1,))
    lines = await pool.store.explain("a")
    assert [line.split()[0] for line in lines if "verdict" in line] == ["candidate=1"]


async def test_explain_of_an_unknown_request_is_a_conflict(pool):
    with pytest.raises(Conflict, match="no request zz"):
        await pool.store.explain("zz")


@pytest.mark.parametrize("function", ["page", "ranks", "explain"])
async def test_looking_writes_nothing(pool, function):
    await pool.join(0)
    await pool.ask("a", PROMPT)
    before = await everything(pool.store)
    args = {"page": ["0" * 32], "ranks": [], "explain": ["a"]}[function]
    await pool.store.call(function, *args)
    assert await everything(pool.store) == before
