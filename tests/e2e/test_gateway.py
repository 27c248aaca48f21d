"""OpenAI's official client over the gateway, on real processes: what callers see, what is freed."""

from __future__ import annotations

import asyncio

import httpx
import openai
import pytest

from tests.e2e.gateway_house import KEYS, MODEL, TURN

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]


async def test_a_greedy_chat_says_what_the_pool_says_directly(house, client):
    answer = await client.chat.completions.create(
        model=MODEL, messages=TURN, temperature=0, max_tokens=12
    )
    straight = await house.direct.generate(messages=TURN, max_tokens=12)
    assert answer.choices[0].message.content == straight.text
    assert answer.choices[0].finish_reason == straight.finish_reason
    assert answer.usage.prompt_tokens == straight.usage.prompt_tokens
    assert answer.usage.completion_tokens == len(straight.tokens)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + len(straight.tokens)
    assert answer.model == MODEL


async def test_a_stream_adds_up_to_the_whole_and_ends_with_usage(client):
    asked = {"model": "tiny", "messages": TURN, "temperature": 0, "max_tokens": 20}
    whole = await client.chat.completions.create(**asked)
    stream = await client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    said = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(said) == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


async def test_the_first_chunk_comes_long_before_the_last(house, client):
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    stream = await client.chat.completions.create(
        model=MODEL, messages=TURN, stream=True, max_tokens=300, extra_body={"ignore_eos": True}
    )
    await anext(stream)
    first_s = loop.time() - began_s
    async for _ in stream:
        pass
    assert first_s < (loop.time() - began_s) / 3


async def test_a_stop_text_ends_the_answer_and_does_not_show(client):
    asked = {"model": MODEL, "prompt": "Once", "temperature": 0}
    free = await client.completions.create(**asked, max_tokens=40, extra_body={"ignore_eos": True})
    text = free.choices[0].text
    stop = text[15:18]
    cut = await client.completions.create(
        **asked, max_tokens=40, stop=[stop], extra_body={"ignore_eos": True}
    )
    assert cut.choices[0].text == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    assert free.choices[0].finish_reason == "length"


async def test_logprobs_of_a_chat_and_of_a_completion(client):
    chat = await client.chat.completions.create(
        model=MODEL, messages=TURN, temperature=0, max_tokens=3, logprobs=True, top_logprobs=4
    )
    rows = chat.choices[0].logprobs.content
    assert len(rows) == 3
    for row in rows:
        assert len(row.top_logprobs) == 4
        assert row.top_logprobs[0].token == row.token
        assert row.top_logprobs[0].logprob == row.logprob <= 0
    drawn = await client.chat.completions.create(
        model=MODEL,
        messages=TURN,
        max_tokens=3,
        logprobs=True,
        extra_body={"ignore_eos": True},
    )
    assert [row.top_logprobs for row in drawn.choices[0].logprobs.content] == [[]] * 3
    plain = await client.completions.create(
        model=MODEL, prompt="Once", max_tokens=3, logprobs=2, extra_body={"ignore_eos": True}
    )
    columns = plain.choices[0].logprobs
    assert len(columns.tokens) == len(columns.token_logprobs) == len(columns.text_offset) == 3
    assert all(logprob <= 0 for logprob in columns.token_logprobs)


async def test_two_choices_differ_and_a_seed_repeats_both(client):
    asked = {"model": MODEL, "messages": TURN, "n": 2, "seed": 11, "max_tokens": 16}
    one, two = [await client.chat.completions.create(**asked) for _ in range(2)]
    texts = [choice.message.content for choice in one.choices]
    assert texts == [choice.message.content for choice in two.choices]
    assert texts[0] != texts[1]
    assert [choice.index for choice in one.choices] == [0, 1]
    alone = await client.chat.completions.create(**{**asked, "n": 1})
    assert alone.choices[0].message.content == texts[0]
    unseeded = await client.chat.completions.create(model=MODEL, messages=TURN, n=2, max_tokens=16)
    assert unseeded.choices[0].message.content != unseeded.choices[1].message.content
    stream = await client.chat.completions.create(**asked, stream=True)
    streamed = ["", ""]
    async for chunk in stream:
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts


async def test_completions_take_texts_and_token_ids(client):
    asked = {"model": MODEL, "temperature": 0, "max_tokens": 6}
    texts = await client.completions.create(**asked, prompt=["abc", "xyz"])
    ids = await client.completions.create(**asked, prompt=[list(b"abc"), list(b"xyz")])
    one = await client.completions.create(**asked, prompt=list(b"xyz"))
    assert [c.text for c in texts.choices] == [c.text for c in ids.choices]
    assert one.choices[0].text == texts.choices[1].text
    assert texts.usage.prompt_tokens == 6


