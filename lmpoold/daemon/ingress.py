"""Ingress to routes: read a batch, tokenise it off the loop, route it in one call."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Sequence

from lmpoold.daemon.metrics import RouterMetrics
from lmpoold.daemon.reading import Reader, Refused
from lmpoold.protocol.views import RouteCall
from lmpoold.shell.observe import log_request
from lmpoold.shell.steady import LOST, is_lost, steadily
from lmpoold.store.scripts import PoolStore
from lmpoold.store.streams import Entry, Inbox

log = logging.getLogger(__name__)

BATCH = 64
BLOCK_MS = 1000
INLINE_BYTES = 2048
"""A batch with less text than this is read on the loop: the hop to a thread would cost more."""
GROUP_BYTES = 16 * 1024
"""A batch with more text is read in groups, several at once, each routed as soon as it is read."""
GROUPS_AT_ONCE = min(16, max(2, os.cpu_count() or 1))
GROUPS_AHEAD = 4 * GROUPS_AT_ONCE
"""With so many groups waiting, the next batch is left to whichever lmpoold has time for it."""
CLAIM_EVERY_S = 1.0
CLAIM_IDLE_MS = 5000
"""An entry unacknowledged for so long was left by a consumer that died (or is very slow: then the
acknowledgement inside `route` lets only one of the two through)."""


def size_bytes(entry: Entry) -> int:
    """Return how much text an entry holds."""
    return sum(len(value) for value in entry[1].values())


def grouped(entries: Sequence[Entry], limit_bytes: int) -> list[list[Entry]]:
    """Part entries into groups of at most `limit_bytes` of text, or of one entry.

    Args:
        entries: in the order of arrival; those that were deleted have no fields and are left out.
        limit_bytes: above 0.
    Returns: short entries first, so that none waits for a long one; in order otherwise.
    """
    groups: list[list[Entry]] = []
    left = 0
    for entry in sorted((e for e in entries if e[1]), key=lambda e: size_bytes(e) > INLINE_BYTES):
        size = size_bytes(entry)
        if not groups or size > left:
            groups.append([])
            left = limit_bytes
        groups[-1].append(entry)
        left -= size
    return groups


class Ingress:
    """One consumer of the ingress stream."""

    def __init__(
        self, store: PoolStore, inbox: Inbox, reader: Reader, metrics: RouterMetrics
    ) -> None:
        """Read `inbox`, route through `store`."""
        self._store = store
        self._inbox = inbox
        self._reader = reader
        self._metrics = metrics
        self._claimed_at_s = 0.0
        self._turns = asyncio.Semaphore(GROUPS_AT_ONCE)
        self._ahead = asyncio.Semaphore(GROUPS_AHEAD)
        self._reading: asyncio.Task[list[Entry]] | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Consume until `stop`."""
        async with asyncio.TaskGroup() as aside:

            async def turn() -> None:
                await self._turn(aside)

            await steadily("ingress", turn, stop)
            # What the last read brings is ours to serve: nobody else would see it for a while.
            if self._reading is not None:
                with contextlib.suppress(*LOST):
                    await self._sort(await self._reading, aside)

    async def _turn(self, aside: asyncio.TaskGroup) -> None:
        """Serve one batch while the next one is being read."""
        now_s = time.monotonic()
        if now_s - self._claimed_at_s > CLAIM_EVERY_S:
            self._claimed_at_s = now_s
            claimed = await self._inbox.claim(BATCH, CLAIM_IDLE_MS)
            if claimed:
                log.warning("claimed entries of another lmpoold", extra={"entries": len(claimed)})
                await self._sort(claimed, aside)
        reading, self._reading = self._reading or self._read(), None
        entries = await reading
        self._reading = self._read()
        await self._sort(entries, aside)

    def _read(self) -> asyncio.Task[list[Entry]]:
        return asyncio.create_task(self._inbox.read(BATCH, BLOCK_MS), name="ingress read")

    async def _sort(self, entries: Sequence[Entry], aside: asyncio.TaskGroup) -> None:
        """Serve a little text now, much of it in groups on the side, which short ones pass."""
        groups = grouped(entries, GROUP_BYTES)
        if len(groups) == 1 and sum(map(size_bytes, groups[0])) <= GROUP_BYTES:
            await self._serve(groups[0])
            return
        for group in groups:
            await self._ahead.acquire()
            aside.create_task(self._group(group), name=f"group of entry {group[0][0]}")

    async def _group(self, group: Sequence[Entry]) -> None:
        try:
            async with self._turns:
                await self._serve(group)
        except Exception as error:
            if not is_lost(error):
                raise
            # They stay pending and are claimed again when the server is back.
            log.warning("server lost", extra={"loop": "entries aside", "entries": len(group)})
        finally:
            self._ahead.release()

    async def _serve(self, entries: Sequence[Entry]) -> None:
        began_s = time.perf_counter()
        if sum(map(size_bytes, entries)) <= INLINE_BYTES:
            read = self._reader.read(entries)
        else:
            read = await asyncio.to_thread(self._reader.read, entries)
        read_s = time.perf_counter()
        self._metrics.read(read_s - began_s)
        calls = [one for one in read if isinstance(one, RouteCall)]
        if calls:
            routed = await self._store.route(calls)
            self._metrics.routed(calls, routed, time.perf_counter() - read_s)
            for reply in routed:
                log_request(reply.outcome, reply.id, rank=reply.rank, hit_blocks=reply.hit)
        for one in read:
            if isinstance(one, Refused):
                await self._store.finish(
                    one.id, one.source, one.client, one.code, one.message, one.excerpt
                )
                self._metrics.refused(one.code)
                facts = {"request": one.id, "entry": one.source, "code": one.code}
                log.info("request refused", extra=facts)
