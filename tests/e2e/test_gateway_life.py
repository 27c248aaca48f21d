"""How the gateway lives: callers that leave, names, metrics, keys, its end."""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import httpx
import openai
import pytest

from tests.e2e.gateway_house import MODEL, TURN, listening, official

LONG = {"max_tokens": 1500, "extra_body": {"ignore_eos": True}}
pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]


async def test_a_caller_that_leaves_mid_stream_cancels_and_the_blocks_are_free(house, client):
    stream = await client.chat.completions.create(
        model=MODEL, messages=TURN, stream=True, extra_headers={"x-request-id": "left"}, **LONG
    )
    assert stream.response.headers["x-request-id"] == "left"
    await anext(stream)
    assert await house.state("left") in ("routed", "running")
    await stream.close()
    await house.ends_cancelled("left")


async def test_a_caller_that_leaves_before_its_whole_answer_cancels_all_choices(house, client):
    with pytest.raises(openai.APITimeoutError):
        await client.with_options(timeout=0.3).chat.completions.create(
            model=MODEL, messages=TURN, n=3, extra_headers={"x-request-id": "gone"}, **LONG
        )
    for number in range(3):
        await house.ends_cancelled(f"gone:{number}")


async def test_a_request_id_is_the_pools_id_and_may_come_again(house, client):
    asked = {"model": MODEL, "messages": TURN, "max_tokens": 2}
    headers = {"x-request-id": "trace-7"}
    raw = client.chat.completions.with_raw_response
    one = await raw.create(**asked, extra_headers=headers)
    two = await raw.create(**asked, extra_headers=headers)
    assert one.headers["x-request-id"] == "trace-7"
    assert one.parse().id == "chatcmpl-trace-7"
    assert await house.state("trace-7") == "done"
    again = two.headers["x-request-id"]
    assert again.startswith("trace-7:")
    assert await house.state(again) == "done"


async def test_health_readiness_and_metrics(house, client):
    await client.chat.completions.create(
        model=MODEL, messages=TURN, max_tokens=4, extra_body={"ignore_eos": True}
    )
    async with httpx.AsyncClient(base_url=house.url) as web:
        assert (await web.get("/health")).status_code == 200
        assert (await web.get("/ready")).json() == {"ready": True, "ranks_up": 1, "why": ""}
        page = (await web.get("/metrics")).text
    values = dict(line.rsplit(" ", 1) for line in page.splitlines() if line[0] != "#")
    assert float(values['lmpool_gateway_requests_total{code="200",endpoint="chat"}']) >= 1
    assert float(values["lmpool_gateway_ttft_seconds_count"]) >= 1
    assert float(values["lmpool_gateway_tpot_seconds_count"]) >= 1
    assert float(values["lmpool_gateway_prompt_tokens_total"]) > 0
    assert float(values["lmpool_gateway_output_tokens_total"]) >= 4
    assert values['lmpool_rank_up{rank="0"}'] == "1.0"
    assert float(values['lmpool_rank_blocks{rank="0"}']) > 0
    assert float(values['lmpool_rank_output_tokens_total{rank="0"}']) >= 4
    assert values["lmpool_gateway_under_way"] == "0.0"


def shown(page):
    return dict(line.rsplit(" ", 1) for line in page.splitlines() if line[0] != "#")


async def test_lmpoold_and_a_worker_show_their_figures_on_ports_of_their_own(house, client):
    asked = {"model": MODEL, "prompt": "figures " * 40, "max_tokens": 4}
    for _ in range(2):
        answer = await client.completions.create(**asked)
    matched = answer.usage.prompt_tokens_details.cached_tokens
    logs = {name: house.processes.folder / f"{name}.log" for name in ("lmpoold", "worker0")}
    async with httpx.AsyncClient() as web, asyncio.timeout(20):
        worker = shown((await web.get(await listening(logs["worker0"], "metrics"))).text)
        lmpoold = {}
        while lmpoold.get("lmpool_pool_daemons") != "1.0":  # the leader looks once a second
            lmpoold = shown((await web.get(await listening(logs["lmpoold"], "metrics"))).text)
            await asyncio.sleep(0.1)
    assert float(worker["lmpool_worker_ttft_seconds_count"]) >= 2
    assert float(worker["lmpool_worker_tpot_seconds_count"]) >= 2
    assert float(worker["lmpool_worker_queue_seconds_count"]) >= 2
    assert float(worker['lmpool_worker_step_tokens_total{kind="prefill"}']) > 0
    assert float(worker["lmpool_worker_cached_tokens_total"]) >= matched > 0
    assert float(lmpoold["lmpool_router_route_seconds_count"]) >= 2
    assert float(lmpoold["lmpool_router_matched_tokens_total"]) >= matched
    assert float(lmpoold["lmpool_router_prompt_tokens_total"]) > matched
    assert lmpoold["lmpool_planner_leads"] == "1.0"
    assert lmpoold['lmpool_rank_up{rank="0"}'] == "1.0"


