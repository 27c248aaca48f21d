"""A trace through a simulated pool: events in virtual time, and what comes of them.

Requests that arrive at the same moment are routed in one call, as lmpoold does with what it reads
at once; what was reported before is sent ahead of it in the same message. A worker reports at the
end of each step (of a run of decode steps: of the run). Messages take no time: what they take in a
real pool is measured by `benchmarks.micro`.
"""

from __future__ import annotations

import heapq
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import inf
from pathlib import Path

from benchmarks.sim.engine import EngineModel
from benchmarks.sim.pool import ROUTE_BATCH, VirtualPool
from benchmarks.sim.worker import SimRequest, SimWorker
from benchmarks.traces import Trace
from lmpoold.protocol.config import PoolConstants
from lmpoold.store.connect import open_redis
from lmpoold.store.embedded import EmbeddedServer
from lmpoold.store.lane import Lane
from workers.core.reclaim import ReclaimPolicy

ROUTERS = ("kv", "round_robin", "least_load")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is simulated.

    Attributes:
        router: `kv`, the pool's rule; `round_robin`, each request with one candidate;
            `least_load`, the rule without the names of blocks, so that load alone counts.
        blocks: of each worker, of the trace's size.
        constants: fields of `cfg` other than their defaults.
        budget_tokens: of a step, seats: of a worker; as on a GPU.
        longest_run_s: of decode steps between two reports.
        stale_s: the least time between two reports of a worker; 0 reports each step.
        reserve: whether the pool counts what it routed before the worker reports it.
    """

    router: str
    workers: int
    blocks: int
    policy: ReclaimPolicy
    engine: EngineModel
    seed: int = 0
    constants: Mapping[str, float | str] = field(default_factory=dict)
    budget_tokens: int = 8192
    seats: int = 256
    longest_run_s: float = 0.25
    stale_s: float = 0.0
    reserve: bool = True

    def cfg(self) -> dict[str, float | str]:
        """Return the constants as this router sets them."""
        blind: dict[str, float | str] = (
            {"w_prefill": 0.0, "w_reclaim": 0.0} if self.router == "least_load" else {}
        )
        return {**blind, **self.constants}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run showed: the requests, where they went, and how long it took to find out."""

    requests: tuple[SimRequest, ...]
    routed: tuple[int, ...]
    parked: int
    wall_s: float
    server_cpu_s: float
    server_bytes: int

    @property
    def reuse(self) -> float:
        """Share of prompt tokens that came from a cache."""
        tokens = sum(request.input_tokens for request in self.requests)
        return sum(request.cached_tokens for request in self.requests) / tokens

    def ttft_s(self) -> list[float]:
        """Return the time to the first token of each request, sorted."""
        return sorted(request.first_token_s - request.arrival_s for request in self.requests)


