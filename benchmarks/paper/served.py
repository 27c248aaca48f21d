"""A pool of real processes that many trials share, each with empty caches and its own constants.

Starting a worker costs more than a trial, so the processes stay. Between two trials every worker
forgets what it cached, and the next trial's salt makes sure that nothing older could be found.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from benchmarks.paper.drive import Driver
from benchmarks.paper.metrics import Sample, trial_figures
from benchmarks.paper.modes import Mode
from benchmarks.paper.usage import Usage
from benchmarks.paper.workloads import Phase, Prompt, Workload
from benchmarks.processes import Processes, running_pool
from lmpoold.client import PoolClient
from lmpoold.protocol.config import read_constants
from lmpoold.protocol.hashing import chain_hashes, domain_root
from lmpoold.protocol.keys import Keyspace
from lmpoold.store.connect import open_redis
from lmpoold.store.plans import PlanStore
from lmpoold.store.scripts import PoolStore
from lmpoold.store.streams import ask_to_forget
from lmpoold.text.tokenizer import TextModel

EMPTY_S = 60.0
SETTLE_S = 10.0
FORETOLD_S = 1.5
"""The leader looks at what is hot twice a second."""
WARM = "A rank that has served nothing yet is slower than it will be. " * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is started.

    Attributes:
        threads: of a worker's model, on a CPU.
        mark: the model's fingerprint, from which hash domains come.
        options: more for each worker.
    """

    model: str
    device: str
    dtype: str
    block_size: int
    blocks: int
    max_model_len: int
    threads: int
    mark: str
    text: TextModel
    lmpoolds: int = 1
    options: tuple[str, ...] = ()

    def worker(self, rank: int) -> list[str]:
        """Return the argv of a worker behind `python -m`."""
        argv = ["workers", "--model", self.model, "--rank", str(rank), "--device", self.device]
        argv += ["--threads", str(self.threads), "--blocks", str(self.blocks)]
        return [*argv, "--log-level", "warning", *self.options]

    def daemon(self) -> tuple[str, ...]:
        """Return lmpoold's options."""
        sizes = ("--block-size", str(self.block_size), "--max-model-len", str(self.max_model_len))
        return (*sizes, "--dtype", self.dtype, "--log-level", "warning")


