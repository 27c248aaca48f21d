"""Replies as redis-cli prints them."""

import pytest
from redis.exceptions import ResponseError

from ctl.replies import pretty, quoted, raw


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (None, "(nil)"),
        (7, "(integer) 7"),
        (b"up 1", '"up 1"'),
        (b'say "a\\b"\n', r'"say \"a\\b\"\n"'),
        ("日本".encode(), '"日本"'),
        (b"\xff\x00a", r'"\xff\x00a"'),
        (b"\x1b[2J", r'"\x1b[2J"'),
        ([], "(empty array)"),
        ([b"a", [1, None]], '1) "a"\n2) 1) (integer) 1\n   2) (nil)'),
        ([ResponseError("ERR no")], "1) (error) ERR no"),
        ("OK", "OK"),
    ],
)
def test_a_person_sees_the_type_of_each_reply(reply, text):
    assert pretty(reply) == text


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (None, ""),
        (7, "7"),
        (b"two\nlines", "two\nlines"),
        ([b"a", [1, b"b"]], "a\n1\nb"),
        ([ResponseError("ERR no")], "(error) ERR no"),
    ],
)
def test_a_pipe_gets_plain_text(reply, text):
    assert raw(reply) == text


def test_numbers_of_a_long_list_are_aligned():
    lines = pretty([b"x"] * 10).splitlines()
    assert lines[0] == ' 1) "x"'
    assert lines[9] == '10) "x"'


def test_no_control_character_reaches_the_terminal():
    assert all(character.isprintable() for character in quoted(bytes(range(256))))
    assert all(character.isprintable() for character in quoted("\x00\x1b\x7f\u202e".encode()))
