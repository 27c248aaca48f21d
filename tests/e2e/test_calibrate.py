"""`lmpoolctl calibrate` on two real workers over gloo: what it keeps, and whom it leaves alone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

import pytest

from lmpoold.protocol.profile import Profile
from tests.e2e.ctl_program import environ
from tests.e2e.transfer_pool import plain_model, plain_output, prompt, running_pair
from tests.house.tree import ROOT

pytestmark = pytest.mark.timeout(240)


class Calibration:
    """One run of the command beside whatever the test does."""

    @classmethod
    async def start(cls, pair, *words):
        self = cls()
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ctl", "calibrate", "--redis-url", pair.server.url, *words),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env=environ(),
        )
        return self

    async def end(self):
        """Wait; returns exit code, stdout, stderr."""
        out, said = await asyncio.wait_for(self.process.communicate(), 120)
        return self.process.returncode, out.decode(), said.decode()


async def calibrate(pair, *words):
    return await (await Calibration.start(pair, *words)).end()


async def test_calibration_measures_every_link_and_gives_way_to_whoever_is_served(tmp_path):
    model = plain_model()
    async with running_pair(tmp_path) as pair:
        asked = [prompt(number) for number in range(3)]
        wanted = [plain_output(model, each, 10) for each in asked]
        for rank in (0, 1):
            assert (await pair.ask(rank, asked[0])).tokens == wanted[0]
        await pair.until_idle()
        cached = {rank: await pair.held(rank, asked[0]) for rank in (0, 1)}
        await every_link(pair)
        await kept_and_used(pair)
        await beside_serving(pair, asked, wanted)
        await out_of_patience(pair)
        await interrupted(pair)
        await a_worker_dies(pair, asked[1], wanted[1])
        assert await pair.held(1, asked[0]) == cached[1] == 8, "scratch costs no cached block"
        await without_a_link(pair)


async def every_link(pair):
    code, out, said = await calibrate(pair, "--blocks", "200", "--rounds", "3", "--json")
    assert code == 0, said
    found = json.loads(out)
    assert found["block_bytes"] == int((await pair.store.cfg())["kv_block_bytes"])
    assert [(link["source"], link["destination"]) for link in found["links"]] == [(0, 1), (1, 0)]
    for link in found["links"]:
        assert [point["blocks"] for point in link["points"]] == [1, 2, 4, 8, 16, 32, 64, 128]
        assert all(point["samples"] == 3 for point in link["points"])
        assert all(0 < point["travel_p50_us"] < point["total_p50_us"] for point in link["points"])
        assert link["remark"] == ""
    assert "0>1: 128 blocks at a time" in said, "progress goes to standard error"
    await pair.until_idle()


async def kept_and_used(pair):
    code, out, _ = await calibrate(pair, "--show", "--json")
    profile = Profile.decode(out)
    assert code == 0
    assert set(profile.curves) == set(profile.residuals) == {(0, 1), (1, 0)}
    fixed, each = await until_line(pair, lambda line: line[0] < 10**6)
    size = 32 * profile.block_bytes
    wanted = 1.2 * profile.curves[0, 1].at(size) + profile.residual((0, 1), 32)
    assert fixed + 32 * each == pytest.approx(wanted, rel=0.05), (
        "the leader's line is the profile's"
    )
    other = Profile(block_bytes=profile.block_bytes * 2, curves=profile.curves)
    await pair.redis.set(pair.store.keys.profile, other.encode())
    code, _, said = await calibrate(pair, "--show")
    assert (code, "run lmpoolctl calibrate" in said) == (1, True), said
    await pair.redis.set(pair.store.keys.profile, profile.encode())


async def until_line(pair, good):
    async with asyncio.timeout(10):
        await asyncio.sleep(2.5)  # the leader looks once a second
        raw = await pair.redis.hget(pair.store.keys.links, "0>1")
    return [int(word) for word in raw.split()]


async def beside_serving(pair, asked, wanted):
    """Requests that come meanwhile are answered like ever, and the measurement is whole."""
    running = await Calibration.start(pair, "--blocks", "8", "--rounds", "3", "--loaded", "--json")
    answers = 0
    while running.process.returncode is None and answers < 12:
        for each, answer in zip(asked, wanted, strict=True):
            got = await pair.client.generate(tokens=each, max_tokens=10, ignore_eos=True)
            assert got.tokens == answer
            answers += 1
        await asyncio.sleep(0.05)
    code, out, said = await running.end()
    assert code == 0, said
    assert answers >= 3
    links = json.loads(out)["links"]
    assert all(len(link["points"]) == 4 and link["slowing"] >= 1 for link in links), links
    await pair.until_idle()


async def out_of_patience(pair):
    """Ranks that never rest are left alone, and the exit says so."""
    before = await pair.redis.get(pair.store.keys.profile)
    busy = [
        asyncio.create_task(
            pair.client.generate(tokens=prompt(60 + n), max_tokens=600, origin=n % 2)
        )
        for n in range(4)
    ]
    async with asyncio.timeout(20):
        while not all(row.sequences for row in (await pair.rows()).values()):
            await asyncio.sleep(0.01)
    code, _, said = await calibrate(pair, "--patience", "0.1")
    for task in busy:
        task.cancel()
    await asyncio.gather(*busy, return_exceptions=True)
    assert code == 1
    assert "served requests for 0.1 s" in said
    assert await pair.redis.get(pair.store.keys.profile) == before, "nothing new is kept"
    await pair.until_idle()


async def interrupted(pair):
    """Ctrl-C ends it with nothing held and nothing kept."""
    before = await pair.redis.get(pair.store.keys.profile)
    running = await Calibration.start(pair, "--rounds", "1000")
    async with asyncio.timeout(30):
        while not await pair.redis.xlen(pair.store.keys.probe_log):
            await asyncio.sleep(0.01)
        seen = (await pair.plans.last_probed(),)
        while seen[0] == await pair.plans.last_probed():
            await asyncio.sleep(0.01)
    running.process.send_signal(signal.SIGINT)
    code, _, _ = await running.end()
    assert code == 130
    assert await pair.redis.get(pair.store.keys.profile) == before
    await pair.until_idle()


async def a_worker_dies(pair, asked, wanted):
    """kill -9 of one side: its plan is settled, the command says so, and the rank comes back."""
    running = await Calibration.start(pair, "--rounds", "1000", "--patience", "1")
    async with asyncio.timeout(30):
        first = await pair.plans.last_probed()
        while first == await pair.plans.last_probed():
            await asyncio.sleep(0.01)
    os.kill(pair.children["worker0"].pid, signal.SIGKILL)
    code, _, said = await running.end()
    assert code == 1
    assert "down" in said or "aborted" in said, said
    await pair.restart_worker(0)
    await pair.until_idle()
    assert (await pair.ask(0, asked)).tokens == wanted
    assert (await pair.ask(1, asked)).tokens == wanted
    code, _, said = await calibrate(pair, "--blocks", "2", "--rounds", "2", "--pair", "1-0")
    assert code == 0, said
    await pair.until_idle()


async def without_a_link(pair):
    """The command says what it takes."""
    code, _, said = await calibrate(pair, "--pair", "0-7")
    assert (code, "ranks 0 and 7 have no link" in said) == (1, True), said
    pair.kill("worker1")
    async with asyncio.timeout(30):
        while await pair.plans.linked():
            await asyncio.sleep(0.05)
    code, _, said = await calibrate(pair)
    assert (code, "two workers on one host" in said) == (1, True), said
