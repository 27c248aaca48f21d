"""From XADD to tokens, over real processes: what producers and askers see."""

from __future__ import annotations

import asyncio
import json
import subprocess

import pytest
from transformers import AutoModelForCausalLM, GenerationConfig

from lmpoold.protocol.errors import Conflict, InvalidRequest, RequestFailed
from lmpoold.protocol.messages import Output
from lmpoold.store.streams import ask_to_forget
from lmpoold.text.folder import cache_root, resolve
from lmpoold.text.tokenizer import TextModel
from tests.e2e.conftest import KEYS
from tests.e2e.forge import forge
from workers.model.prepare import prepare

pytestmark = pytest.mark.timeout(240)
TINY = "random:tiny-qwen3"


def text_model(name: str) -> TextModel:
    import os

    return TextModel.load(resolve(name, cache=cache_root(os.environ)))


def reference(model, tokens, count):
    import torch

    settings = GenerationConfig(
        max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    ids = torch.tensor([list(tokens)])
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    return tuple(out[0, len(tokens) :].tolist())


def text_of(outputs: list[Output]) -> str:
    return "".join(output.text for output in outputs)


async def test_an_entry_with_prompt_and_max_tokens_alone_is_answered_on_its_own_stream(pool):
    async with pool() as running:
        entry = await running.add(prompt="Why is the sky blue?", max_tokens="5")
        outputs = await running.answer(entry)
        assert [output.index for output in outputs] == [0, 1, 2, 3, 4]
        assert outputs[-1].finish_reason == "length"
        assert outputs[-1].usage.completion_tokens == 5


async def test_five_lines_of_another_language_are_a_producer(pool):
    script = """
const net = require("net"), [path, key] = process.argv.slice(1);
const words = ["XADD", key, "*", "id", "from-node", "prompt", "Hello", "max_tokens", "3"];
const wire = `*${words.length}\\r\\n` + words.map((w) => `$${w.length}\\r\\n${w}\\r\\n`).join("");
const socket = net.connect(path, () => socket.write(wire));
socket.on("data", () => socket.end());
"""
    async with pool() as running:
        path = running.url.removeprefix("unix://")
        await asyncio.to_thread(
            subprocess.run, ["node", "-e", script, path, KEYS.ingress], check=True, timeout=30
        )
        assert len(await running.answer("from-node")) == 3


@pytest.mark.better(5)
@pytest.mark.bar(42, 44)
async def test_bad_entries_get_one_error_each_and_the_pool_goes_on(pool):
    bad: dict[str, tuple[dict[str, str | bytes], str]] = {
        "over-long": ({"prompt": "x" * 5000}, "context_length_exceeded"),
        "too-much": ({"prompt": "hi", "max_tokens": "5000"}, "context_length_exceeded"),
        "empty": ({"prompt": ""}, "invalid_request"),
        "nothing": ({"max_tokens": "3"}, "invalid_request"),
        "latin": ({"prompt": b"caf\xe9"}, "invalid_request"),
        "unknown": ({"prompt": "hi", "max_tokenz": "3"}, "invalid_request"),
        "nan": ({"prompt": "hi", "temperature": "nan"}, "invalid_request"),
        "negative": ({"prompt": "hi", "max_tokens": "-1"}, "invalid_request"),
        "both": ({"prompt": "hi", "tokens": "[1]"}, "invalid_request"),
        "huge": ({"prompt": b"y" * 10_000_000}, "invalid_request"),
        "outside": ({"tokens": "[1, 999999]"}, "invalid_request"),
        "model": ({"prompt": "hi", "model": "other"}, "model_not_found"),
    }
    async with pool() as running:
        for name, (fields, _) in bad.items():
            await running.add(id=name, **fields)
        for name, (_, code) in bad.items():
            (only,) = await running.answer(name)
            assert (only.code, bool(only.message)) == (code, True), name
        dead = {
            values[b"id"].decode(): values for _, values in await running.redis.xrange(KEYS.dead)
        }
        assert set(dead) == set(bad)
        assert all(values[b"reason"] and values[b"code"] for values in dead.values())
        assert sum(len(value) for values in dead.values() for value in values.values()) < 100_000
        good = await running.client.generate(prompt="still there?", max_tokens=4)
        assert len(good.tokens) == 4
        assert await running.redis.xlen(KEYS.ingress) == 0


async def test_an_id_sent_again_is_answered_once(pool):
    async with pool() as running:
        for _ in range(3):
            await running.add(id="same", prompt="Hello", max_tokens="3")
        await running.answer("same")
        await running.client.generate(prompt="later", max_tokens=2)
        assert await running.redis.xlen(KEYS.out("same")) <= 3
        outputs = await running.answer("same")
        assert [output.index for output in outputs] == [0, 1, 2]


async def test_an_id_used_by_another_client_is_refused_by_name(pool):
    async with pool() as running:
        await running.add(id="taken", prompt="Hello", max_tokens="2")
        await running.answer("taken")
        with pytest.raises(Conflict, match="taken was used before"):
            await running.client.submit(prompt="Hello", request_id="taken")


async def test_the_client_refuses_what_cannot_be_read_before_sending_it(pool):
    async with pool() as running:
        with pytest.raises(InvalidRequest, match="temperature"):
            await running.client.submit(prompt="hi", temperature=-1)
        with pytest.raises(RequestFailed, match="context_length_exceeded"):
            await running.client.generate(prompt="x" * 5000)


@pytest.mark.bar(25, 39)
async def test_cancelling_frees_the_blocks_at_once(pool):
    async with pool() as running:
        request = await running.client.submit(prompt="Tell me", max_tokens=1500, ignore_eos=True)
        stream = running.client.stream(request)
        await anext(stream)
        assert await running.client.cancel(request) in ("routed", "running")
        with pytest.raises(RequestFailed, match="cancelled"):
            async for _ in stream:
                pass
        async with asyncio.timeout(10):
            while (await running.store.ranks())[0].sequences:
                await asyncio.sleep(0.05)
        row = (await running.store.ranks())[0]
        assert row.free + row.reclaimable == row.blocks
        assert row.reserved == 0


async def test_a_rank_that_is_asked_to_forget_holds_nothing_and_computes_again(pool):
    async with pool() as running:
        first = await running.client.generate(prompt="Tell me " * 20, max_tokens=2)
        again = await running.client.generate(prompt="Tell me " * 20, max_tokens=2)
        assert again.usage.cached_tokens >= 144
        await ask_to_forget(running.redis, KEYS.worker(0))
        async with asyncio.timeout(10):
            while (row := (await running.store.ranks())[0]).free < row.blocks:
                await asyncio.sleep(0.05)
        assert row.pages == 0
        last = await running.client.generate(prompt="Tell me " * 20, max_tokens=2)
        assert last.usage.cached_tokens == 0
        assert first.tokens == again.tokens == last.tokens


@pytest.mark.bar(39)
async def test_leaving_a_stream_early_cancels_its_request(pool):
    async with pool() as running:
        request = await running.client.submit(prompt="Tell me", max_tokens=1500, ignore_eos=True)
        stream = running.client.stream(request)
        await anext(stream)
        await stream.aclose()
        async with asyncio.timeout(10):
            while b"cancelled" not in await running.redis.hget(KEYS.request(request), "state"):
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("shape", ["tiny-qwen3", "tiny-llama"])
async def test_greedy_answers_of_the_pool_equal_generate(pool, shape):
    import os

    from workers.model.weights import load

    name = f"random:{shape}"
    plain = load(resolve(name, cache=cache_root(os.environ)), dtype="float32").model
    shared = list(range(3, 99))
    prompts = [shared + [100 + i] * (5 * i) for i in range(8)]
    # 140 blocks of 16 hold one full context and little more: the load does not fit at once.
    options = ("--blocks", "140", "--max-batched-tokens", "48", "--max-num-seqs", "16")
    async with pool(name, workers=2, options=options) as running:
        for _ in range(2):
            answers = await asyncio.gather(
                *(
                    running.client.generate(tokens=p, max_tokens=16, ignore_eos=True)
                    for p in prompts
                )
            )
            assert [a.tokens for a in answers] == [reference(plain, p, 16) for p in prompts]
        assert all(answer.usage.cached_tokens >= 96 - 1 for answer in answers)


@pytest.mark.slow
async def test_the_demo_model_answers_the_pool_as_it_answers_transformers(pool):
    import os

    import torch

    folder = prepare("demo", cache=cache_root(os.environ))
    plain = AutoModelForCausalLM.from_pretrained(folder.path, dtype=torch.float32).eval()
    text = text_model("demo")
    tokens = text.encode_chat([{"role": "user", "content": "Name three colours."}])
    options = ("--max-batched-tokens", "64", "--dtype", "float32", "--blocks", "520")
    daemon = ("--dtype", "float32")
    async with pool("demo", options=options, daemon_options=daemon) as running:
        cold = await running.client.generate(tokens=tokens, max_tokens=24, ignore_eos=True)
        hit = await running.client.generate(tokens=tokens, max_tokens=24, ignore_eos=True)
    expected = reference(plain, tokens, 24)
    assert cold.tokens == hit.tokens == expected
    assert hit.usage.cached_tokens > 0
    assert cold.text == hit.text == text.decode(expected)


@pytest.mark.bar(40)
async def test_streamed_text_equals_the_text_of_all_tokens(pool):
    text = text_model(TINY)
    prompts = ["日本語のテキスト、漢字かな交じり文。", "👩‍👩‍👧 🇩🇪 emoji ✨", "déjà vu — naïve"]
    async with pool() as running:
        for prompt in prompts:
            for seed in range(3):
                request = await running.client.submit(
                    prompt=prompt, max_tokens=120, ignore_eos=True, temperature=1.0, seed=seed
                )
                outputs = [output async for output in running.client.stream(request)]
                tokens = [output.token for output in outputs]
                assert text_of(outputs) == text.decode(tokens)


async def test_a_stop_string_never_leaks_and_the_earliest_match_wins(pool):
    async with pool() as running:
        free = await running.client.generate(prompt="Once", max_tokens=60, ignore_eos=True)
        late, early = free.text[30:33], free.text[12:15]
        first = min(free.text.index(late), free.text.index(early))
        request = await running.client.submit(
            prompt="Once", max_tokens=60, ignore_eos=True, stop=[late, early]
        )
        outputs = [output async for output in running.client.stream(request)]
        assert text_of(outputs) == free.text[:first]
        assert outputs[-1].finish_reason == "stop"
        assert len(outputs) < 60


async def test_a_seed_draws_the_same_tokens_whatever_runs_beside_it(pool):
    async with pool() as running:
        options = {"prompt": "Once", "max_tokens": 20, "temperature": 1.0, "seed": 5}
        alone = await running.client.generate(**options)
        crowd = await asyncio.gather(
            *(running.client.generate(**{**options, "seed": seed}) for seed in (1, 5, 9, 5))
        )
        assert alone.tokens == crowd[1].tokens == crowd[3].tokens
        assert crowd[0].tokens != crowd[1].tokens


async def test_logprobs_name_the_token_and_its_rivals(pool):
    async with pool() as running:
        request = await running.client.submit(prompt="Once", max_tokens=3, logprobs=4)
        async for output in running.client.stream(request):
            logprobs = json.loads(output.logprobs)
            assert len(logprobs["top"]) == 4
            assert logprobs["top"][0][0] == output.token
            assert logprobs["top"][0][2] == logprobs["logprob"] <= 0
            assert logprobs["top"][0][1] == logprobs["text"]


@pytest.mark.bar(15)
async def test_a_worker_of_another_model_is_refused_with_the_field_that_differs(pool, tmp_path):
    async with pool() as running:
        for extra, field in (
            (["--model", "random:tiny-llama"], "fingerprint"),
            (["--model", TINY, "--block-size", "32"], "block_size"),
            (["--model", TINY, "--dtype", "bfloat16"], "dtype"),
        ):
            log = tmp_path / field
            argv = ("--redis-url", running.url, "--rank", "5", *extra)
            refused = forge().start("workers", *argv, log=log)
            assert await asyncio.to_thread(refused.wait) == 2, log.read_text()
            assert field in log.read_text().splitlines()[-1]
