"""Connections to the server, and the refusal of servers that would lose pool state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError
from redis.exceptions import ConnectionError as ServerLost

from lmpoold.protocol.errors import ConfigError, UnsafeServer
from lmpoold.protocol.keys import DEFAULT_POOL
from lmpoold.store.cancelling import cancellable
from lmpoold.store.primary import open_primary
from lmpoold.store.secure import check_tls_files, tls_cure

MIN_REDIS = (7, 0)
MIN_VALKEY = (7, 2)
CALL_TIMEOUT_S = 5.0
"""How long a call that does not block on purpose may take before the connection counts as dead."""
LONGEST_BLOCK_S = 1.0
"""How long callers of a `blocking` client may ask the server to wait. A path that swallows packets
closes no connection: without a time limit behind it such a read would wait for ever."""


def open_redis(
    url: str,
    *,
    pool: str = DEFAULT_POOL,
    blocking: bool = False,
    unbounded: bool = False,
    timeout_s: float = CALL_TIMEOUT_S,
    max_connections: int = 256,
) -> Redis:
    """Return a client for the server that a URL names; nothing is sent yet.

    Nothing is retried by the client itself: a lost reply to XADD must not become a second entry.

    Args:
        url: `unix://`, `redis://` or `rediss://` as redis-py reads them, with `ssl_ca_certs` and
            the like as query; Sentinel and Cluster URLs as `open_primary` does.
        pool: whose keys a cluster node must have.
        blocking: for callers of XREAD, BLPOP and the like that block `LONGEST_BLOCK_S` at most.
        unbounded: for callers that may wait for ever: no read timeout at all.
        timeout_s: for a call that does not block, and for connecting.
        max_connections: of the client.
    Raises: ConfigError: the URL, or a file that it names, cannot be read.
    """
    options: dict[str, Any] = {
        "socket_timeout": None if unbounded else timeout_s + (LONGEST_BLOCK_S if blocking else 0.0),
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "max_connections": max_connections,
        "protocol": 2,
    }
    try:
        redis = cancellable(open_primary(url, pool, **options) or Redis.from_url(url, **options))
        redis.connection_pool.make_connection()  # type: ignore[no-untyped-call]  # knows the query
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"cannot read the Redis URL: {error}; give unix:///path/to/socket, "
            "redis://host:6379/0, rediss://user:password@host:6380/0, "
            "redis+sentinel://host:26379,host:26379/service or redis+cluster://host:6379,host:6379"
        ) from None
    check_tls_files(redis.connection_pool.connection_kwargs)
    return redis


def judge_server(server: Mapping[str, Any]) -> str:
    """Return the server's name and version if a pool may live there.

    Args:
        server: INFO's fields.
    Raises: UnsafeServer: says which setting to change.
    """
    valkey = server.get("valkey_version")
    name, text = ("Valkey", valkey) if valkey else ("Redis", server.get("redis_version", "0"))
    version = tuple(int(part) for part in str(text).split(".")[:2])
    least = MIN_VALKEY if valkey else MIN_REDIS
    if version < least:
        raise UnsafeServer(
            f"{name} {text} lacks FUNCTION libraries as LMPool uses them; "
            f"run {name} {least[0]}.{least[1]} or later"
        )
    policy, limit = server.get("maxmemory_policy", "noeviction"), int(server.get("maxmemory", 0))
    if limit and policy != "noeviction":
        raise UnsafeServer(
            f"maxmemory-policy is {policy}: the server would drop the page table without a word; "
            "run CONFIG SET maxmemory-policy noeviction"
        )
    return f"{name} {text}"


async def check_server(redis: Redis) -> str:
    """Return the server's name and version, having checked that it is safe.

    Raises:
        UnsafeServer: a setting would lose pool state; the message says which.
        ConfigError: the server refused the credentials, or this side its certificate.
        BusyLoadingError: it is reading its data in, and has nothing to say yet: try again.
    """
    try:
        server = await redis.info("everything")
    except AuthenticationError as error:
        raise ConfigError(f"the server refused the credentials in the Redis URL: {error}") from None
    except ServerLost as error:
        if cure := tls_cure(error):
            raise ConfigError(cure) from None
        raise
    if int(server.get("loading", 0)):
        raise BusyLoadingError("the server is still loading its data")
    return judge_server(server)


def describe(error: RedisError | OSError) -> str:
    """Return one line on why the server was not reached, without credentials."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
