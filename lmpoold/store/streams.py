"""Reading streams: the one place that parses XREAD, XREADGROUP and XAUTOCLAIM replies.

And the one entry of a worker's stream that no function writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from redis.asyncio import Redis

from lmpoold.store.lane import Lane, Plain

Entry = tuple[str, Mapping[bytes, bytes]]
"""(entry id, fields), undecoded."""


def _entries(raw: Any) -> list[Entry]:
    return [(entry.decode(), _fields(flat)) for entry, flat in raw or ()]


def _fields(flat: Any) -> Mapping[bytes, bytes]:
    # A deleted entry that is still pending comes back without fields; redis-py pairs them itself.
    if not flat or isinstance(flat, dict):
        return flat or {}
    return dict(zip(flat[::2], flat[1::2], strict=True))


def as_text(raw: Mapping[bytes, bytes]) -> dict[str, str]:
    """Return the fields of an entry or a hash, decoded."""
    return {name.decode(): value.decode() for name, value in raw.items()}


class Tail:
    """One reader of a whole stream, from its first entry on, on a connection of its own."""

    def __init__(self, lane: Lane | Plain, stream: str) -> None:
        """Read `stream` over `lane`, which is for reads that block."""
        self._lane = lane
        self._stream = stream
        self._last: str | bytes = "0-0"

    async def read(self, count: int, block_ms: int) -> list[Mapping[bytes, bytes]]:
        """Return the fields of up to `count` entries after the last ones, waiting for the first.

        A read that failed is read again by the next one.
        """
        reply = await self._lane.execute(
            *("XREAD", "COUNT", count, "BLOCK", block_ms, "STREAMS", self._stream, self._last)
        )
        if not reply:
            return []
        entries = reply[0][1]
        self._last = entries[-1][0]
        return [_fields(flat) for _, flat in entries]


class Inbox:
    """One consumer of one group on one stream, on a connection of its own."""

    def __init__(self, lane: Lane | Plain, stream: str, group: str, consumer: str) -> None:
        """Read `stream` as `consumer` of `group` over `lane`, which is for reads that block."""
        self._lane = lane
        self._stream = stream
        self._group = group
        self._consumer = consumer

    async def read(self, count: int, block_ms: int, done: Sequence[str] = ()) -> list[Entry]:
        """Return up to `count` new entries, waiting up to `block_ms` for the first.

        Args:
            count: at most so many.
            block_ms: how long to wait.
            done: entries to acknowledge and delete before, in the same write: they cost no wait.
        """
        read = self._lane.execute(
            *("XREADGROUP", "GROUP", self._group, self._consumer),
            *("COUNT", count, "BLOCK", block_ms, "STREAMS", self._stream, ">"),
        )
        if done:
            _, _, reply = await asyncio.gather(
                self._lane.execute("XACK", self._stream, self._group, *done),
                self._lane.execute("XDEL", self._stream, *done),
                read,
            )
        else:
            reply = await read
        return _entries(reply[0][1]) if reply else []

    async def pending(self, count: int) -> list[Entry]:
        """Return entries this consumer was given and has not acknowledged."""
        reply = await self._lane.execute(
            *("XREADGROUP", "GROUP", self._group, self._consumer),
            *("COUNT", count, "STREAMS", self._stream, "0"),
        )
        return _entries(reply[0][1]) if reply else []

    async def claim(self, count: int, min_idle_ms: int) -> list[Entry]:
        """Take over entries that their consumer has left unacknowledged for `min_idle_ms`."""
        reply = await self._lane.execute(
            *("XAUTOCLAIM", self._stream, self._group, self._consumer),
            *(min_idle_ms, "0-0", "COUNT", count),
        )
        return _entries(reply[1])


async def ask_to_forget(redis: Redis, stream: str) -> None:
    """Ask the worker that reads `stream` to give up every block that no request holds.

    They are gone from the page table with its next report.
    """
    await redis.xadd(stream, {"kind": "forget"})