async def test_models_are_listed_under_every_name(client):
    assert [model.id async for model in client.models.list()] == [MODEL, "tiny"]
    assert (await client.models.retrieve("tiny")).id == "tiny"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("gpt-4")


@pytest.mark.parametrize(
    ("changes", "kind", "code", "param"),
    [
        ({"model": "gpt-4"}, openai.NotFoundError, "model_not_found", "model"),
        ({"max_tokens": 999_999}, openai.BadRequestError, "context_length_exceeded", None),
        ({"max_tokens": 0}, openai.BadRequestError, "invalid_request", "max_tokens"),
        ({"temperature": -1}, openai.BadRequestError, "invalid_request", "temperature"),
        ({"messages": []}, openai.BadRequestError, "invalid_request", "messages"),
        ({"tools": [{"type": "function"}]}, openai.BadRequestError, "invalid_request", "tools"),
        ({"extra_body": {"wisdom": 1}}, openai.BadRequestError, "invalid_request", "wisdom"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_has_openais_shape_and_status(client, changes, kind, code, param, stream):
    asked = {"model": MODEL, "messages": TURN, "max_tokens": 4, "stream": stream, **changes}
    with pytest.raises(kind) as caught:
        await client.chat.completions.create(**asked)
    assert caught.value.code == code
    assert param is None or caught.value.param == param
    assert caught.value.type == "invalid_request_error"


async def test_a_deadline_that_passes_is_504(client):
    with pytest.raises(openai.APIStatusError) as caught:
        await client.chat.completions.create(
            model=MODEL,
            messages=TURN,
            max_tokens=1500,
            extra_body={"ignore_eos": True, "deadline_ms": 100},
        )
    assert caught.value.status_code == 504
    assert caught.value.code == "deadline_exceeded"


async def test_a_deadline_that_passes_in_a_stream_is_its_last_event(client):
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=TURN,
        max_tokens=1900,
        stream=True,
        extra_body={"ignore_eos": True, "deadline_ms": 300},
    )
    with pytest.raises(openai.APIError) as caught:
        async for _ in stream:
            pass
    assert caught.value.code == "deadline_exceeded"


async def test_a_full_ingress_is_429_with_a_time_to_come_back(house, client):
    async def refused():
        try:
            await client.chat.completions.create(model=MODEL, messages=TURN, n=2, max_tokens=2)
        except openai.RateLimitError as error:
            return error
        return None

    async def until(wanted):
        async with asyncio.timeout(10):  # the functions read `cfg` now and then only
            while ((error := await refused()) is not None) is not wanted:
                await asyncio.sleep(0.05)
        return error

    was = await house.redis.hget(KEYS.cfg, "max_ingress")
    await house.redis.hset(KEYS.cfg, "max_ingress", "0")
    try:
        error = await until(True)
    finally:
        await house.redis.hset(KEYS.cfg, "max_ingress", was)
    assert error.code == "overloaded"
    assert int(error.response.headers["retry-after"]) >= 1
    await until(False)


async def test_what_is_no_request_is_refused_and_the_gateway_goes_on(house, client):
    async with httpx.AsyncClient(base_url=house.url) as web:
        chat = "/v1/chat/completions"
        for body, status in ((b"{", 400), (b"[]", 400), (b'{"n": NaN}', 400), (b"\xff", 400)):
            answer = await web.post(chat, content=body)
            assert answer.status_code == status
            assert answer.json()["error"]["type"] == "invalid_request_error"
        huge = await web.post(chat, content=b" " * (17 * 1024 * 1024))
        assert huge.status_code == 413

        async def dripping():
            for _ in range(17):
                yield b" " * 1024 * 1024

        assert (await web.post(chat, content=dripping())).status_code == 413
        assert (await web.get("/v1/nothing")).status_code == 404
        assert (await web.get("/v1/nothing")).json()["error"]["code"] == "not_found"
        assert (await web.get(chat)).status_code == 405
    await client.chat.completions.create(model=MODEL, messages=TURN, max_tokens=2)


@pytest.mark.better(17)
async def test_sixty_four_at_once_are_all_answered_each_its_own(client):
    async def one(number):
        asked = {"model": MODEL, "temperature": 0, "max_tokens": 8, "prompt": f"{number} and"}
        if number % 2:
            return (await client.completions.create(**asked)).choices[0].text
        stream = await client.completions.create(**asked, stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    together = await asyncio.gather(*(one(number) for number in range(64)))
    assert together[:4] == [await one(number) for number in range(4)]
    assert len(together) == 64
