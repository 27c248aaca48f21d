"""The gateway's composition root: keys, a client of the pool, a web server, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import uvicorn
from redis.exceptions import RedisError

from lmpoold.client import PoolClient
from lmpoold.gateway.app import Gateway, build_app
from lmpoold.gateway.asking import Asker
from lmpoold.gateway.door import DoorProtocol
from lmpoold.gateway.keyring import KeyRing
from lmpoold.gateway.looking import Looking
from lmpoold.gateway.metrics import Metrics
from lmpoold.gateway.page import Page
from lmpoold.gateway.served import Served
from lmpoold.protocol.errors import ConfigError
from lmpoold.protocol.keys import Keyspace
from lmpoold.shell.steady import is_lost, settle_heap, stop_on_signals
from lmpoold.store.connect import check_server, describe, open_redis
from lmpoold.store.scripts import PoolStore

log = logging.getLogger(__name__)

BACKLOG = 2048
KEEP_ALIVE_S = 75
"""Longer than the idle time of common proxies, so that they, not we, close first."""
PATIENCE_S = 10.0
"""How long a caller waits for a server that is away before it is told so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """What one gateway needs to know.

    Attributes:
        names: of the pool's model, beside its own.
        drain_s: how long answers under way may go on after SIGTERM.
    """

    redis_url: str
    keys: KeyRing
    pool: str = "default"
    host: str = "127.0.0.1"
    port: int = 8000
    names: tuple[str, ...] = ()
    body_limit_bytes: int = 16 * 1024 * 1024
    drain_s: int = 30


class _Server(uvicorn.Server):
    """A web server that leaves signals to `stop_on_signals`, and so ends with exit code 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


async def serve(config: GatewayConfig) -> None:
    """Run until SIGTERM or SIGINT; then take no more, and end what is under way in `drain_s`."""
    stop = stop_on_signals()
    redis = open_redis(config.redis_url)
    try:
        await _check(redis_url=config.redis_url)
        with _listen(config.host, config.port) as listening:
            async with PoolClient(config.redis_url, config.pool, patience_s=PATIENCE_S) as pool:
                store = PoolStore(redis, Keyspace(config.pool))
                gateway = Gateway(
                    pool=pool,
                    asker=Asker(pool),
                    served=Served(store, config.names),
                    keys=config.keys,
                    metrics=Metrics(),
                    page=Page(Looking(store), config.keys),
                    body_limit_bytes=config.body_limit_bytes,
                )
                await _run(gateway, listening, config.drain_s, stop)
    finally:
        await redis.aclose()
    log.info("stopped")


async def _run(
    gateway: Gateway, listening: socket.socket, drain_s: int, stop: asyncio.Event
) -> None:
    server = _Server(
        uvicorn.Config(
            build_app(gateway),
            http=DoorProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=drain_s,
        )
    )
    settle_heap()
    serving = asyncio.create_task(server.serve([listening]), name="http")
    stopping = asyncio.create_task(stop.wait(), name="signals")
    reading = asyncio.create_task(gateway.served.keep_fresh(), name="served")
    host, port = listening.getsockname()[:2]
    log.info("ready", extra={"host": host, "port": port})
    try:
        await asyncio.wait({serving, stopping, reading}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await serving
        if reading.done():
            await reading  # it does not end by itself: say what broke it
    finally:
        stopping.cancel()
        reading.cancel()


async def _check(redis_url: str) -> None:
    """Refuse an unsafe server; one that is away comes back, and `/ready` says so meanwhile."""
    redis = open_redis(redis_url)
    try:
        await check_server(redis)
    except (RedisError, OSError) as error:
        if not is_lost(error):
            raise ConfigError(f"the Redis server cannot be used: {describe(error)}") from None
        log.warning("server lost", extra={"why": describe(error)})
    finally:
        await redis.aclose()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error}; choose others with --host and --port"
        ) from None
