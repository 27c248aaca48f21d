"""The composition root of lmpoold: read the model's text half, set the pool up, run the loops."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry
from redis.exceptions import RedisError

from lmpoold.core.admission import Limits
from lmpoold.daemon.ingress import Ingress
from lmpoold.daemon.metrics import PlannerMetrics, RouterMetrics
from lmpoold.daemon.parked import Parked
from lmpoold.daemon.reading import Reader
from lmpoold.daemon.sweep import Sweeper
from lmpoold.protocol.config import PoolConstants, PoolIdentity
from lmpoold.protocol.errors import ConfigError
from lmpoold.protocol.hashing import domain_root
from lmpoold.protocol.keys import INGRESS_GROUP, Keyspace
from lmpoold.protocol.messages import PROTOCOL
from lmpoold.shell.metrics import show_metrics
from lmpoold.shell.steady import persist, settle_heap, stop_on_signals
from lmpoold.store.connect import check_server, describe, open_redis
from lmpoold.store.lane import Lane
from lmpoold.store.scripts import PoolStore
from lmpoold.store.streams import Inbox
from lmpoold.text.fingerprint import fingerprint, kv_block_bytes
from lmpoold.text.folder import resolve
from lmpoold.text.precision import choose_dtype, dtype_bytes
from lmpoold.text.tokenizer import TextModel

log = logging.getLogger(__name__)

START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """What one lmpoold needs to know.

    Attributes:
        redis_url: unix://, redis:// or rediss://.
        block_size: tokens a KV block, 16 to 256 and a multiple of 16.
        max_model_len: 0 takes the model's own.
        dtype: of the K/V; `auto` takes what the model's config names.
        metrics_port: where Prometheus may ask, 0 for a free port; None shows nothing.
    """

    redis_url: str
    cache: Path
    pool: str = "default"
    model: str = "demo"
    block_size: int = 16
    max_model_len: int = 0
    dtype: str = "auto"
    constants: PoolConstants = field(default_factory=PoolConstants)
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None

    def __post_init__(self) -> None:
        if not (16 <= self.block_size <= 256 and self.block_size % 16 == 0):
            raise ConfigError(
                f"block size must be a multiple of 16 from 16 to 256, got {self.block_size}"
            )
        if self.max_model_len < 0:
            raise ConfigError(f"max model length must not be negative, got {self.max_model_len}")


async def serve(config: DaemonConfig) -> None:
    """Run until SIGTERM or SIGINT, or until one loop fails and takes the rest with it."""
    stop = stop_on_signals()
    keys = Keyspace(config.pool)
    folder = resolve(config.model, cache=config.cache)
    text = await asyncio.to_thread(TextModel.load, folder)
    mark = await asyncio.to_thread(fingerprint, folder)
    longest = config.max_model_len or text.max_model_len
    if longest > text.max_model_len:
        raise ConfigError(
            f"max model length {longest} exceeds the model's own {text.max_model_len}"
        )
    dtype = choose_dtype(config.dtype, folder.config())
    identity = PoolIdentity(
        protocol=PROTOCOL,
        model=config.model,
        fingerprint=mark,
        dtype=dtype,
        block_size=config.block_size,
        kv_block_bytes=kv_block_bytes(folder.config(), config.block_size, dtype_bytes(dtype)),
        domain=domain_root(mark, config.block_size),
        max_model_len=longest,
    )
    reader = Reader(
        text,
        model=config.model,
        fingerprint=mark,
        block_size=config.block_size,
        limits=Limits(longest, text.vocab_size),
        ids_fit=text.ids_fit,
    )
    registry = CollectorRegistry()
    router = RouterMetrics(registry, config.block_size)
    planner = PlannerMetrics(registry)
    redis = open_redis(config.redis_url, pool=config.pool)
    blocking = open_redis(config.redis_url, pool=config.pool, blocking=True)
    calls, reads = Lane(redis), Lane(blocking, blocking=True)
    store = PoolStore(redis, keys, calls)
    name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    inbox = Inbox(reads, keys.ingress, INGRESS_GROUP, name)
    scraped = show_metrics(registry, config.metrics_host, config.metrics_port)
    try:
        version = await _set_up(store, identity, config.constants, stop)
        settle_heap()
        async with asyncio.TaskGroup() as loops:
            loops.create_task(Ingress(store, inbox, reader, router).run(stop), name="ingress")
            loops.create_task(Parked(store, blocking, reader, router).run(stop), name="parked")
            sweeper = Sweeper(store, name, planner, watch=scraped is not None)
            loops.create_task(sweeper.run(stop), name="sweep")
            log.info("ready", extra={"server": version, "pool": config.pool, "consumer": name})
        await _leave(store, name)
    finally:
        await calls.close()
        await reads.close()
        await redis.aclose()
        await blocking.aclose()
        if scraped is not None:
            scraped.close()


async def _leave(store: PoolStore, name: str) -> None:
    """Leave the group; without a server the reaper forgets the consumer in a while."""
    redis, stream = store.redis, store.keys.ingress
    try:
        if not await redis.xpending_range(stream, INGRESS_GROUP, "-", "+", 1, consumername=name):
            await redis.xgroup_delconsumer(stream, INGRESS_GROUP, name)
    except (RedisError, OSError) as error:
        log.warning("left without a word", extra={"why": describe(error)})
        return
    log.info("stopped", extra={"consumer": name})


async def _set_up(
    store: PoolStore, identity: PoolIdentity, constants: PoolConstants, stop: asyncio.Event
) -> str:
    """Load the library and describe the pool, waiting a while for a server that is starting."""

    async def describe_pool() -> str:
        version = await check_server(store.redis)
        await store.load_library()
        await store.configure(identity, constants)
        return version

    return await persist(describe_pool, stop, within_s=START_TIMEOUT_S)
