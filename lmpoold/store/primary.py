"""Connections that ask where the primary is, each time they connect: Sentinel and Cluster URLs.

A pool lies on one node: a sentinel's service, or the cluster node that has the slot of the pool's
hash tag. So one address is enough, and whoever loses a connection finds the new primary by opening
the next one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.connection import Connection, ConnectionPool, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import AskError, ReadOnlyError, RedisError
from redis.exceptions import ConnectionError as ServerLost

from lmpoold.protocol.keys import Keyspace
from lmpoold.store.cancelling import cancellable

URL = re.compile(
    r"(?P<scheme>rediss?)\+(?P<kind>sentinel|cluster)://(?P<user>[^@/]*@)?(?P<hosts>[^/?@]+)"
    r"(?:/(?P<service>[^/?]*))?(?:/(?P<db>\d+))?(?P<query>\?.*)?"
)
HOST = re.compile(r"(?P<host>\[[^\]]+\]|[^:\[\]]+)(?::(?P<port>\d{1,5}))?")
PORTS = {"sentinel": 26379, "cluster": 6379}
MOVED = (ReadOnlyError, AskError)
"""Replies of a node that is not the pool's primary any more (MovedError is an AskError)."""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Whom to ask for the primary, and for which.

    Attributes:
        asked: (host, port) of sentinels or cluster nodes.
        service: the sentinels' name of it; "" for a cluster.
        slot: the pool's hash slot in a cluster.
        options: how the ones asked are connected to.
    """

    asked: tuple[tuple[str, int], ...]
    service: str
    slot: int
    options: Mapping[str, Any]

    async def find(self) -> tuple[str, int]:
        """Return the primary's address.

        Raises: ConnectionError: none of those asked knows one; the message says what each said.
        """
        said = []
        for host, port in self.asked:
            link = cancellable(
                Redis(host=host, port=port, retry=Retry(NoBackoff(), 0), **self.options)
            )
            try:
                if found := await self._ask(link, host):
                    return found
                said.append(f"{host}:{port}: knows none")
            except (RedisError, OSError) as error:
                said.append(f"{host}:{port}: {error}")
            finally:
                await link.aclose()
        what = f"primary {self.service!r}" if self.service else f"owner of slot {self.slot}"
        raise ServerLost(f"nobody knows the {what}: {'; '.join(said)}")

    async def _ask(self, link: Redis, host: str) -> tuple[str, int] | None:
        if self.service:
            words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
            found: Any = await link.execute_command(*words)  # type: ignore[no-untyped-call]
            return (_text(found[0]), int(found[1])) if found else None
        # As two words: of "CLUSTER SLOTS" redis-py would make something else of the reply.
        shards: Any = await link.execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
        for first, last, primary, *_ in shards:
            if int(first) <= self.slot <= int(last):
                # A node that does not know its own address leaves it out: the one we reached it by.
                return _text(primary[0] or b"") or host, int(primary[1])
        return None


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


class PrimaryConnection(Connection):
    """A connection to wherever the primary is when it connects."""

    def __init__(self, *, whereabouts: Whereabouts, **options: Any) -> None:
        """Take `whereabouts`, and what redis-py's connection takes."""
        super().__init__(**options)
        self._whereabouts = whereabouts

    async def _connect(self) -> None:
        self.host, self.port = await self._whereabouts.find()
        await super()._connect()  # type: ignore[no-untyped-call]

    async def read_response(self, *args: Any, **options: Any) -> Any:
        """Read a reply; one that says the primary is elsewhere ends the connection."""
        try:
            return await super().read_response(*args, **options)
        except MOVED as error:
            await self.disconnect(nowait=True)
            raise ServerLost(f"the pool's primary is elsewhere by now: {error}") from None


class PrimarySSLConnection(PrimaryConnection, SSLConnection):
    """The same over TLS."""


def open_primary(url: str, pool: str, **options: Any) -> Redis | None:
    """Return a client for a Sentinel or Cluster URL, None if `url` is neither.

    Args:
        url: `redis+sentinel://[user:password@]host[:port],.../service[/db]` or
            `redis+cluster://[user:password@]host[:port],...`; `rediss+...` for TLS; queries as
            redis-py has them, and `sentinel_username`, `sentinel_password` for the sentinels.
        pool: whose keys a cluster node must have.
        options: for each connection.
    Raises: ValueError: it begins like one and cannot be read.
    """
    if not re.match(r"rediss?\+", url):
        return None
    parts = URL.fullmatch(url)
    hosts = [HOST.fullmatch(one) for one in parts["hosts"].split(",")] if parts else []
    if parts is None or not all(hosts):
        raise ValueError("not redis+sentinel://h1:p1,h2:p2/service or redis+cluster://h1:p1,h2:p2")
    sentinel = parts["kind"] == "sentinel"
    service = parts["service"] or ""
    if sentinel != bool(service):
        raise ValueError(
            "a Sentinel URL ends in /service" if sentinel else "a Cluster URL has nothing behind /"
        )
    database = f"/{parts['db']}" if parts["db"] else ""
    plain = f"{parts['scheme']}://{parts['user'] or ''}nowhere{database}{parts['query'] or ''}"
    given: dict[str, Any] = dict(parse_url(plain))
    asked_as = {
        "username": given.pop("sentinel_username", None),
        "password": given.pop("sentinel_password", None),
    }
    secure = given.pop("connection_class", None) is not None
    tls = {name: value for name, value in given.items() if name.startswith("ssl")}
    if secure:
        tls["ssl"] = True
    if not sentinel:
        asked_as = {name: given.get(name) for name in asked_as}
    timeouts = {name: options[name] for name in ("socket_timeout", "socket_connect_timeout")}
    timeouts["socket_timeout"] = timeouts["socket_connect_timeout"]
    whereabouts = Whereabouts(
        asked=tuple(
            (one["host"].strip("[]"), _port(one["port"], parts["kind"])) for one in hosts if one
        ),
        service=service,
        slot=key_slot(Keyspace(pool).load.encode()),
        options=tls | asked_as | timeouts | {"protocol": 2},
    )
    del given["host"]
    kind = PrimarySSLConnection if secure else PrimaryConnection
    return Redis.from_pool(
        ConnectionPool(connection_class=kind, whereabouts=whereabouts, **given | options)
    )


def _port(text: str | None, kind: str) -> int:
    port = int(text or PORTS[kind])
    if not 0 < port < 65536:
        raise ValueError(f"port {port} is out of range")
    return port
