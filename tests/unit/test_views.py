"""Rows that the functions print, read back."""

from dataclasses import fields

import pytest

from lmpoold.protocol.errors import DecodeError
from lmpoold.protocol.hashing import PrefixHash
from lmpoold.protocol.views import (
    Counts,
    PageEntry,
    RankRow,
    RouteCall,
    Routed,
    parse_words,
    read_rank_row,
    read_routed,
)

LINE = (
    "rank=3 state=up blocks=32 free=20 reclaimable=4 reserved=1 pages=2 sequences=2 wait_tokens=5 "
    "run_tokens=6 reserved_tokens=17 version=1 epoch=1700000000000 requests=7 prompt_tokens=80 "
    "cached_tokens=20 output_tokens=9 device=cpu host=here pid=1"
)
ROW = RankRow(
    rank=3,
    state="up",
    blocks=32,
    free=20,
    reclaimable=4,
    reserved=1,
    pages=2,
    sequences=2,
    wait_tokens=5,
    run_tokens=6,
    reserved_tokens=17,
    version=1,
    epoch=1_700_000_000_000,
    requests=7,
    prompt_tokens=80,
    cached_tokens=20,
    output_tokens=9,
    device="cpu",
    host="here",
    pid="1",
)


def test_a_line_of_ranks_is_a_rank_row():
    assert read_rank_row(LINE) == ROW


def test_words_a_later_version_adds_are_passed_over():
    assert read_rank_row(LINE + " mood=good") == ROW


@pytest.mark.parametrize("field", [field.name for field in fields(RankRow)])
def test_a_line_without_one_of_its_words_is_a_decode_error(field):
    line = " ".join(word for word in LINE.split() if not word.startswith(f"{field}="))
    with pytest.raises(DecodeError, match="not a rank row"):
        read_rank_row(line)


def test_a_number_that_is_none_is_a_decode_error():
    with pytest.raises(DecodeError, match="not a rank row"):
        read_rank_row(LINE.replace("free=20", "free=lots"))


@pytest.mark.bar(45)
def test_the_hit_rate_is_a_ratio_of_sums_and_unknown_before_the_first_request():
    assert ROW.hit_rate == 0.25
    assert read_rank_row(LINE.replace("prompt_tokens=80", "prompt_tokens=0")).hit_rate is None


def test_a_word_may_hold_a_sign_of_equality_or_none():
    assert parse_words("a=b=c d e=") == {"a": "b=c", "d": "", "e": ""}


@pytest.mark.parametrize(
    ("line", "routed"),
    [
        ("a 3 4 2", Routed("a", "routed", 3, 4, 2)),
        ("a parked", Routed("a", "parked")),
        ("a dup", Routed("a", "dup")),
        ("a refused overloaded", Routed("a", "refused", detail="overloaded")),
        ("parked dup", Routed("parked", "dup")),
        ("3 1 0 5", Routed("3", "routed", 1, 0, 5)),
    ],
)
def test_a_reply_of_route_says_what_became_of_the_request(line, routed):
    assert read_routed(line) == routed


@pytest.mark.parametrize("line", ["", "a", "a b", "a refused", "a x 1 2", "a 1 2", "a 1 2 3 4"])
def test_another_reply_of_route_is_a_decode_error(line):
    with pytest.raises(DecodeError, match="not a route reply"):
        read_routed(line)


def test_counts_and_pages_are_the_text_the_functions_take():
    assert str(Counts(1, 2, 3, 4, 5)) == "1 2 3 4 5"
    assert str(PageEntry(7, 2, 5, PrefixHash("ab"))) == "7:2:5:ab"


def test_a_call_names_its_candidates_or_asks_every_rank():
    call = RouteCall("a", "9-0", 8, 3, [PrefixHash("x"), PrefixHash("y")], "c", "{}", "1 2", 5, 1)
    assert call.to_args() == ("a", "9-0", "8 3 5 1", "xy", "*", "c", "{}", "1 2")
    some = RouteCall("a", "9-0", 8, 3, [], "c", "{}", "1 2", candidates=(4, 1))
    assert some.to_args()[3:5] == ("", "4,1")


def test_a_call_tells_a_priority_and_an_origin_where_there_is_one():
    near = RouteCall("a", "9-0", 8, 3, [], "c", "{}", "1 2", priority=-7, origin=0)
    assert near.to_args()[2] == "8 3 0 0 -7"
    assert near.to_args()[4] == "*@0"
