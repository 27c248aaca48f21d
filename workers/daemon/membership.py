"""A worker's place in the pool: wait for the pool, claim the rank, keep it, give it back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

from redis.exceptions import RedisError

from lmpoold.protocol.errors import ConfigError, Conflict, PoolMismatch, PoolUnknown
from lmpoold.protocol.hashing import domain_root
from lmpoold.protocol.messages import PROTOCOL
from lmpoold.shell.steady import is_lost, pause
from lmpoold.store.connect import describe
from lmpoold.store.scripts import PoolStore
from lmpoold.store.secure import tls_cure
from workers.daemon.heartbeat import TTL_MS
from workers.daemon.settings import WorkerConfig

log = logging.getLogger(__name__)

BOOT_TTL_S = 30


@dataclass(frozen=True, slots=True)
class Pool:
    """What `cfg` says of the pool a worker joins."""

    block_size: int
    max_model_len: int
    dtype: str
    decode_weight: float


async def wait_for_pool(store: PoolStore, config: WorkerConfig, stop: asyncio.Event) -> Pool:
    """Return the pool's description as soon as some lmpoold has written it.

    Raises: ConfigError: none did in time, or no server answered.
    """
    until_s = time.monotonic() + config.start_timeout_s
    why = "no lmpoold has described the pool yet; start lmpoold with the same --pool"
    told = False
    while not stop.is_set():
        try:
            cfg = await store.cfg()
            if "w_decode" in cfg:
                if config.block_size not in (0, int(cfg["block_size"])):
                    raise PoolMismatch(
                        f"block_size: the pool has {cfg['block_size']}, this worker has "
                        f"{config.block_size}; start it with the pool's or use another pool name"
                    )
                return Pool(
                    int(cfg["block_size"]),
                    int(cfg["max_model_len"]),
                    cfg["dtype"],
                    float(cfg["w_decode"]),
                )
        except (RedisError, OSError) as error:
            if cure := tls_cure(error):
                raise ConfigError(cure) from None
            if not is_lost(error):
                raise
            why = f"the Redis server cannot be reached: {describe(error)}; start it first"
        if time.monotonic() > until_s:
            raise ConfigError(why)
        if not told:
            log.info("waiting for the pool", extra={"why": why})
            told = True
        await pause(stop, 0.1)
    raise ConfigError("stopped before the pool was there")


def identity(pool: Pool, *, dtype: str, mark: str, block_bytes: int, digest: str) -> dict[str, str]:
    """Return the `cfg` fields in which this worker must agree with its pool."""
    return {
        "protocol": PROTOCOL,
        "fingerprint": mark,
        "dtype": dtype,
        "block_size": str(pool.block_size),
        "kv_block_bytes": str(block_bytes),
        "domain": domain_root(mark, pool.block_size),
        "weights": digest,
    }


async def claim(
    store: PoolStore,
    config: WorkerConfig,
    *,
    held: str,
    blocks: int,
    identity: Mapping[str, str],
    facts: Mapping[str, str],
    stop: asyncio.Event,
) -> str:
    """Claim the rank; returns the epoch. Waits for the lease of a worker that has just died.

    Raises:
        PoolMismatch: names the field in which worker and pool differ.
        ConfigError: another live worker holds the rank, or no lmpoold describes the pool.
    """
    own = {"device": config.device, "host": socket.gethostname(), "pid": str(os.getpid())}
    began_s = time.monotonic()
    until_s = began_s + 2 * TTL_MS / 1000
    while True:
        try:
            return await store.rank_up(
                config.rank,
                held=held,
                ttl_ms=TTL_MS,
                blocks=blocks,
                identity=identity,
                facts={**own, **facts},
            )
        except Conflict as error:
            if time.monotonic() > until_s or stop.is_set():
                raise ConfigError(str(error)) from None
        except PoolUnknown:  # the server came back empty: an lmpoold will describe the pool again
            if time.monotonic() > began_s + config.start_timeout_s or stop.is_set():
                raise
        except (RedisError, OSError) as error:
            if not is_lost(error) or stop.is_set():
                raise
        await pause(stop, 0.1)


class BootProgress:
    """Tells the pool how far loading is, from the thread that loads; failures are ignored."""

    def __init__(self, store: PoolStore, rank: int) -> None:
        """Report for `rank`; call from the thread that runs the event loop."""
        self._store = store
        self._key = store.keys.boot(rank)
        self._loop = asyncio.get_running_loop()
        self._writes: set[asyncio.Task[None]] = set()

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Note that `done` of `total` parts of a stage are there."""
        self._loop.call_soon_threadsafe(self._write, f"{stage} {done} {total}")

    def _write(self, text: str) -> None:
        task = self._loop.create_task(self._set(text), name="boot progress")
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _set(self, text: str) -> None:
        try:
            await self._store.redis.set(self._key, text, ex=BOOT_TTL_S)
        except (RedisError, OSError) as error:
            log.debug("boot progress lost", extra={"why": describe(error)})

    async def done(self) -> None:
        """Remove the note."""
        await asyncio.gather(*self._writes)
        with contextlib.suppress(RedisError, OSError):
            await self._store.redis.unlink(self._key)
