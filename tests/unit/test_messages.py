"""Messages survive the wire; what is none of ours is a DecodeError, never another crash."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpoold.protocol.errors import DecodeError
from lmpoold.protocol.hashing import token_bytes
from lmpoold.protocol.messages import (
    Cancel,
    Dispatch,
    Forget,
    Output,
    Payload,
    Usage,
    decode_tokens,
    encode_tokens,
    read_outputs,
    read_worker_message,
    write_outputs,
)
from lmpoold.protocol.request import Sampling
from lmpoold.protocol.transfer import PlanOrder

text = st.text()  # hypothesis draws no surrogates that UTF-8 could not carry
some_text = st.text(min_size=1)
counts = st.integers(0, 2**31)
finite = st.floats(0, 100)
usages = st.builds(Usage, counts, counts, counts)
token_outputs = st.builds(
    Output,
    id=some_text,
    index=counts,
    token=counts,
    text=text,
    logprobs=text,
    finish_reason=st.sampled_from(["", "stop", "length"]),
    usage=st.none() | usages,
)
ends = st.builds(
    Output,
    id=some_text,
    index=counts,
    text=text,
    finish_reason=st.sampled_from(["stop", "length"]),
    usage=usages,
)
errors = st.builds(
    Output, id=some_text, index=counts, error=some_text, code=some_text, message=text
)
outputs = token_outputs | ends | errors
payloads = st.builds(
    Payload,
    client=some_text,
    prompt_tokens=counts,
    sampling=st.builds(
        Sampling,
        max_tokens=counts,
        temperature=finite,
        top_p=finite,
        top_k=counts,
        min_p=finite,
        seed=st.integers(-(2**63), 2**64 - 1),
        stop=st.lists(some_text, max_size=3).map(tuple),
        ignore_eos=st.booleans(),
        logprobs=st.none() | st.integers(0, 20),
    ),
    priority=st.integers(-1000, 1000),
    deadline_ms=counts,
    salt=text,
)


def on_the_wire(words: list[str]) -> dict[bytes, bytes]:
    """An entry as a Redis client gives it back."""
    raw = [word.encode() for word in words]
    return dict(zip(raw[::2], raw[1::2], strict=True))


@given(st.lists(outputs, min_size=1, max_size=4))
def test_outputs_come_back_as_they_were_written(written):
    assert read_outputs(on_the_wire(list(write_outputs(written)))) == written


@given(payloads)
def test_a_payload_comes_back_as_it_was_written(payload):
    assert Payload.decode(payload.encode()) == payload
    assert Payload.decode(payload.encode().encode()) == payload


@given(st.lists(counts))
def test_tokens_come_back_as_they_were_written(tokens):
    assert decode_tokens(encode_tokens(tokens)) == tokens
    assert decode_tokens(encode_tokens(tokens).encode()) == tokens


def test_the_journal_with_its_trailing_blank_reads_as_tokens():
    assert decode_tokens(b"11 12 0 ") == [11, 12, 0]


def test_one_output_is_an_entry_of_plain_fields_that_people_can_read():
    output = Output("a", 3, 17, "né", finish_reason="stop", usage=Usage(5, 4, 0))
    assert write_outputs([output]) == [
        *("id", "a", "index", "3", "token", "17", "text", "né", "finish_reason", "stop"),
        *("usage", '{"prompt_tokens":5,"completion_tokens":4,"cached_tokens":0}'),
    ]


def test_a_token_without_text_says_so_and_an_end_without_either_stays_silent():
    assert Output("a", 0, 17).to_fields() == {"id": "a", "index": "0", "token": "17", "text": ""}
    assert Output("a", 1, finish_reason="stop").to_fields() == {
        "id": "a",
        "index": "1",
        "finish_reason": "stop",
    }


def test_several_outputs_are_one_field():
    words = write_outputs([Output("a", 0, 1, "x"), Output("b", 0, 2, "y")])
    assert len(words) == 2
    assert words[0] == "step"


@pytest.mark.parametrize(
    ("output", "ends"),
    [
        (Output("a", 0, 1, "x"), False),
        (Output("a", 1, finish_reason="length"), True),
        (Output("a", 0, error="server_error", code="worker_failed"), True),
    ],
)
def test_an_output_ends_a_request_by_a_reason_or_by_a_code(output, ends):
    assert output.ends is ends


def test_unknown_fields_of_an_output_are_passed_over():
    entry = {b"id": b"a", b"index": b"0", b"since": b"next version"}
    assert read_outputs(entry) == [Output("a", 0)]


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {b"id": b"a"},
        {b"index": b"0"},
        {b"id": b"a", b"index": b"x"},
        {b"id": b"a", b"index": b"0", b"token": b""},
        {b"id": b"a", b"index": b"0", b"usage": b"{}"},
        {b"id": b"a", b"index": b"0", b"usage": b"3"},
        {b"id": b"\xff", b"index": b"0"},
        {b"step": b""},
        {b"step": b"3"},
        {b"step": b"[3]"},
        {b"step": b'[{"id": "a"}]'},
    ],
)
def test_an_entry_that_is_no_output_is_a_decode_error(entry):
    with pytest.raises(DecodeError, match="not an output entry"):
        read_outputs(entry)


GOOD_ROUTE = {
    b"kind": b"route",
    b"id": b"a",
    b"attempt": b"2",
    b"hit": b"1",
    b"p": Payload(client="c", prompt_tokens=3, sampling=Sampling(max_tokens=5)).encode().encode(),
    b"tokens": token_bytes([1, 2, 3]),
}


def test_a_route_message_is_a_dispatch():
    assert read_worker_message("9-0", GOOD_ROUTE) == Dispatch(
        entry="9-0",
        id="a",
        attempt=2,
        hit=1,
        payload=Payload(client="c", prompt_tokens=3, sampling=Sampling(max_tokens=5)),
        tokens=[1, 2, 3],
        packed=token_bytes([1, 2, 3]),
    )


def test_a_cancel_message_is_a_cancel():
    assert read_worker_message("9-0", {b"kind": b"cancel", b"id": b"a"}) == Cancel("9-0", "a")


@pytest.mark.parametrize(
    "change",
    [
        {b"kind": b"move"},
        {b"kind": b"\xff"},
        {b"attempt": b"x"},
        {b"hit": b""},
        {b"tokens": b"half a"},
        {b"id": b"\xff"},
        {b"p": b""},
        {b"p": b"[]"},
        {b"p": b"{}"},
        {b"p": b'{"sampling": {"stop": []}}'},
        {b"p": b'{"sampling": 3}'},
        {b"p": b'{"sampling": {"stop": 1}}'},
        {b"p": b"\xff"},
    ],
)
def test_a_worker_message_that_cannot_be_read_is_a_decode_error(change):
    with pytest.raises(DecodeError):
        read_worker_message("9-0", GOOD_ROUTE | change)


@pytest.mark.parametrize("field", sorted(GOOD_ROUTE))
def test_a_worker_message_without_one_of_its_fields_is_a_decode_error(field):
    entry = {name: value for name, value in GOOD_ROUTE.items() if name != field}
    with pytest.raises(DecodeError):
        read_worker_message("9-0", entry)


@given(st.dictionaries(st.sampled_from([*GOOD_ROUTE, b"x"]), st.binary(max_size=12)))
def test_any_bytes_are_a_worker_message_or_a_decode_error(entry):
    try:
        message = read_worker_message("9-0", GOOD_ROUTE | entry)
    except DecodeError:
        return
    assert isinstance(message, Dispatch | Cancel | Forget | PlanOrder)