class Simulation:
    """One run of one trace; `play` may be called once."""

    def __init__(self, trace: Trace, setup: Setup, pool: VirtualPool) -> None:
        """Prepare the requests and workers; the pool is opened by `play`."""
        self._setup = setup
        self._pool = pool
        self._requests = [
            SimRequest(
                id=f"q{number}",
                arrival_s=request.arrival_s,
                input_tokens=request.input_tokens,
                output_tokens=request.output_tokens,
                ids=request.blocks,
                hashes=pool.names(request.blocks),
            )
            for number, request in enumerate(trace.requests)
        ]
        self._workers = [
            SimWorker(
                rank,
                setup.engine,
                blocks=setup.blocks,
                block_tokens=trace.block_tokens,
                policy=setup.policy,
                root=pool.root,
                budget_tokens=setup.budget_tokens,
                seats=setup.seats,
                longest_run_s=setup.longest_run_s,
            )
            for rank in range(setup.workers)
        ]
        self._all = tuple(range(setup.workers))
        self._decode_weight = float(setup.cfg().get("w_decode", PoolConstants().w_decode))
        self._due: list[tuple[float, int]] = []  # when a worker may report again, rank
        self._may_report_s = [0.0] * setup.workers
        self._events: list[tuple[float, int]] = []  # when a worker's step ends, rank
        self._parked: deque[SimRequest] = deque()
        self._parkings = 0
        self._turn = 0

    async def play(self) -> Outcome:
        """Run the trace to its last token."""
        setup, pool = self._setup, self._pool
        await pool.open(setup.workers, setup.blocks, setup.cfg(), reserve=setup.reserve)
        before = await pool.redis.info("cpu")
        begun = time.perf_counter()
        for arrival_s, group in groupby(self._requests, key=lambda request: request.arrival_s):
            await self._until(arrival_s)
            together = list(group)
            for start in range(0, len(together), ROUTE_BATCH):
                await self._arrive(together[start : start + ROUTE_BATCH], arrival_s)
        await self._until(inf)
        await self._pool.flush()
        assert not self._parked, f"{len(self._parked)} requests fit no worker"
        wall_s = time.perf_counter() - begun
        after, memory = await pool.redis.info("cpu"), await pool.redis.info("memory")
        routed = [0] * setup.workers
        for request in self._requests:
            assert request.finished_s >= request.first_token_s >= 0, f"{request.id} never ended"
            routed[request.rank] += 1
        return Outcome(
            requests=tuple(self._requests),
            routed=tuple(routed),
            parked=self._parkings,
            wall_s=wall_s,
            server_cpu_s=sum(
                float(after[name]) - float(before[name])
                for name in ("used_cpu_user", "used_cpu_sys")
            ),
            server_bytes=int(memory["used_memory"]),
        )

    async def _until(self, limit_s: float) -> None:
        """End the steps that end before `limit_s`, in the order of time and rank."""
        events, due = self._events, self._due
        while True:
            step_s = events[0][0] if events else inf
            report_s = due[0][0] if due else inf
            if min(step_s, report_s) >= limit_s:
                return
            if report_s < step_s:
                now_s, rank = heapq.heappop(due)
                await self._report(self._workers[rank], now_s)
                continue
            now_s, rank = heapq.heappop(events)
            worker = self._workers[rank]
            if worker.ends_s != now_s:
                continue  # the run was cut short meanwhile
            worker.end(now_s)
            worker.begin(now_s)
            self._expect(worker)
            await self._changed(worker, now_s)

    async def _changed(self, worker: SimWorker, now_s: float) -> None:
        """Let a worker report, now or as soon as it may again."""
        rank, stale_s = worker.rank, self._setup.stale_s
        if not stale_s:
            await self._report(worker, now_s)
        elif now_s >= self._may_report_s[rank]:
            self._may_report_s[rank] = now_s + stale_s
            heapq.heappush(self._due, (now_s + stale_s, rank))

    async def _report(self, worker: SimWorker, now_s: float) -> None:
        freed = bool(worker.ended)
        await self._pool.report(worker, self._decode_weight)
        if freed and self._parked:
            await self._unpark(now_s)

    async def _arrive(self, requests: Sequence[SimRequest], now_s: float) -> None:
        self._pool.set_clock(now_s)
        self._pool.ask(requests)
        await self._route(requests, now_s, parked=False)

    async def _unpark(self, now_s: float) -> None:
        self._pool.set_clock(now_s)
        batch = [self._parked.popleft() for _ in range(min(ROUTE_BATCH, len(self._parked)))]
        await self._route(batch, now_s, parked=True)

    async def _route(self, requests: Sequence[SimRequest], now_s: float, *, parked: bool) -> None:
        choices = [self._candidates() for _ in requests]
        chosen: dict[int, list[SimRequest]] = {}
        waiting: list[SimRequest] = []
        blind = self._setup.router == "least_load"
        routes = await self._pool.route(requests, choices, parked=parked, blind=blind)
        for request, routed in zip(requests, routes, strict=True):
            if routed.outcome == "parked":
                waiting.append(request)
                self._parkings += not parked
            elif routed.outcome == "routed":
                chosen.setdefault(routed.rank, []).append(request)
            else:
                raise RuntimeError(f"{request.id} was {routed.outcome} {routed.detail}")
        if parked:
            self._parked.extendleft(reversed(waiting))
        else:
            self._parked.extend(waiting)
        for rank in sorted(chosen):
            worker = self._workers[rank]
            idle = worker.ends_s is None
            self._pool.fetch(rank, chosen[rank])
            for request in chosen[rank]:
                worker.take(request, now_s)
            self._expect(worker)
            if idle:
                await self._changed(worker, now_s)

    def _candidates(self) -> tuple[int, ...]:
        if self._setup.router != "round_robin":
            return self._all
        self._turn += 1
        return (self._all[(self._turn - 1) % len(self._all)],)

    def _expect(self, worker: SimWorker) -> None:
        if worker.ends_s is not None:
            heapq.heappush(self._events, (worker.ends_s, worker.rank))


async def simulate(trace: Trace, setup: Setup) -> Outcome:
    """Play a trace on a server of its own, which ends with the run."""
    longest = max(request.input_tokens + request.output_tokens for request in trace.requests)
    with tempfile.TemporaryDirectory(prefix="lmpool-sim-") as folder:
        server = EmbeddedServer(Path(folder) / "s")
        await server.start()
        redis = open_redis(server.url)
        lane = Lane(redis)
        try:
            pool = VirtualPool(
                redis,
                lane,
                block_tokens=trace.block_tokens,
                max_model_len=longest,
                seed=setup.seed,
            )
            return await Simulation(trace, setup, pool).play()
        finally:
            await lane.close()
            await redis.aclose()
            server.stop()
