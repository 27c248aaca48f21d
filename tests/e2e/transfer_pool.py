"""Real workers that move blocks between them, and what tests do to them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import torch
from transformers import GenerationConfig

from lmpoold.client import PoolClient
from lmpoold.daemon.pairs import USES
from lmpoold.protocol.errors import Conflict
from lmpoold.protocol.hashing import chain_hashes
from lmpoold.protocol.keys import Keyspace
from lmpoold.protocol.transfer import Mode, Phase, Why
from lmpoold.store.connect import open_redis
from lmpoold.store.embedded import EmbeddedServer
from lmpoold.store.plans import PlanStore
from lmpoold.store.scripts import PoolStore
from lmpoold.text.folder import cache_root, resolve
from tests.e2e.forge import Child, forge
from workers.model.weights import load

MODEL = "random:tiny-qwen3"
BLOCK = 16
BLOCKS = 300


def plain_model():
    """The model as `transformers` runs it."""
    torch.set_num_threads(1)
    return load(resolve(MODEL, cache=cache_root(os.environ)), dtype="float32").model


def plain_output(model, tokens, count):
    """Greedy output of the model itself."""
    settings = GenerationConfig(
        max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    ids = torch.tensor([list(tokens)])
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    return tuple(out[0, len(tokens) :].tolist())


def prompt(number: int, blocks: int = 8) -> list[int]:
    """A prompt of `blocks` complete blocks and a bit; no two numbers share a block."""
    return [(31 * number + 7 * at + at * at) % 250 for at in range(blocks * BLOCK + 5)]


class Pair:
    """A server, an lmpoold and two workers, or more."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self.ranks = range(workers)
        self.server = EmbeddedServer(folder / "s")
        self.children: dict[str, Child] = {}

    async def start(self) -> None:
        await self.server.start()
        self.redis = open_redis(self.server.url)
        self.store = PoolStore(self.redis, Keyspace())
        self.plans = PlanStore(self.store)
        self.client = await PoolClient(self.server.url).__aenter__()
        self.start_daemon()
        for rank in self.ranks:
            self.start_worker(rank)
        await self.until_up()

    async def stop(self) -> None:
        await self.client.__aexit__(None, None, None)
        await self.redis.aclose()
        for name in list(self.children):
            self.kill(name)
        self.server.stop()

    def _spawn(self, name: str, program: str, *argv: str, fault: str = "") -> None:
        argv = (*argv, "--redis-url", self.server.url, "--model", MODEL)
        log = self.folder / f"{name}.log"
        self.children[name] = forge().start(program, *argv, log=log, fault=fault)

    def start_daemon(self) -> None:
        self._spawn("lmpoold", "lmpoold", "--dtype", "float32")

    def start_worker(self, rank: int, fault: str = "") -> None:
        """Start a worker; `fault` as `faulty_worker` reads it."""
        options = ("--rank", str(rank), "--blocks", str(BLOCKS), "--threads", "1", "--check")
        self._spawn(f"worker{rank}", "workers", *options, "--transport", "gloo", fault=fault)

    def kill(self, name: str) -> None:
        self.children.pop(name).kill()

    def dead(self) -> list[str]:
        """Who ended without being told to."""
        return [name for name, child in self.children.items() if not child.runs()]

    async def restart_worker(self, rank: int, fault: str = "") -> None:
        self.kill(f"worker{rank}")
        self.start_worker(rank, fault)
        await self.until_up()

    async def until_up(self, within_s: float = 150.0) -> None:
        """Wait until every rank is held by the process that runs now."""
        pids = {str(self.children[f"worker{rank}"].pid) for rank in self.ranks}
        async with asyncio.timeout(within_s):
            while {row.pid for row in await self.store.ranks() if row.state == "up"} != pids:
                assert not (dead := self.dead()), f"{dead} ended:\n{self.logs(dead[0])}"
                await asyncio.sleep(0.05)

    async def keep_apart(self) -> None:
        """Let workers that come from now on connect for the first plan, not ahead of it."""
        await self.store.tune(dict.fromkeys(USES, "0"))

    async def until_linked(self, pairs: list[tuple[int, int]]) -> None:
        """Wait until the leader, who looks once a second, has found these links and no others."""
        async with asyncio.timeout(20):
            while await self.plans.linked() != pairs:
                await asyncio.sleep(0.05)

    def logs(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()[-3000:]

    async def ask(self, rank: int | None, tokens, count: int = 10):
        """Answer a prompt on one rank, or wherever route sends it."""
        for each in self.ranks if rank is not None else ():
            await self._drain(each, draining=each != rank)
        try:
            return await asyncio.wait_for(
                self.client.generate(tokens=list(tokens), max_tokens=count, ignore_eos=True), 60
            )
        finally:
            for each in self.ranks if rank is not None else ():
                with contextlib.suppress(Exception):
                    await self.store.drain(each, draining=False)

    async def _drain(self, rank: int, *, draining: bool, within_s: float = 30.0) -> None:
        """As soon as the rank is up: one that was late with a heartbeat joins again."""
        async with asyncio.timeout(within_s):
            while True:
                with contextlib.suppress(Conflict):
                    return await self.store.drain(rank, draining=draining)
                await asyncio.sleep(0.05)

    async def chain(self, tokens):
        cfg = await self.store.cfg()
        return chain_hashes(list(tokens), BLOCK, cfg["domain"])

    async def begin(self, tokens, source: int, destination: int, mode: Mode = Mode.COPY) -> str:
        """Begin a plan for a prompt's blocks, as the leader would."""
        token = await self.redis.get(f"{self.store.keys.prefix}sched:fence")
        plan = uuid.uuid4().hex
        phase = await self.plans.prepare(
            plan,
            token=token.decode(),
            mode=mode,
            why=Why.BACKGROUND,
            source=source,
            destination=destination,
            hashes=await self.chain(tokens),
            first=0,
        )
        assert phase is Phase.PREPARE, phase
        return plan

    async def settled(self, plan: str, within_s: float = 30.0) -> Phase:
        """Wait until a plan is over; returns how it ended."""
        async with asyncio.timeout(within_s):
            while (phase := await self.plans.phase(plan)) not in (Phase.FINALIZE, Phase.ABORTED):
                await asyncio.sleep(0.01)
        return phase

    async def held(self, rank: int, tokens) -> int:
        """How many leading blocks of a prompt a rank's page table shows."""
        pages, found = self.store.keys.pages(rank), 0
        for name in await self.chain(tokens):
            if not await self.redis.hexists(pages, name):
                break
            found += 1
        return found

    async def rows(self):
        return {row.rank: row for row in await self.store.ranks()}

    async def until_idle(self, within_s: float = 30.0) -> None:
        """Wait until no plan lives and every block is free or cached: none lost, none leaked."""
        async with asyncio.timeout(within_s):
            while True:
                rows = (await self.rows()).values()
                whole = all(row.free + row.reclaimable == BLOCKS for row in rows)
                told = all(row.reclaimable == row.pages for row in rows)
                if whole and told and not await self.plans.live():
                    return
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def running_pair(folder: Path, workers: int = 2) -> AsyncIterator[Pair]:
    """Run a pair, or more workers, until the block ends."""
    pair = Pair(folder, workers)
    try:
        await pair.start()
        yield pair
    finally:
        await pair.stop()
