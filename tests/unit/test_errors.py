"""Who acts on an error is told by where it stands in the tree."""

import inspect

import pytest

from lmpoold.protocol import errors
from lmpoold.store.refusals import ERRORS

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_is_one_of_ours(kind):
    assert issubclass(kind, errors.LMPoolError)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_has_one_parent_in_the_tree_as_drawn(kind):
    lines = (errors.__doc__ or "").splitlines()
    (line,) = [line for line in lines if kind.__name__ in line.replace("─", " ").split()]
    depth = line.find(kind.__name__) // 4
    assert len(kind.__mro__) - len(errors.LMPoolError.__mro__) == depth


@pytest.mark.parametrize("word", sorted(ERRORS))
def test_every_word_of_the_functions_is_raised_as_one_of_ours(word):
    assert ERRORS[word] in KINDS


def test_an_invalid_request_says_what_it_is_and_where_to_answer():
    plain = errors.InvalidRequest("`prompt` is empty")
    assert (str(plain), plain.code, plain.client) == ("`prompt` is empty", "invalid_request", "")
    full = errors.InvalidRequest("too long", code="context_length_exceeded", client="c")
    assert (full.code, full.client) == ("context_length_exceeded", "c")


def test_a_failed_request_carries_code_and_message():
    failed = errors.RequestFailed("overloaded", "send it again later")
    assert str(failed) == "overloaded: send it again later"
    assert (failed.code, failed.message) == ("overloaded", "send it again later")