async def test_one_id_runs_through_the_logs_of_all_three_and_no_prompt_does(house, client):
    word = "unmistakable"
    await client.completions.create(
        model=MODEL, prompt=word, max_tokens=2, extra_headers={"x-request-id": "trace-9"}
    )
    wanted = {"gateway": "answered", "lmpoold": "routed", "worker0": "ended"}
    async with asyncio.timeout(10):
        for name, event in wanted.items():
            log = house.processes.folder / f"{name}.log"
            while not [
                row
                for row in map(json.loads, log.read_text().splitlines())
                if row.get("request") == "trace-9" and row["msg"] == event
            ]:
                await asyncio.sleep(0.05)
            assert word not in log.read_text()


async def test_keys_open_the_gateway_and_part_the_cache_and_stand_in_no_log(house, tmp_path):
    file = tmp_path / "keys"
    file.write_text("# callers\nsecret-of-alice\nsecret-of-bob\n")
    url = await house.gateway("locked", "--api-key-file", str(file), "--salt-per-key")
    asked = {"model": MODEL, "prompt": "a shared secret " * 8, "max_tokens": 1}

    async def cached(key):
        async with official(url, api_key=key) as client:
            usage = (await client.completions.create(**asked)).usage
            return usage.prompt_tokens_details.cached_tokens

    assert await cached("secret-of-alice") == 0
    assert await cached("secret-of-alice") > 64
    assert await cached("secret-of-bob") == 0
    async with official(url, api_key="secret-of-eve") as client:
        for call in (client.completions.create(**asked), client.models.retrieve(MODEL)):
            with pytest.raises(openai.AuthenticationError) as caught:
                await call
            assert caught.value.code == "invalid_api_key"
    async with httpx.AsyncClient(base_url=url) as web:
        assert (await web.post("/v1/completions", json=asked)).status_code == 401
        assert (await web.get("/health")).status_code == 200
        assert "secret" not in (await web.get("/metrics")).text
    assert "secret-of" not in (house.processes.folder / "locked.log").read_text()


async def test_sigterm_lets_answers_end_and_leaves_with_zero(house):
    url = await house.gateway("leaving", "--drain-s", "20")
    process = house.processes.children.pop("leaving")
    async with official(url) as client:
        stream = await client.completions.create(
            model=MODEL,
            prompt="Once",
            max_tokens=200,
            stream=True,
            extra_body={"ignore_eos": True},
            stream_options={"include_usage": True},
        )
        await anext(stream)
        process.send_signal(signal.SIGTERM)
        chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage.completion_tokens == 200
    assert await asyncio.to_thread(process.wait, 20) == 0


async def test_without_a_server_the_gateway_says_so_at_once_and_lives(tmp_path):
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "lmpoold.gateway", "--port", "0"),
            *("--redis-url", f"unix://{tmp_path}/nothing.sock"),
            stdout=out,
            stderr=out,
        )
    try:
        url = await listening(log)
        async with httpx.AsyncClient(base_url=url) as web:
            answer = await web.post("/v1/completions", json={"model": MODEL, "prompt": "x"})
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "pool_unreachable"
            assert "retry-after" in answer.headers
            assert (await web.get("/ready")).status_code == 503
            assert (await web.get("/health")).status_code == 200
            assert "lmpool_server_up 0.0" in (await web.get("/metrics")).text
    finally:
        process.terminate()
        assert await process.wait() == 0


async def test_a_submission_that_is_cancelled_leaves_nothing_running(house):
    for ticks in range(1, 12):
        name = f"changed-its-mind-{ticks}"
        submitting = asyncio.create_task(
            house.direct.submit(
                request_id=name, prompt="Once", max_tokens=1500, ignore_eos=True, deadline_ms=60_000
            )
        )
        for _ in range(ticks):
            await asyncio.sleep(0)
        submitting.cancel()
        await asyncio.gather(submitting, return_exceptions=True)
        if not submitting.cancelled():
            await house.direct.drop(name)
        async with asyncio.timeout(10):
            while await house.state(name) not in ("cancelled", "tombstone"):
                await asyncio.sleep(0.02)
    await house.idle()
