"""The checker finds each fault that is planted into a good run, under its own name."""

from dataclasses import replace

import pytest

from lmpoold.protocol.messages import Output, Usage
from tests.chaos.asking import Asking, Template
from tests.chaos.checker import Expected, judge

TEMPLATE = Template(number=0, tokens=(1, 2, 3), max_tokens=4, temperature=0.0, seed=0)
EXPECTED = {0: Expected((10, 11, 12, 13), "abcd")}
PLAIN = Asking(at_s=0, id="a", client=0, template=TEMPLATE)
LATE = replace(PLAIN, deadline_ms=100)


def whole(request_id: str = "a") -> list[Output]:
    """The right answer, a token an output."""
    rows = [Output(request_id, i, 10 + i, "abcd"[i]) for i in range(4)]
    rows[-1] = rows[-1]._replace(finish_reason="length", usage=Usage(3, 4, 0))
    return rows


def error(code: str, index: int) -> Output:
    return Output("a", index, error="error", code=code, message="because")


def faults(rows, asking=PLAIN, cancelled=frozenset()) -> dict[str, int]:
    verdict = judge([asking], {"a": rows}, EXPECTED, cancelled)
    assert verdict.good is (not any(verdict.faults.values()))
    assert verdict.good is (not verdict.cases)
    return {name: count for name, count in verdict.faults.items() if count}


def test_a_whole_answer_is_good_and_counted():
    verdict = judge([PLAIN], {"a": whole()}, EXPECTED)
    assert verdict.good
    assert (verdict.asked, verdict.answered) == (1, 1)


@pytest.mark.parametrize(
    ("rows", "asking", "cancelled", "counted"),
    [
        ([error("cancelled", 0)], PLAIN, frozenset("a"), "cancelled"),
        ([*whole()[:2], error("cancelled", 2)], PLAIN, frozenset("a"), "cancelled"),
        ([*whole()[:1], error("deadline_exceeded", 1)], LATE, frozenset(), "late"),
        ([error("overloaded", 0)], PLAIN, frozenset(), "overloaded"),
    ],
)
def test_an_end_with_a_reason_is_good_where_the_reason_holds(rows, asking, cancelled, counted):
    verdict = judge([asking], {"a": rows}, EXPECTED, cancelled)
    assert verdict.good, verdict.cases
    assert getattr(verdict, counted) == 1


@pytest.mark.parametrize("rows", [[], whole()[:3]])
def test_a_request_without_an_end_is_lost(rows):
    assert faults(rows) == {"lost": 1}


def test_a_second_end_is_an_answer_too_many():
    assert faults([*whole(), error("cancelled", 4)], cancelled=frozenset("a")) == {"twice": 1}
    again = faults([*whole(), *whole()])
    assert again["twice"] == 1
    assert again["repeated_tokens"] == 4


def test_a_token_that_comes_again_is_repeated_whether_it_is_the_same_or_not():
    rows = whole()
    assert faults([*rows[:2], rows[1], *rows[2:]]) == {"repeated_tokens": 1}
    found = faults([*rows[:2], rows[1]._replace(token=99), *rows[2:]])
    assert found == {"repeated_tokens": 1, "unequal": 1}


def test_a_token_that_does_not_come_is_missing():
    rows = whole()
    assert faults([rows[0], *rows[2:]]) == {"missing_tokens": 1}
    assert faults(rows[1:]) == {"missing_tokens": 1}


def test_tokens_that_an_error_counts_and_nobody_read_are_missing():
    rows = [*whole()[:1], error("cancelled", 3)]
    assert faults(rows, cancelled=frozenset("a")) == {"missing_tokens": 2}


def test_tokens_in_another_order_are_another_answer():
    rows = whole()
    assert faults([rows[1], rows[0], *rows[2:]]) == {"unequal": 1}


def test_another_token_or_another_text_is_another_answer():
    rows = whole()
    assert faults([rows[0], rows[1]._replace(token=99), *rows[2:]]) == {"unequal": 1}
    assert faults([rows[0], rows[1]._replace(text="x"), *rows[2:]]) == {"unequal": 1}


def test_an_answer_that_ends_too_early_or_miscounts_is_another_answer():
    rows = [*whole()[:2]]
    rows[-1] = rows[-1]._replace(finish_reason="stop", usage=Usage(3, 2, 0))
    assert faults(rows) == {"unequal": 1}
    rows = whole()
    rows[-1] = rows[-1]._replace(usage=Usage(3, 5, 0))
    assert faults(rows) == {"unequal": 1}


@pytest.mark.parametrize("code", ["cancelled", "deadline_exceeded", "worker_failed"])
def test_a_refusal_that_nobody_gave_a_reason_for_is_a_fault(code):
    assert faults([error(code, 0)]) == {"refused": 1}


def test_an_answer_that_nobody_asked_for_is_a_fault():
    verdict = judge([PLAIN], {"a": whole(), "b": whole("b")}, EXPECTED)
    assert verdict.faults["unasked"] == 1
