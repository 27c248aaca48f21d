"""The composition root of a worker: load, claim the rank, run the loops, give the rank back."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from redis.exceptions import RedisError

from lmpoold.protocol.config import PoolConstants
from lmpoold.protocol.errors import ConfigError, RankUnknown, Stale
from lmpoold.protocol.hashing import domain_root
from lmpoold.protocol.keys import Keyspace
from lmpoold.shell.metrics import show_metrics
from lmpoold.shell.steady import pause, persist, settle_heap, steadily, stop_on_signals
from lmpoold.store.connect import check_server, open_redis
from lmpoold.store.lane import Lane
from lmpoold.store.plans import PlanStore
from lmpoold.store.scripts import PoolStore
from lmpoold.store.streams import Inbox
from workers.core.blocks import BlockPool
from workers.core.schedule import Scheduler
from workers.daemon.answers import Vocabulary
from workers.daemon.commands import Handover, Reset, Stop
from workers.daemon.engine import Engine, Plant
from workers.daemon.foreground import Foreground
from workers.daemon.heartbeat import Heartbeat
from workers.daemon.inbox import WorkerInbox
from workers.daemon.membership import BootProgress, Pool, claim, wait_for_pool
from workers.daemon.metrics import WorkerMetrics
from workers.daemon.pacing import FactsReport
from workers.daemon.progress import Progress
from workers.daemon.reporter import EngineFailed, Reporter
from workers.daemon.settings import WorkerConfig
from workers.daemon.transfers import Transfers
from workers.transport.port import Transport

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 5.0
RECOVER_S = 5.0
"""How much longer than engine_stall_ms a step may take before the process ends, for a supervisor to
start another one."""
SWITCH_INTERVAL_S = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """Everything a worker computes with, once it is loaded."""

    plant: Plant
    vocabulary: Vocabulary
    stop_ids: frozenset[int]
    fingerprint: str
    identity: dict[str, str]
    blocks: int
    transport: Transport | None = None
    """How blocks go to other workers and come from them; None where they stay."""
    place: Mapping[str, str] = field(default_factory=dict)
    """Its GPU and that one's neighbours, as `place_of` names them; empty where not known."""


Build = Callable[[Pool, Callable[[str, int, int], None]], Equipment]
"""Loads the equipment for a pool, telling its progress. Runs in a thread."""


async def serve(config: WorkerConfig, build: Build) -> None:
    """Run until SIGTERM or SIGINT; what is unfinished then goes to other workers.

    Raises: ConfigError: the worker cannot join the pool as it is set up.
    """
    # Two busy threads share the interpreter: at the default of 5 ms the event loop would get it too
    # late, and every token with it.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    stop = stop_on_signals()
    redis = open_redis(config.redis_url, pool=config.pool)
    blocking = open_redis(config.redis_url, pool=config.pool, blocking=True)
    calls, reads = Lane(redis), Lane(blocking, blocking=True)
    store = PoolStore(redis, Keyspace(config.pool), calls)
    try:
        pool = await wait_for_pool(store, config, stop)
        wait_s = config.start_timeout_s
        await persist(lambda: check_server(redis), stop, within_s=wait_s)
        boot = BootProgress(store, config.rank)
        began_s = time.monotonic()
        equipment = await asyncio.to_thread(build, pool, boot)
        log.info("loaded", extra={"model": config.model, "took_s": time.monotonic() - began_s})
        registry = CollectorRegistry()
        metrics = WorkerMetrics(registry)
        scraped = show_metrics(registry, config.metrics_host, config.metrics_port)
        try:
            await _Worker(config, store, reads, pool, equipment, metrics, stop).run(boot)
        finally:
            if scraped is not None:
                scraped.close()
    finally:
        await calls.close()
        await reads.close()
        await redis.aclose()
        await blocking.aclose()


