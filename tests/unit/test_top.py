"""The live view: rates between two readings, and frames that fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctl.render import drawn
from ctl.top import WIDE, Rates, bar, rate_text, rates, top_sheets
from lmpoold.protocol.state import Lease, Link, PoolState
from lmpoold.protocol.transfer import PlanRow
from tests.unit.test_render import BIG, rank_row

NAME = "ab" * 16
PLAN = PlanRow("f" * 32, "execute", "copy", "background", 0, 1, 64, 1234, 8766, "-")


def pool(*ranks, **changes):
    values = {"cfg": {"model": "demo"}, "ranks": ranks, "ingress": 1, "parked": 2, "dead": 3}
    return PoolState(**{**values, "daemons": 2, "leader": "laptop-77", **changes})


def frame(before, now, width, took_s=2.0):
    return "\n\n".join(drawn(each, width) for each in top_sheets(before, now, took_s, width))


def test_rates_are_differences_over_the_time_between_and_hits_a_ratio_of_sums():
    before = [rank_row(rank=0), rank_row(rank=1)]
    now = [
        rank_row(rank=0, requests=13, prompt_tokens=1100, cached_tokens=330, output_tokens=190),
        rank_row(rank=1, requests=11, prompt_tokens=1300, cached_tokens=250, output_tokens=290),
    ]
    assert rates(before, now, 2.0) == Rates(3.0, 200.0, 150.0, 80 / 400)


def test_a_pool_that_began_anew_or_a_rank_that_is_new_has_no_rate_yet():
    assert rates([rank_row(requests=90)], [rank_row(requests=2)], 1.0).requests == 0
    assert rates([], [rank_row(requests=2)], 1.0) == Rates()
    assert rates([rank_row()], [rank_row(requests=99)], 0.0) == Rates()


@pytest.mark.parametrize(("share", "text"), [(0, "····"), (0.5, "██··"), (1, "████"), (7, "████")])
def test_a_bar_shows_a_share(share, text):
    assert bar(share, 4) == text


def test_a_bar_moves_by_eighths():
    assert bar(3 / 32, 4) == "▍···"


@pytest.mark.parametrize("width", [80, 200])
def test_a_busy_pool_fits_its_terminal_and_loses_no_number(width):
    row = rank_row(blocks=BIG, free=0, reclaimable=BIG // 3, sequences=999, wait_tokens=BIG)
    busy = pool(
        *(row for _ in range(8)),
        plans=(PLAN,) * 20,
        leases=(Lease(NAME, 12, 0, {0: 16, 1: 3}),),
        links=(Link(0, 1, 2500.0, 12.5),),
        ingress=9_999,
    )
    text = frame(busy, busy, width)
    assert max(map(len, text.splitlines())) <= width
    numbers = [line for line in text.splitlines() if line.lstrip().startswith("0  up")]
    assert numbers
    assert all("…" not in line for line in numbers)
    assert "20 under way, the oldest 8 of them" in text
    assert "0: 16, 1: 3" in text


def test_a_wide_terminal_shows_more():
    state = pool(rank_row(), plans=(PLAN,), links=(Link(0, 1, 2500.0, 12.5),))
    narrow, wide = frame(state, state, 80), frame(state, state, 200)
    for only_wide in ("laptop", "4242", "blocks held", PLAN.id, "us a block"):
        assert only_wide in wide
    assert PLAN.id not in narrow
    assert PLAN.id[:8] in narrow
    assert "us a block" not in narrow


def test_an_empty_pool_has_a_frame_too():
    text = frame(PoolState(), PoolState(), 80)
    assert "no lmpoold has described the pool" in text
    assert "0 of 0 up" in text


def test_the_oldest_plans_are_shown_first():
    old = PlanRow("0" * 32, "abort", "move", "foreground", 1, 0, 9, 60_000, -100, "timeout")
    text = frame(pool(rank_row(), plans=(PLAN, old)), pool(rank_row(), plans=(PLAN, old)), WIDE)
    assert text.index("abort") < text.index("execute")
    assert "60.0s" in text


@given(st.floats(0, 1e15))
def test_a_rate_never_takes_more_than_six_characters(value):
    assert len(rate_text(value)) <= 6
