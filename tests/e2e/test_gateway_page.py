"""The web page: the JSON behind it on a real pool, and the page in a browser where there is one."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.e2e.gateway_house import MODEL, House, running_house

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]
BROWSER = os.environ.get("LMPOOL_BROWSER") or shutil.which("chromium")
in_a_browser = pytest.mark.skipif(
    BROWSER is None, reason="no browser: install chromium, or name one in LMPOOL_BROWSER"
)
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync")
QUIET += ("--disable-background-networking", "--disable-component-update", "--disable-quic")
PROMPT = "The page shows where this prompt lies. " * 8


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house():
    async with running_house() as running:
        await running.direct.generate(request_id="first", prompt=PROMPT, max_tokens=2)
        await running.direct.generate(request_id="shown", prompt=PROMPT, max_tokens=2)
        await running.idle()
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def web(house: House):
    async with httpx.AsyncClient(base_url=house.url) as client:
        yield client


async def get(web, path, status=200):
    answer = await web.get(f"/ui/api/{path}")
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_the_pool_at_this_moment(web):
    pool = await get(web, "pool")
    assert pool["cfg"]["model"] == MODEL
    assert pool["up"] == 1
    assert pool["daemons"] == 1
    (row,) = pool["ranks"]
    assert row["state"] == "up"
    assert row["used"] == row["blocks"] - row["free"] - row["reclaimable"]
    assert pool["totals"]["requests"] >= 2
    assert 0 < pool["totals"]["hit_rate"] < 1
    assert pool["plans"] == pool["log"] == []
    assert "domain" not in pool["cfg"]


async def test_a_page_table_is_shown_and_each_block_leads_to_its_prompts_beginning(house, web):
    blocks, cursor = [], "0"
    while True:
        found = await get(web, f"pages?rank=0&cursor={cursor}")
        blocks += found["blocks"]
        cursor = found["cursor"]
        if cursor == "0":
            break
    assert len(blocks) == (await house.store.ranks())[0].pages > 4
    deepest = max(blocks, key=lambda row: row["depth"])
    shown = await get(web, f"block?hash={deepest['hash']}")
    assert [holder["rank"] for holder in shown["holders"]] == ["0"]
    assert len(shown["chain"]) == deepest["depth"] + 1
    assert shown["chain"][-1] == deepest["hash"]
    assert shown["chain"][-2] == deepest["parent"]


async def test_a_requests_route_is_explained_as_lmpoolctl_does(web):
    found = await get(web, "request?id=shown")
    assert found["rank"] == 0
    assert found["reason"] == "prefix_hit"
    assert found["sentence"].startswith("it holds the longest cached prefix")
    assert found["facts"]["state"] == "done"
    (candidate,) = found["candidates"]
    assert candidate["hit"] > 4
    assert candidate["verdict"] == "ok"


async def test_what_cannot_be_shown_is_refused_with_a_reason(web):
    assert (await get(web, "request?id=nobody", 404))["error"]["code"] == "not_found"
    for path in ("pages?rank=x", "pages?rank=0&cursor=-1", "pages", "block?hash=abc", "block"):
        assert (await get(web, path, 400))["error"]["code"] == "invalid_request"
    assert (await get(web, "pages?rank=77"))["blocks"] == []
    assert (await get(web, "block?hash=" + "0" * 32))["holders"] == []


async def test_the_page_asks_nobody_but_its_own_gateway(web):
    for path, kind in (("/ui", "html"), ("/ui/ui.css", "css"), ("/ui/ui.js", "javascript")):
        answer = await web.get(path)
        assert answer.status_code == 200
        assert kind in answer.headers["content-type"]
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        outside = set(re.findall(r"https?:[^\s\"']*|[\"'(]//[^\s\"']+", answer.text))
        assert outside <= {"http://www.w3.org/2000/svg"}
    assert (await web.get("/ui/app.py")).status_code == 404
    assert (await web.get("/ui/..%2fapp.py")).status_code == 404


async def test_a_locked_gateway_shows_its_page_and_tells_nothing(house, tmp_path):
    file = tmp_path / "keys"
    file.write_text("secret-of-alice\n")
    url = await house.gateway("page-locked", "--api-key-file", str(file))
    async with httpx.AsyncClient(base_url=url) as web:
        assert (await web.get("/ui")).status_code == 200
        for path in ("pool", "pages?rank=0", "block?hash=" + "0" * 32, "request?id=shown"):
            assert (await web.get(f"/ui/api/{path}")).status_code == 401
        key = {"Authorization": "Bearer secret-of-alice"}
        assert (await web.get("/ui/api/pool", headers=key)).status_code == 200


def browse(profile: Path, *words: str) -> str:
    argv = [
        str(BROWSER),
        *QUIET,
        f"--user-data-dir={profile}",
        "--virtual-time-budget=6000",
        *words,
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@in_a_browser
async def test_a_browser_draws_the_pool_a_route_and_a_page_table(house, web, tmp_path):
    url = f"{house.url}/ui#request=shown&rank=0"
    seen = await asyncio.to_thread(browse, tmp_path / "profile", "--dump-dom", url)
    assert ">live<" in seen
    assert "It went to rank 0: it holds the longest cached prefix" in seen
    assert MODEL in seen
    assert 'class="node up"' in seen
    for row in (await get(web, "pages?rank=0"))["blocks"]:
        assert row["hash"] in seen


@in_a_browser
@pytest.mark.parametrize("width", [1280, 390])
async def test_a_browser_takes_a_picture_of_the_page(house, tmp_path, width):
    picture = tmp_path / f"{width}.png"
    words = (f"--window-size={width},1600", f"--screenshot={picture}", f"{house.url}/ui")
    await asyncio.to_thread(browse, tmp_path / "profile", *words)
    head = picture.read_bytes()[:24]
    assert head[1:4] == b"PNG"
    assert struct.unpack(">II", head[16:24]) == (width, 1600)
