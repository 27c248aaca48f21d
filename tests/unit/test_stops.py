from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workers.core.stops import StopMatcher

FEW = st.text("ab", min_size=1, max_size=5)
STOPS = st.lists(FEW, min_size=1, max_size=4).map(tuple)


def cut_at_first(text: str, stops: tuple[str, ...]) -> str:
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


def pieces(text: str, cuts: list[int]) -> list[str]:
    ends = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(ends)]


@given(text=st.text("abc", max_size=30), stops=STOPS, cuts=st.lists(st.integers(0, 30)))
@example(text="abab" * 3, stops=("ababb", "ba"), cuts=list(range(30)))
@example(text="aab", stops=("ab", "aabb"), cuts=[1, 2])
def test_the_outcome_is_the_text_before_the_first_match_however_it_was_cut(
    text: str, stops: tuple[str, ...], cuts: list[int]
):
    matcher = StopMatcher(stops)
    released = taken = ""
    for piece in pieces(text, cuts):
        before = matcher.stopped
        out, stopped = matcher.push(piece)
        assert not (before and out)
        assert stopped == matcher.stopped
        released, taken = released + out, taken + piece
        assert not any(stop in released for stop in stops)
        if not stopped:
            assert taken.startswith(released)
            assert len(taken) - len(released) < max(map(len, stops))
    released += matcher.flush()
    assert released == cut_at_first(text, stops)
    assert matcher.stopped == any(stop in text for stop in stops)


@given(text=st.text("ab", max_size=12), stops=STOPS)
def test_only_what_may_begin_a_stop_string_is_held_back(text: str, stops: tuple[str, ...]):
    matcher = StopMatcher(stops)
    out, stopped = matcher.push(text)
    held = text[len(out) :]
    if not stopped and held:
        assert any(stop.startswith(held) and stop != held for stop in stops)


def test_a_match_waits_for_a_longer_one_that_began_before_it():
    matcher = StopMatcher(("cd", "bcde"))
    assert matcher.push("abcd") == ("a", False)
    assert matcher.push("e") == ("", True)


def test_a_match_counts_once_the_longer_one_that_began_before_it_fails():
    matcher = StopMatcher(("cd", "bcde"))
    assert matcher.push("abcd") == ("a", False)
    assert matcher.push("x") == ("b", True)


def test_a_match_that_was_waiting_at_the_end_cuts_the_text():
    matcher = StopMatcher(("cd", "bcde"))
    matcher.push("abcd")
    assert (matcher.flush(), matcher.stopped) == ("b", True)
    assert matcher.flush() == ""


def test_nothing_comes_out_after_a_stop():
    matcher = StopMatcher(("END",))
    assert matcher.push("one END two") == ("one ", True)
    assert matcher.push("three") == ("", True)
    assert matcher.flush() == ""


def test_without_stop_strings_text_passes_at_once():
    matcher = StopMatcher(())
    assert matcher.push("anything") == ("anything", False)
    assert (matcher.flush(), matcher.stopped) == ("", False)


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(("a", ""))
