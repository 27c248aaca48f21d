"""Consumer-group reading: the one place that parses XREADGROUP and XAUTOCLAIM replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis.asyncio import Redis

Entry = tuple[str, Mapping[bytes, bytes]]
"""(entry id, fields), undecoded."""


def _entries(raw: Any) -> list[Entry]:
    # A deleted entry that is still pending comes back without fields.
    return [(entry.decode(), fields or {}) for entry, fields in raw or ()]


class Inbox:
    """One consumer of one group on one stream, on a blocking connection of its own."""

    def __init__(self, redis: Redis, stream: str, group: str, consumer: str) -> None:
        """Read `stream` as `consumer` of `group`; `redis` must be opened with `blocking`."""
        self._redis = redis
        self._stream = stream
        self._group = group
        self._consumer = consumer

    async def read(self, count: int, block_ms: int) -> list[Entry]:
        """Return up to `count` new entries, waiting up to `block_ms` for the first."""
        reply: Any = await self._redis.xreadgroup(
            self._group, self._consumer, {self._stream: ">"}, count=count, block=block_ms
        )
        return _entries(reply[0][1]) if reply else []

    async def pending(self, count: int) -> list[Entry]:
        """Return entries this consumer was given and has not acknowledged."""
        reply: Any = await self._redis.xreadgroup(
            self._group, self._consumer, {self._stream: "0"}, count=count
        )
        return _entries(reply[0][1]) if reply else []

    async def claim(self, count: int, min_idle_ms: int) -> list[Entry]:
        """Take over entries that their consumer has left unacknowledged for `min_idle_ms`."""
        reply = await self._redis.xautoclaim(
            self._stream, self._group, self._consumer, min_idle_ms, count=count
        )
        return _entries(reply[1])