class Served:
    """A pool that runs, and trials on it."""

    def __init__(
        self, plan: Plan, ranks: int, processes: Processes, redis: Redis, client: PoolClient
    ) -> None:
        self.plan = plan
        self.ranks = ranks
        self._processes = processes
        self._redis = redis
        self._client = client
        self._store = PoolStore(redis, Keyspace())
        self._plans = PlanStore(self._store)

    async def warm_up(self) -> None:
        """Let every rank prefill and decode, so that no trial pays for first times."""
        await self._store.tune(read_constants({"origin_hops": "0", "background": "0"}))
        driver = Driver(client=self._client, salt=uuid.uuid4().hex, max_tokens=8, turn=self.ranks)
        prompts = tuple(
            Prompt(i, f"{i:02} {WARM}"[: self.plan.max_model_len - 16])
            for i in range(8 * self.ranks)
        )
        await driver.closed(Phase("warm", prompts), 4 * self.ranks)

    async def trial(
        self,
        work: Workload,
        mode: Mode,
        *,
        slas_ms: Sequence[float],
        arrivals_s: Sequence[float] | None = None,
        oracle: bool = False,
        constants: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Run a workload once from empty caches; returns its figures.

        Args:
            work: what is sent.
            mode: how it is served.
            slas_ms: limits of E2E; the first one makes the goodput.
            arrivals_s: of the requests; None for a closed loop.
            oracle: tell the pool between two phases what will be asked for, exactly.
            constants: of `cfg`, besides the mode's.
        """
        await self._empty()
        await self._store.tune(read_constants({**mode.constants, **(constants or {})}))
        keys = self._store.keys
        marks = [await self._last(stream) for stream in (keys.plan_log, keys.plan_refusals)]
        driver = Driver(
            client=self._client,
            salt=uuid.uuid4().hex[:12],
            max_tokens=work.max_tokens,
            turn=self.ranks if mode.in_turn else 0,
        )
        with Usage(self._processes, self.plan.device, self.ranks) as usage:
            for number, phase in enumerate(work.phases):
                if oracle and number:
                    await self._foretell(phase.prompts, driver.salt)
                if arrivals_s is None:
                    await driver.closed(phase, work.window)
                else:
                    begin = len(driver.samples)
                    times = arrivals_s[begin : begin + len(phase.prompts)]
                    await driver.opened(phase, [at_s - times[0] for at_s in times])
        await self._settled()
        await self._read_routes(driver.samples)
        figures = trial_figures(
            driver.samples,
            await self._since(keys.plan_log, marks[0]),
            reuse_phase=work.reuse,
            slas_ms=slas_ms,
            ranks=self.ranks,
            refused=await self._since(keys.plan_refusals, marks[1]),
        )
        figures["utilisation"] = usage.figures()
        figures["answers"] = " ".join(sample.digest for sample in driver.samples)
        return figures

    async def _empty(self) -> None:
        """Wait until no rank has anything to do or in its cache."""
        await self._settled()
        for rank in range(self.ranks):
            await ask_to_forget(self._redis, self._store.keys.worker(rank))
        await self._redis.unlink(self._store.keys.hot)
        async with asyncio.timeout(EMPTY_S):
            while not all(row.free == row.blocks for row in await self._store.ranks()):
                self._processes.check()
                await asyncio.sleep(0.02)

    async def _settled(self) -> None:
        """Wait until no plan is under way."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while await self._redis.zcard(self._store.keys.plans):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)  # another process's event

    async def _last(self, stream: str) -> str:
        rows: Any = await self._redis.xrevrange(stream, count=1)
        return rows[0][0].decode() if rows else "0-0"

    async def _since(self, stream: str, mark: str) -> list[dict[str, str]]:
        rows: Any = await self._redis.xrange(stream, f"({mark}")
        return [{k.decode(): v.decode() for k, v in values.items()} for _, values in rows]

    async def _foretell(self, prompts: Sequence[Prompt], salt: str) -> None:
        """Make what is coming as hot as it will be, and wait while the pool places it."""
        root, size = domain_root(self.plan.mark, self.plan.block_size, salt), self.plan.block_size
        chains = [chain_hashes(self.plan.text.encode(p.text), size, root) for p in prompts]
        times = Counter(name for chain in chains for name in chain)
        leaves = (next((n for n in reversed(chain) if times[n] > 1), None) for chain in chains)
        hot = {leaf: float(times[leaf]) for leaf in leaves if leaf is not None}
        if not hot:
            return
        cfg = await self._store.cfg()
        # Nobody has anything to do just now: load is even, and what is known needs no threshold.
        await self._store.tune({"hot_skew": "0", "hot_threshold": "1"})
        await self._redis.zadd(self._store.keys.hot, hot)
        await asyncio.sleep(FORETOLD_S)
        await self._settled()
        await self._store.tune({name: cfg[name] for name in ("hot_skew", "hot_threshold")})

    async def _read_routes(self, samples: Sequence[Sample]) -> None:
        """Note with each sample what the route rule wrote down."""
        names = ("rank", "reason", "terms")
        pipe = self._redis.pipeline(transaction=False)
        for sample in samples:
            pipe.hmget(self._store.keys.request(sample.id), names)
        for sample, (rank, reason, terms) in zip(samples, await pipe.execute(), strict=True):
            sample.rank, sample.reason = int(rank), reason.decode()
            sample.blocks = sample.prompt_tokens // self.plan.block_size
            for line in terms.decode().split(";"):
                words = line.split()
                sample.deepest = max(sample.deepest, int(words[1]))
                if int(words[0]) == sample.rank:
                    sample.hit = int(words[1])


@contextlib.asynccontextmanager
async def served(plan: Plan, ranks: int) -> AsyncIterator[Served]:
    """Start a pool of `ranks` workers and warm it up; it ends with the block."""
    argv = [plan.worker(rank) for rank in range(ranks)]
    async with running_pool(
        plan.model, argv, daemon_options=plan.daemon(), daemons=plan.lmpoolds
    ) as processes:
        redis = open_redis(processes.url)
        try:
            async with PoolClient(processes.url) as client:
                pool = Served(plan, ranks, processes, redis, client)
                await pool.warm_up()
                yield pool
        finally:
            await redis.aclose()