class _Worker:
    """One worker's life between loading and leaving."""

    def __init__(
        self,
        config: WorkerConfig,
        store: PoolStore,
        reads: Lane,
        pool: Pool,
        equipment: Equipment,
        metrics: WorkerMetrics,
        stop: asyncio.Event,
    ) -> None:
        self._config = config
        self._store = store
        self._reads = reads
        self._pool = pool
        self._equipment = equipment
        self._metrics = metrics
        self._stop = stop
        self._reporter = Reporter(store, rank=config.rank)
        self._transfers: Transfers | None = None

    async def run(self, boot: BootProgress) -> None:
        engine = await self._engine()
        transport = self._equipment.transport
        if transport is not None:
            await transport.start()
            self._transfers = Transfers(
                PlanStore(self._store),
                transport,
                rank=self._config.rank,
                block_size=self._pool.block_size,
                tell=engine.tell,
            )
        epoch = await self._claim("")
        await boot.done()
        settle_heap()
        engine.start()
        failed = False
        try:
            while not self._stop.is_set():
                self._reporter.restart(epoch)
                engine.tell(Reset(epoch, forget=True))
                log.info("ready", extra={"rank": self._config.rank, "epoch": epoch})
                fenced = await self._epoch(engine, epoch)
                if not fenced:
                    break
                log.warning("fenced; joining again", extra={"rank": self._config.rank})
                engine.tell(Reset("", forget=True))
                await self._until_it_moves(engine)
                if self._stop.is_set():
                    break
                epoch = await self._claim(epoch)
        except EngineFailed:
            failed = True
            raise
        finally:
            if transport is not None:
                await transport.stop()
            engine.tell(Stop())
            if not await asyncio.to_thread(engine.join, STOP_TIMEOUT_S):
                log.warning("the engine is still in a step; leaving it")
            await self._leave(epoch, failed=failed)

    async def _engine(self) -> Engine:
        wait_s = self._config.start_timeout_s
        seconds, microseconds = await persist(self._store.redis.time, self._stop, within_s=wait_s)
        offset_s = seconds + microseconds / 1e6 - time.time()
        equipment, size = self._equipment, self._pool.block_size
        try:
            scheduler = Scheduler(
                BlockPool(equipment.blocks, size),
                max_num_seqs=self._config.max_num_seqs,
                max_batched_tokens=self._config.max_batched_tokens,
                max_model_len=self._pool.max_model_len,
                stop_ids=equipment.stop_ids,
                lookahead=self._config.lookahead or 0,
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None
        return Engine(
            scheduler,
            equipment.plant,
            vocabulary=equipment.vocabulary,
            root=lambda salt: domain_root(equipment.fingerprint, size, salt),
            decode_weight=self._pool.decode_weight,
            clock_offset_s=offset_s,
            report=self._reporter.post,
            metrics=self._metrics,
            check=self._config.check,
        )

    async def _until_it_moves(self, engine: Engine) -> None:
        """Wait until the engine has taken in what it was told, or the worker shall stop.

        Who claimed the rank before would only be given requests again.

        Raises: EngineFailed: the engine hangs, or its thread is gone.
        """
        moved = asyncio.Event()
        loop = asyncio.get_running_loop()

        def done(_: object) -> None:
            loop.call_soon_threadsafe(moved.set)

        engine.tell(Handover(lambda *_: None, done))
        most_s = await self._stall_s() + RECOVER_S
        while not moved.is_set() and not self._stop.is_set():
            stuck_s = engine.stuck_s(time.monotonic())
            if stuck_s > most_s or not engine.alive:
                log.error("the engine finished no step; ending", extra={"for_s": round(stuck_s)})
                raise EngineFailed("the engine hangs, or is gone") from engine.failure
            await pause(self._stop, 0.05)

    async def _stall_s(self) -> float:
        """Return `engine_stall_ms` as it is set now, or as it comes when no server can tell."""
        try:
            cfg = await self._store.cfg()
        except (RedisError, OSError):
            cfg = {}
        return float(cfg.get("engine_stall_ms", PoolConstants().engine_stall_ms)) / 1000

    async def _claim(self, held: str) -> str:
        transport, facts = self._equipment.transport, {}
        if transport is not None:
            facts = {
                "way": transport.kind,
                "offer": transport.offer(),
                **self._equipment.place,
            }
        return await claim(
            self._store,
            self._config,
            held=held,
            blocks=self._equipment.blocks,
            identity=self._equipment.identity,
            facts=facts,
            stop=self._stop,
        )

    async def _epoch(self, engine: Engine, epoch: str) -> bool:
        """Serve one epoch; True when the rank was fenced, False when asked to stop."""
        fenced = asyncio.Event()
        over = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_fenced() -> None:
            loop.call_soon_threadsafe(fenced.set)

        beat = Heartbeat(
            self._config.redis_url,
            self._store.keys,
            self._config.rank,
            epoch,
            version=lambda: self._reporter.version,
            stuck_ms=Progress(engine.stuck_s).stuck_ms,
            on_weight=engine.weigh_decodes,
            on_fenced=on_fenced,
        )
        keys, rank = self._store.keys, self._config.rank
        inbox = WorkerInbox(
            self._store,
            Inbox(self._reads, keys.worker(rank), epoch, epoch),
            engine.tell,
            rank=rank,
            epoch=epoch,
            transfers=self._transfers,
        )
        beat.start()
        loops = [
            asyncio.create_task(steadily("inbox", inbox.turn, over), name="inbox"),
            asyncio.create_task(
                steadily("reports", lambda: self._reporter.turn(engine), over),
                name="reports",
            ),
            asyncio.create_task(fenced.wait(), name="fenced"),
            asyncio.create_task(self._stop.wait(), name="stop"),
        ]
        if self._transfers is not None:
            self._transfers.begin(epoch)
            report = FactsReport(self._store, rank, engine.figures)
            foreground = Foreground(PlanStore(self._store), engine, rank, epoch)
            loops += [
                asyncio.create_task(self._transfers.run(), name="transfers"),
                asyncio.create_task(steadily("foreground", foreground.turn, over), name="room"),
                asyncio.create_task(steadily("pace", report.turn, over), name="pace"),
            ]
        try:
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if isinstance(error, (Stale, RankUnknown)):
                    return True
                if error is not None:
                    raise error
            return fenced.is_set()
        finally:
            over.set()
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            if self._transfers is not None:
                await self._transfers.end()
            await asyncio.to_thread(beat.stop)

    async def _leave(self, epoch: str, *, failed: bool) -> None:
        """Give the rank back; without a server the lease lapses and the reaper does it."""
        try:
            await self._store.rank_down(self._config.rank, epoch, failed=failed)
        except (RedisError, OSError, Stale, RankUnknown) as error:
            log.warning("left without a word", extra={"why": str(error)})
            return
        log.info("stopped", extra={"rank": self._config.rank, "server": "told"})
