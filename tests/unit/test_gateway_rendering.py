"""The pool's outputs as OpenAI's JSON: chunks add up to the whole."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpoold.gateway.reading import read_call
from lmpoold.gateway.rendering import DONE, Rendering, event, sum_usage
from lmpoold.protocol.messages import Output, Usage

USAGE = Usage(10, 3, 8)


def rendering(kind="chat", **fields):
    source = {"messages": [{"role": "user", "content": "x"}]} if kind == "chat" else {"prompt": "x"}
    return Rendering(read_call(kind, {"model": "m", **source, **fields}), "id-1", "m", 1700000000)


def outputs(*texts, logprobs="", reason="stop"):
    last = len(texts) - 1
    return [
        Output("r", i, 65 + i, text, logprobs)
        if i < last
        else Output("r", i, 65 + i, text, logprobs, finish_reason=reason, usage=USAGE)
        for i, text in enumerate(texts)
    ]


def events(raw):
    assert raw == b"" or raw.endswith(b"\n\n")
    lines = raw.decode().split("\n\n")[:-1]
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_whole_chat_has_openais_shape():
    assert json.loads(rendering().whole([outputs("Hel", "", "lo")])) == {
        "id": "id-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 3,
            "total_tokens": 13,
            "prompt_tokens_details": {"cached_tokens": 8},
        },
    }


def test_a_chat_stream_opens_with_the_role_in_the_same_write_as_the_first_text():
    first = events(rendering(stream=True).chunk(0, Output("r", 0, 65, "He")))
    assert [row["choices"][0]["delta"] for row in first] == [
        {"role": "assistant", "content": ""},
        {"content": "He"},
    ]
    assert {row["object"] for row in first} == {"chat.completion.chunk"}


def test_an_output_that_shows_nothing_yet_is_no_event():
    assert rendering().chunk(0, Output("r", 1, 65, "")) == b""


@pytest.mark.parametrize("kind", ["chat", "completion"])
@given(texts=st.lists(st.text(max_size=6), min_size=1, max_size=8))
def test_the_chunks_of_a_stream_add_up_to_the_whole(kind, texts):
    rows = outputs(*texts)
    streamed = [row for output in rows for row in events(rendering(kind).chunk(0, output))]
    whole = json.loads(rendering(kind).whole([rows]))["choices"][0]
    said = [row["choices"][0] for row in streamed]
    if kind == "chat":
        text = "".join(choice["delta"].get("content", "") for choice in said)
        assert text == whole["message"]["content"]
        assert said[0]["delta"]["role"] == "assistant"
    else:
        assert "".join(choice["text"] for choice in said) == whole["text"]
    reasons = [choice["finish_reason"] for choice in said]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]


@given(st.text())
def test_an_event_is_one_line_whatever_the_text(text):
    raw = event({"text": text})
    assert raw.count(b"\n") == 2
    assert json.loads(raw[6:]) == {"text": text}


def test_half_a_surrogate_pair_does_not_break_a_stream():
    assert json.loads(event({"text": "\ud800"})[6:]) == {"text": "?"}


LOGPROBS = json.dumps({"logprob": -0.5, "text": "é", "top": [[1, "é", -0.5], [2, "\ufffd", -1.0]]})


def test_chat_logprobs_name_tokens_bytes_and_rivals():
    call = rendering(logprobs=True, top_logprobs=2)
    whole = json.loads(call.whole([outputs("é", logprobs=LOGPROBS)]))
    said = whole["choices"][0]["logprobs"]["content"]
    assert said == [
        {
            "token": "é",
            "logprob": -0.5,
            "bytes": [0xC3, 0xA9],
            "top_logprobs": [
                {"token": "é", "logprob": -0.5, "bytes": [0xC3, 0xA9]},
                {"token": "\ufffd", "logprob": -1.0, "bytes": None},
            ],
        }
    ]


def test_completion_logprobs_are_columns_whose_offsets_go_on_over_chunks():
    rows = outputs("é", "é", logprobs=LOGPROBS)
    body = json.loads(rendering("completion", logprobs=2).whole([rows]))
    whole = body["choices"][0]["logprobs"]
    assert whole["text_offset"] == [0, 1]
    assert whole["top_logprobs"] == [{"é": -0.5, "\ufffd": -1.0}] * 2
    stream = rendering("completion", logprobs=2)
    parts = [events(stream.chunk(0, row))[0]["choices"][0]["logprobs"] for row in rows]
    joined = {name: parts[0][name] + parts[1][name] for name in whole}
    assert joined == whole


def test_usage_counts_a_prompt_once_however_many_choices_it_has():
    usages = [Usage(10, 3, 0), Usage(10, 4, 10), Usage(5, 1, 2), Usage(5, 2, 4)]
    usage = json.loads(sum_usage(usages, 2))
    assert usage["prompt_tokens"] == 15
    assert usage["completion_tokens"] == 10
    assert usage["total_tokens"] == 25
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2}


def test_a_stream_with_usage_ends_with_a_chunk_without_choices():
    call = rendering(stream=True, stream_options={"include_usage": True})
    assert events(call.chunk(0, Output("r", 1, 65, "a")))[0]["usage"] is None
    (last,) = events(call.usage_chunk([USAGE]))
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 13
    assert DONE == b"data: [DONE]\n\n"
