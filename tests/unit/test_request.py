"""Reading what producers send: whatever it is, it is a request or a sentence about a field."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lmpoold.protocol.errors import InvalidRequest
from lmpoold.protocol.request import (
    DEFAULT_MAX_TOKENS,
    FIELDS,
    MAX_NAME,
    MAX_STOPS,
    MAX_TEXT_BYTES,
    Request,
    Sampling,
    answer_stream,
    read_request,
)

ENTRY = "1700000000000-0"
DEEP = "[" * 200_000


def read(**fields: str | bytes) -> Request:
    """Read an entry; a prompt is added unless the entry has a source of its own."""
    if not {"prompt", "messages", "tokens"} & set(fields):
        fields["prompt"] = "why"
    raw = {
        name.encode(): value.encode() if isinstance(value, str) else value
        for name, value in fields.items()
    }
    return read_request(ENTRY, raw)


# --- what is read


def test_a_bare_prompt_is_a_request_with_every_default():
    assert read_request(ENTRY, {b"prompt": b"why"}) == Request(
        id=ENTRY,
        client=ENTRY,
        prompt="why",
        sampling=Sampling(max_tokens=DEFAULT_MAX_TOKENS),
        max_tokens_given=False,
        seed_given=False,
    )


def test_every_field_arrives_where_it_belongs():
    request = read(
        id="a",
        client="c",
        tokens="[1, 2, 3]",
        max_tokens="5",
        temperature="0.5",
        top_p="0.9",
        top_k="40",
        min_p="0.1",
        seed="-7",
        stop='["x", "y"]',
        ignore_eos="true",
        logprobs="3",
        priority="-2",
        deadline_ms="100",
        salt="tenant",
        origin="4",
        model="demo",
    )
    assert request == Request(
        id="a",
        client="c",
        tokens=(1, 2, 3),
        sampling=Sampling(
            max_tokens=5,
            temperature=0.5,
            top_p=0.9,
            top_k=40,
            min_p=0.1,
            seed=-7,
            stop=("x", "y"),
            ignore_eos=True,
            logprobs=3,
        ),
        max_tokens_given=True,
        seed_given=True,
        priority=-2,
        deadline_ms=100,
        salt="tenant",
        origin=4,
        model="demo",
    )


def test_answers_go_to_the_stream_of_the_client_else_of_the_id_else_of_the_entry():
    assert read(id="a", client="c").client == "c"
    assert read(id="a").client == "a"
    assert read().client == ENTRY


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("END", ("END",)),
        ('"END"', ("END",)),
        ('["a"]', ("a",)),
        ('["a", "b"]', ("a", "b")),
        ("[]", ()),
        ('["\\n\\n"]', ("\n\n",)),
        ("{", ("{",)),
    ],
)
def test_stop_is_a_string_or_a_list_of_them(text, stops):
    assert read(stop=text).sampling.stop == stops


@pytest.mark.parametrize("text", ["1", "true", "TRUE", "yes"])
def test_a_flag_may_be_spelled_as_people_do(text):
    assert read(ignore_eos=text).sampling.ignore_eos is True
    assert read(ignore_eos="no").sampling.ignore_eos is False


def test_messages_keep_their_order_and_further_keys():
    text = (
        '[{"role": "system", "content": "be brief"}, {"role": "user", "content": "", "name": "x"}]'
    )
    messages = read(messages=text).messages
    assert [message["role"] for message in messages] == ["system", "user"]
    assert messages[1]["name"] == "x"


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("max_tokens", "1"),
        ("max_tokens", "1000000"),
        ("temperature", "0"),
        ("temperature", "100"),
        ("top_p", "1"),
        ("top_k", "0"),
        ("seed", str(-(2**63))),
        ("seed", str(2**64 - 1)),
        ("logprobs", "0"),
        ("priority", "-1000"),
        ("id", "a" * MAX_NAME),
        ("client", "a.b_c:d@e/f+g=h-1"),
        ("stop", json.dumps(["x" * MAX_NAME] * MAX_STOPS)),
        ("tokens", f"[0, {2**31 - 1}]"),
    ],
)
def test_the_last_good_value_is_good(field, text):
    read(**{field: text})


# --- what is refused, and how


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("max_tokens", "0"),
        ("max_tokens", "-1"),
        ("max_tokens", "1000001"),
        ("max_tokens", "1.5"),
        ("max_tokens", ""),
        ("max_tokens", "many"),
        ("max_tokens", "true"),
        ("max_tokens", "NaN"),
        ("max_tokens", "9" * 5000),
        ("temperature", "nan"),
        ("temperature", "inf"),
        ("temperature", "-inf"),
        ("temperature", "-0.1"),
        ("temperature", "1e999"),
        ("temperature", "101"),
        ("temperature", ""),
        ("temperature", "warm"),
        ("top_p", "nan"),
        ("top_p", "1.01"),
        ("top_p", "-1"),
        ("top_k", "-1"),
        ("top_k", "1e3"),
        ("min_p", "inf"),
        ("min_p", "2"),
        ("seed", str(2**64)),
        ("seed", "0x10"),
        ("ignore_eos", ""),
        ("ignore_eos", "2"),
        ("ignore_eos", "maybe"),
        ("logprobs", "-1"),
        ("logprobs", "21"),
        ("logprobs", "true"),
        ("priority", "1001"),
        ("deadline_ms", "0"),
        ("deadline_ms", "-5"),
        ("deadline_ms", "604800001"),
        ("origin", "-1"),
        ("id", ""),
        ("id", "a b"),
        ("id", "-a"),
        ("id", "a" * (MAX_NAME + 1)),
        ("id", "a\n"),
        ("id", "ключ"),
        ("client", "{x}"),
        ("client", "a*"),
        ("stop", ""),
        ("stop", '""'),
        ("stop", '[""]'),
        ("stop", "[1]"),
        ("stop", "[null]"),
        ("stop", '["a"'),
        ("stop", '[["a"]]'),
        ("stop", json.dumps(["x"] * (MAX_STOPS + 1))),
        ("stop", json.dumps("x" * (MAX_NAME + 1))),
        ("stop", DEEP),
        ("messages", ""),
        ("messages", "[]"),
        ("messages", "{}"),
        ("messages", "[1]"),
        ("messages", "not json"),
        ("messages", '"hello"'),
        ("messages", '[{"role": "user"}]'),
        ("messages", '[{"content": "x"}]'),
        ("messages", '[{"role": 1, "content": "x"}]'),
        ("messages", '[{"role": "user", "content": null}]'),
        ("messages", '[{"role": "user", "content": ["x"]}]'),
        ("messages", '[{"role": "user", "content": "x"}'),
        ("messages", DEEP),
        ("tokens", ""),
        ("tokens", "{}"),
        ("tokens", "1 2 3"),
        ("tokens", "[1.0]"),
        ("tokens", "[true]"),
        ("tokens", "[null]"),
        ("tokens", '["1"]'),
        ("tokens", "[-1]"),
        ("tokens", f"[{2**31}]"),
        ("tokens", "[NaN]"),
        ("tokens", "[" + "9" * 5000 + "]"),
        ("tokens", "[[1]]"),
        ("tokens", DEEP),
    ],
    ids=lambda value: value[:24],
)
def test_a_bad_value_is_refused_by_the_name_of_its_field(field, text):
    named = rf"`{field}`|^the `content` of each message" if field == "messages" else rf"`{field}`"
    with pytest.raises(InvalidRequest, match=named) as refused:
        read(**{field: text})
    assert refused.value.code == "invalid_request"
    assert len(str(refused.value)) < 6000


@pytest.mark.parametrize("field", FIELDS)
def test_a_value_that_is_not_utf_8_is_refused_by_the_name_of_its_field(field):
    with pytest.raises(InvalidRequest, match=rf"`{field}` is not UTF-8 \(byte 2\)"):
        read(**{field: b"ab\xff"})


@pytest.mark.parametrize("field", FIELDS)
def test_a_value_that_is_too_long_is_refused_unread_by_the_name_of_its_field(field):
    with pytest.raises(InvalidRequest, match=rf"`{field}` holds 8,388,609 bytes"):
        read(**{field: b"\xff" * (MAX_TEXT_BYTES + 1)})


def test_a_text_of_the_longest_length_is_read():
    assert len(read(prompt="x" * MAX_TEXT_BYTES).prompt) == MAX_TEXT_BYTES


@pytest.mark.parametrize("name", [b"Prompt", b"max_token", b"", b"\xff", b"x" * 9999])
def test_an_unknown_field_is_named_and_the_known_ones_are_listed(name):
    with pytest.raises(InvalidRequest, match="unknown field") as refused:
        read_request(ENTRY, {b"prompt": b"why", name: b"1"})
    assert name[:60].decode("utf-8", "replace") in str(refused.value)
    assert "max_tokens" in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "got none"),
        ({"max_tokens": "3"}, "got none"),
        ({"prompt": "x", "tokens": "[1]"}, "prompt and tokens"),
        ({"prompt": "x", "messages": '[{"role": "user", "content": "x"}]'}, "prompt and messages"),
    ],
)
def test_exactly_one_source_is_asked_for(fields, named):
    raw = {name.encode(): value.encode() for name, value in fields.items()}
    with pytest.raises(InvalidRequest, match="send exactly one of prompt, messages, tokens") as no:
        read_request(ENTRY, raw)
    assert named in str(no.value)


@pytest.mark.parametrize(("field", "text"), [("prompt", ""), ("tokens", "[]")])
def test_an_empty_source_is_refused_by_name(field, text):
    with pytest.raises(InvalidRequest, match=rf"`{field}` is empty"):
        read(**{field: text})


def test_a_blank_prompt_is_a_prompt():
    assert read(prompt=" ").prompt == " "


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("stop", '["\\ud800"]'),
        ("messages", '[{"role": "user", "content": "\\udc00"}]'),
        ("messages", '[{"role": "\\ud83d", "content": "x"}]'),
    ],
)
def test_half_a_surrogate_pair_is_refused_by_the_name_of_its_field(field, text):
    with pytest.raises(InvalidRequest, match=rf"`{field}`"):
        read(**{field: text})


def test_a_whole_surrogate_pair_is_one_character():
    assert read(stop='"\\ud83d\\ude00"').sampling.stop == ("\N{GRINNING FACE}",)


# --- whatever comes

NAMES = st.one_of(st.sampled_from([name.encode() for name in FIELDS]), st.binary(max_size=12))
JSON_TEXT = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=7), inner),
    max_leaves=6,
).map(lambda value: json.dumps(value).encode())
VALUES = st.one_of(
    st.binary(max_size=30),
    JSON_TEXT,
    st.sampled_from([b"1", b"0.5", b"true", b"NaN", b'[{"role":"user","content":"x"}]', b"[1]"]),
)


@given(st.dictionaries(NAMES, VALUES, max_size=6))
@example({b"tokens": DEEP.encode()})
@example({b"prompt": b"x", b"temperature": b"0_1"})
def test_any_bytes_are_a_request_or_an_invalid_request(fields):
    try:
        request = read_request(ENTRY, fields)
    except InvalidRequest:
        return
    sources = (request.prompt, request.messages, request.tokens)
    assert sum(source is not None for source in sources) == 1
    assert request.sampling.max_tokens >= 1


@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_any_bytes_have_a_stream_to_be_answered_on(fields):
    request_id, client = answer_stream(ENTRY, fields)
    assert request_id
    assert client
    try:
        request = read_request(ENTRY, fields)
    except InvalidRequest:
        return
    assert (request_id, client) == (request.id, request.client)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (ENTRY, ENTRY)),
        ({b"id": b"a"}, ("a", "a")),
        ({b"client": b"c"}, (ENTRY, "c")),
        ({b"id": b"a", b"client": b"c", b"prompt": b"\xff"}, ("a", "c")),
        ({b"id": b"a b", b"client": b"c"}, (ENTRY, "c")),
        ({b"id": b"a", b"client": b"\xff"}, ("a", "a")),
        ({b"id": b"a" * 201}, (ENTRY, ENTRY)),
        ({b"id": b"a", b"client": b"c\n"}, ("a", "a")),
    ],
)
def test_an_unreadable_entry_is_answered_where_it_can_be(fields, expected):
    assert answer_stream(ENTRY, fields) == expected
