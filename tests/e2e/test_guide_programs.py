"""The programs of the producer guide, run as a reader would: they print what the pool answers."""

from __future__ import annotations

import asyncio
import re
import shutil
import sys

import pytest
import pytest_asyncio

from tests.house.tree import ROOT, text_of

GUIDE = text_of(ROOT / "lmpoold" / "guides" / "producing.md")
PROGRAMS = dict(re.findall(r"^```\w+ file=(\S+)\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE))
RUNS = {
    "producer.py": [sys.executable],
    "producer.mjs": ["node"],
    "producer.go": ["go", "run"],
}
PROMPT = "Warum ist der Himmel blau? Café, 空"
pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def running(pool):
    """One pool for all programs."""
    async with pool() as running:
        yield running


async def ran(folder, file, url, prompt):
    """Run a program of the guide; returns its exit code, output and complaints."""
    if shutil.which(RUNS[file][0]) is None:
        pytest.skip(f"{RUNS[file][0]} is not installed")
    path = folder / file
    path.write_text(PROGRAMS[file], encoding="utf-8")
    server = url if file.endswith(".py") else url.removeprefix("unix://")
    child = await asyncio.create_subprocess_exec(
        *(*RUNS[file], str(path), server, prompt),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(120):
        said, complaints = await child.communicate()
    return child.returncode, said.decode(), complaints.decode()


async def test_the_guide_has_the_programs_that_run_here():
    assert PROGRAMS.keys() == RUNS.keys()


@pytest.mark.parametrize("file", RUNS)
async def test_a_program_of_the_guide_prints_the_answer(running, tmp_path, file):
    answer = await running.client.generate(prompt=PROMPT, max_tokens=16)
    code, said, complaints = await ran(tmp_path, file, running.url, PROMPT)
    assert code == 0, complaints
    assert said == answer.text


@pytest.mark.parametrize("file", RUNS)
async def test_a_program_of_the_guide_says_why_it_got_none(running, tmp_path, file):
    code, said, complaints = await ran(tmp_path, file, running.url, "")
    assert (code, said) == (1, "")
    assert "invalid_request: `prompt` is empty" in complaints
