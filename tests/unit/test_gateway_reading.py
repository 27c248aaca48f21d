"""OpenAI's JSON read: what the pool is asked, and what is refused by name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpoold.gateway.faults import Fault
from lmpoold.gateway.reading import COMPLETION_MAX_TOKENS, MAX_CHOICES, read_call
from lmpoold.protocol.request import read_request

TURN = {"role": "user", "content": "Hi"}


def chat(**fields):
    return read_call("chat", {"model": "m", "messages": [TURN], **fields})


def completion(**fields):
    return read_call("completion", {"model": "m", "prompt": "Once", **fields})


def refusal(kind, body):
    with pytest.raises(Fault) as caught:
        read_call(kind, body)
    assert caught.value.status == 400
    return caught.value


def test_a_bare_chat_draws_at_openais_temperature_and_leaves_the_length_to_the_pool():
    call = chat()
    assert call.choices() == [{"messages": [TURN], "temperature": 1.0}]
    assert (call.n, call.stream, call.include_usage, call.logprobs) == (1, False, False, None)


def test_a_bare_completion_has_openais_default_length():
    assert completion().options["max_tokens"] == COMPLETION_MAX_TOKENS


def test_the_newer_name_of_max_tokens_wins():
    assert chat(max_tokens=5, max_completion_tokens=7).options["max_tokens"] == 7


@pytest.mark.parametrize(
    ("prompt", "sources"),
    [
        ("Once", [{"prompt": "Once"}]),
        (["a", "b"], [{"prompt": "a"}, {"prompt": "b"}]),
        ([1, 2], [{"tokens": [1, 2]}]),
        ([[1], [2, 3]], [{"tokens": [1]}, {"tokens": [2, 3]}]),
    ],
)
def test_a_prompt_is_text_texts_ids_or_lists_of_ids(prompt, sources):
    assert list(completion(prompt=prompt).sources) == sources


@pytest.mark.parametrize("prompt", [None, 3, [], ["a", 1], [1, "a"], [True], [[1], "a"], [[1.5]]])
def test_any_other_prompt_is_refused(prompt):
    assert refusal("completion", {"model": "m", "prompt": prompt}).param == "prompt"


def test_text_parts_are_joined_and_the_developers_seat_is_the_systems():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = chat(messages=[{"role": "developer", "content": parts}])
    assert call.sources[0]["messages"] == [{"role": "system", "content": "ab"}]


@pytest.mark.parametrize(
    "message",
    [
        "Hi",
        {"content": "Hi"},
        {"role": "user"},
        {"role": "user", "content": None},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
    ],
)
def test_a_message_without_text_is_refused(message):
    assert refusal("chat", {"model": "m", "messages": [message]}).param == "messages"


def test_choices_of_a_seed_differ_and_the_first_is_that_of_one_choice_alone():
    seeds = [fields["seed"] for fields in chat(seed=7, n=3).choices()]
    assert seeds == [7, 8, 9]
    assert chat(seed=7).choices()[0]["seed"] == 7
    assert all("seed" not in fields for fields in chat(n=3).choices())


def test_a_seed_at_the_end_of_its_range_wraps():
    assert [f["seed"] for f in chat(seed=2**64 - 1, n=2).choices()] == [2**64 - 1, 0]


def test_each_prompt_has_its_choices_side_by_side():
    call = completion(prompt=["a", "b"], n=2, seed=1)
    assert [(f["prompt"], f["seed"]) for f in call.choices()] == [
        ("a", 1),
        ("a", 2),
        ("b", 1),
        ("b", 2),
    ]


@pytest.mark.parametrize("n", [0, -1, MAX_CHOICES + 1])
def test_a_count_of_choices_out_of_range_is_refused(n):
    assert refusal("chat", {"model": "m", "messages": [TURN], "n": n}).param == "n"


@pytest.mark.parametrize(
    ("fields", "count"),
    [({}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 5}, 5)],
)
def test_a_chat_asks_for_logprobs_with_a_flag_and_a_count(fields, count):
    call = chat(**fields)
    assert call.logprobs == count == call.options.get("logprobs")


def test_a_count_of_logprobs_without_the_flag_is_refused():
    fault = refusal("chat", {"model": "m", "messages": [TURN], "top_logprobs": 2})
    assert fault.param == "top_logprobs"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stream", "yes"),
        ("n", True),
        ("seed", 1.5),
        ("temperature", "hot"),
        ("max_tokens", "5"),
        ("stop", [1]),
        ("tools", [{"type": "function"}]),
        ("frequency_penalty", 0.5),
        ("response_format", {"type": "json_object"}),
        ("echo", True),
        ("best_of", 2),
        ("best_of", True),
        ("stream_options", {"include_usage": True}),
        ("wisdom", 1),
    ],
)
def test_a_field_that_cannot_be_followed_is_refused_by_name(name, value):
    fault = refusal("chat", {"model": "m", "messages": [TURN], name: value})
    assert fault.param == name


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": None, "seed": None, "stop": None, "max_tokens": None},
        {"stop": []},
        {"frequency_penalty": 0.0, "presence_penalty": 0, "logit_bias": {}, "user": "me"},
    ],
)
def test_what_asks_for_nothing_changes_nothing(fields):
    assert chat(**fields) == chat()


def test_usage_in_a_stream_is_an_option_of_streams_alone():
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage
    assert not chat(stream=True, stream_options={"include_usage": None}).include_usage
    fault = refusal(
        "chat", {"model": "m", "messages": [TURN], "stream": True, "stream_options": {"x": 1}}
    )
    assert fault.param == "stream_options"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
NAMES = st.sampled_from(
    [
        "model",
        "messages",
        "prompt",
        "n",
        "seed",
        "stream",
        "stream_options",
        "max_tokens",
        "stop",
        "logprobs",
        "top_logprobs",
        "temperature",
        "top_p",
        "tools",
        "best_of",
        "echo",
    ]
)


@given(st.sampled_from(["chat", "completion"]), JSON | st.dictionaries(NAMES, JSON))
def test_any_json_is_read_or_refused_with_400(kind, body):
    try:
        call = read_call(kind, body)
    except Fault as refused:
        status = refused.status
    else:
        status = 0
        assert len(call.choices()) == call.n * len(call.sources)
    assert status in (0, 400)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "n": st.integers(1, 4),
            "seed": st.integers(-(2**63), 2**64 - 1),
            "max_tokens": st.integers(1, 1000),
            "temperature": st.floats(0, 2),
            "top_p": st.floats(0, 1),
            "stop": st.text(min_size=1, max_size=5) | st.lists(st.text(min_size=1, max_size=5)),
            "logprobs": st.booleans(),
        },
    )
)
def test_what_openai_allows_the_pool_can_read(fields):
    for asked in chat(**fields).choices():
        values = {
            name: json.dumps(asked.pop(name)) for name in ("messages", "stop") if name in asked
        }
        values |= {name: str(value).lower() for name, value in asked.items()}
        wire = {name.encode(): value.encode() for name, value in values.items()}
        if len(json.loads(values.get("stop", "[]"))) <= 16:
            assert read_request("0-0", wire).messages == (TURN,)
