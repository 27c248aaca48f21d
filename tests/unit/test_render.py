"""Rows to text: widths above all."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctl.commands.explain import candidates_sheet, summary, terms_sheet
from ctl.commands.ranks import rank_sheets, row_json
from ctl.commands.status import Status, status_sheets
from ctl.render import Column, compact, drawn, percent, plain, sheet, to_json
from lmpoold.protocol.errors import DecodeError
from lmpoold.protocol.explanation import SENTENCES, read_explanation
from lmpoold.protocol.state import PoolState
from lmpoold.protocol.views import RankRow

WIDTH = 80
BIG = 10**12


def rank_row(**changes):
    values = {
        "rank": 0,
        "state": "up",
        "blocks": 512,
        "free": 400,
        "reclaimable": 100,
        "reserved": 3,
        "pages": 100,
        "sequences": 2,
        "wait_tokens": 10,
        "run_tokens": 20,
        "reserved_tokens": 30,
        "version": 7,
        "epoch": 1_795_997_945_957,
        "requests": 9,
        "prompt_tokens": 1000,
        "cached_tokens": 250,
        "output_tokens": 90,
        "device": "cpu",
        "host": "laptop",
        "pid": "4242",
    }
    return RankRow(**{**values, **changes})


def status_of(*rows, pool="default", url="unix:///var/lib/lmpool/server/redis.sock", **changes):
    values = {
        "cfg": {"model": "demo", "block_size": "16", "max_model_len": "2048"},
        "ranks": rows,
        "ingress": 1,
        "parked": 2,
        "dead": 3,
        "leader": "laptop-77",
        "token": "1790000000000",
        "daemons": 2,
    }
    return Status("Valkey 9.1.2", url, pool, PoolState(**{**values, **changes}))


HUGE = rank_row(
    rank=1023,
    state="drain",
    blocks=BIG,
    free=BIG // 2,
    reclaimable=BIG // 3,
    reserved=BIG,
    pages=BIG,
    sequences=BIG,
    wait_tokens=BIG,
    run_tokens=BIG,
    reserved_tokens=BIG,
    version=BIG,
    requests=BIG,
    prompt_tokens=BIG,
    cached_tokens=BIG,
    output_tokens=BIG,
    device="cuda:7 NVIDIA H200 with a long name",
    host="a-host.with.a.very.long.name.in.some.data.centre.example.com",
    pid="4194304",
)


def widest(text):
    return max(len(line) for line in text.splitlines())


def test_no_row_of_status_or_ranks_is_wider_than_a_terminal_of_80():
    long = status_of(rank_row(), HUGE, url="redis://" + "h" * 90, pool="p" * 64)
    for table in (*status_sheets(long), *rank_sheets([rank_row(), HUGE])):
        assert widest(drawn(table, WIDTH)) <= WIDTH


def test_no_number_is_cut_on_a_terminal_of_80():
    for table in (*status_sheets(status_of(HUGE))[1:], *rank_sheets([HUGE])):
        text = drawn(table, WIDTH)
        numbers = [at for at, column in enumerate(table.columns) if not column.flexible]
        for row in table.rows:
            assert all(row[at] in text for at in numbers)


def test_a_flexible_column_gives_way_with_an_ellipsis():
    table = sheet([Column("host", flexible=True), Column("pid", number=True)], [("h" * 200, 4242)])
    line = drawn(table, 40).splitlines()[1]
    assert "…" in line
    assert "4242" in line
    assert len(line) <= 40


def test_explain_fits_a_terminal_of_80():
    names = ("hit", "deep", "need", "free", "reclaimable", "queue", "prefill", "reclaim", "hop")
    words = [f"{name}=-{BIG}" for name in (*names, "lease", "cost")]
    line = f"candidate=1023 {' '.join(words)} verdict=ok"
    found = read_explanation(["id=r", "state=done", "rank=1023", line])
    assert widest(drawn(candidates_sheet(found), WIDTH)) <= WIDTH
    assert widest(drawn(terms_sheet(found), WIDTH)) <= WIDTH


def test_a_pipe_gets_aligned_columns_uncut():
    table = sheet([Column("name"), Column("n", number=True)], [("a" * 100, 1), ("b", None)])
    head, first, second = plain(table).splitlines()
    assert head == "name" + " " * 98 + "n"
    assert first == "a" * 100 + "  1"
    assert second == "b" + " " * 101 + "-"


def test_a_table_without_rows_still_shows_its_head():
    table = sheet([Column("rank"), Column("state")], [])
    assert plain(table) == "rank  state"
    assert drawn(table, WIDTH).split() == ["rank", "state"]


def test_a_title_stands_above_the_rows():
    table = sheet([Column("rank")], [(0,)], "KV blocks")
    assert plain(table).splitlines()[0] == "KV blocks"
    assert drawn(table, WIDTH).splitlines()[0].strip() == "KV blocks"


@given(st.integers(-(10**15), 10**17))
def test_a_compact_count_is_near_the_count_and_at_most_six_wide(count):
    text = compact(count)
    assert len(text.lstrip("-")) <= 6
    units = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
    value = float(text[:-1]) * units[text[-1]] if text[-1] in units else float(text)
    assert abs(value - count) <= 0.01 * abs(count)


@pytest.mark.parametrize(("ratio", "text"), [(None, "-"), (0.0, "0.0%"), (0.5312, "53.1%")])
def test_a_share_is_percent_and_a_missing_one_a_dash(ratio, text):
    assert percent(ratio) == text


def test_json_is_one_line_and_keeps_text_readable():
    text = to_json({"text": "日本\n", "none": None})
    assert "\n" not in text
    assert "日本" in text
    assert json.loads(text) == {"text": "日本\n", "none": None}


def test_the_hit_rate_of_a_pool_is_a_ratio_of_sums():
    idle = rank_row(rank=1, prompt_tokens=10, cached_tokens=10)
    busy = rank_row(rank=0, prompt_tokens=990, cached_tokens=0)
    found = status_of(busy, idle).to_json()
    assert found["totals"]["hit_rate"] == 0.01
    assert [row["hit_rate"] for row in found["ranks"]] == [0.0, 1.0]


def test_a_pool_that_answered_nothing_has_no_hit_rate():
    row = rank_row(prompt_tokens=0, cached_tokens=0)
    assert status_of(row).state.totals["hit_rate"] is None
    assert "-" in plain(status_sheets(status_of(row))[1])


def test_only_ranks_that_take_requests_count_as_up():
    states = ("up", "drain", "down", "lost")
    rows = [rank_row(rank=at, state=state) for at, state in enumerate(states)]
    assert status_of(*rows).state.up == 1


def test_a_rank_that_is_down_uses_no_blocks():
    assert rank_row().used_blocks == 12
    assert rank_row(state="down", free=0, reclaimable=0).used_blocks == 0
    assert row_json(rank_row())["used"] == 12


def test_status_before_the_first_lmpoold_says_that_there_is_no_model():
    (table,) = status_sheets(status_of(cfg={}))
    assert "no lmpoold" in plain(table)


EXPLAINED = (
    "id=sky",
    "state=done",
    "rank=1",
    "finish=stop",
    "reason=load_outweighs_prefix",
    "candidate=0 hit=3 deep=5 need=1 free=-2 reclaimable=9 queue=900 prefill=6 reclaim=4 hop=128 "
    "lease=128 cost=910 verdict=full",
    "candidate=1 hit=0 deep=0 need=4 free=50 reclaimable=0 queue=0 prefill=60 reclaim=0 hop=0 "
    "lease=0 cost=60 verdict=ok",
)


def test_an_explanation_marks_the_rank_that_was_taken():
    found = read_explanation(EXPLAINED)
    assert found.rank == 1
    assert [row[0] for row in candidates_sheet(found).rows] == ["", ">"]
    assert found.candidates[0].free == -2


def test_an_explanation_shows_what_each_cost_is_made_of():
    first, second = terms_sheet(read_explanation(EXPLAINED)).rows
    assert first == ("0", "2", "900", "6", "4", "128", "128", "910")
    assert second == ("1", "0", "0", "60", "0", "0", "0", "60")


def test_an_explanation_gives_the_reason_in_words_and_all_facts():
    lines = summary(read_explanation(EXPLAINED))
    assert lines[0].split() == ["request", "sky"]
    assert "done on rank 1" in lines[1]
    assert any("finish=stop" in line for line in lines)
    assert SENTENCES["load_outweighs_prefix"] in lines[-1]


def test_a_request_that_was_not_routed_says_so():
    found = read_explanation(["id=sky", "state=queued"])
    assert found.rank is None
    assert "not routed" in summary(found)[-1]


def test_a_reason_without_a_sentence_is_shown_as_it_is():
    assert read_explanation(["id=a", "reason=new_rule"]).sentence == "new_rule"


def test_a_candidate_that_cannot_be_read_is_refused():
    with pytest.raises(DecodeError):
        read_explanation(["id=a", "candidate=0 hit=many"])
