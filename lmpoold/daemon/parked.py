"""Parked requests: tried again whenever a rank has room."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from redis.asyncio import Redis

from lmpoold.daemon.metrics import RouterMetrics
from lmpoold.daemon.reading import Reader
from lmpoold.protocol.views import RouteCall
from lmpoold.shell.observe import log_request
from lmpoold.shell.steady import steadily
from lmpoold.store.scripts import PoolStore

BATCH = 64
POLL_S = 0.25
"""A backstop: `delta` wakes one lmpoold at once when it reports room."""


class Parked:
    """Retries the parked set: by priority, then the nearest deadline."""

    def __init__(
        self, store: PoolStore, blocking: Redis, reader: Reader, metrics: RouterMetrics
    ) -> None:
        """Wait on `blocking`, a client without read timeout."""
        self._store = store
        self._blocking = blocking
        self._reader = reader
        self._metrics = metrics
        self._behind = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Retry until `stop`."""
        await steadily("parked", self._turn, stop)

    async def _turn(self) -> None:
        await self._blocking.blpop([self._store.keys.wake], timeout=POLL_S)
        routed = True
        while routed:
            tried, routed = await self._retry(0)
        # Whoever stands in front may wait for one rank, and somebody behind have room on another:
        # those are tried too, a batch a turn.
        self._behind = self._behind + BATCH if tried == BATCH else 0
        if self._behind:
            tried, _ = await self._retry(self._behind)
            self._behind = self._behind if tried else 0

    async def _retry(self, first: int) -> tuple[int, bool]:
        """Try a batch from a place on; returns how many were there, and whether any was routed."""
        redis, keys = self._store.redis, self._store.keys
        waiting: list[Any] = await redis.zrange(keys.parked, first, first + BATCH - 1)
        ids = [raw.decode() for raw in waiting]
        if not ids:
            return 0, False
        wanted = [f"{request_id}:{part}" for request_id in ids for part in "pta"]
        fields: list[Any] = await redis.hmget(keys.parked_requests, wanted)
        emitted: list[Any] = await redis.mget([keys.emitted(request_id) for request_id in ids])
        rows = [
            (request_id, *fields[3 * i : 3 * i + 3], emitted[i] or b"")
            for i, request_id in enumerate(ids)
        ]
        calls = await asyncio.to_thread(self._calls, rows)
        if not calls:
            return len(ids), False
        began_s = time.perf_counter()
        routed = await self._store.route(calls)
        self._metrics.routed(calls, routed, time.perf_counter() - began_s)
        for reply in routed:
            if reply.outcome != "parked":  # it was told when it was parked
                log_request(reply.outcome, reply.id, rank=reply.rank, hit_blocks=reply.hit)
        return len(ids), any(one.outcome != "parked" for one in routed)

    def _calls(self, rows: list[tuple[Any, ...]]) -> list[RouteCall]:
        # A row without its fields was taken by another lmpoold between the two reads.
        return [
            self._reader.resume(request_id, payload, tokens, int(attempt), emitted)
            for request_id, payload, tokens, attempt, emitted in rows
            if payload is not None and tokens is not None and attempt is not None
        ]
