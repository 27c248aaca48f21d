"""Takes the picture of the server that `leftovers` judges."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from lmpoold.protocol.keys import Keyspace
from lmpoold.store.scripts import PoolStore
from tests.chaos.leftovers import Picture

KEYS = Keyspace()
SNAPSHOT_S = 5.0


async def take_picture(redis: Redis, ranks: Sequence[int]) -> Picture:
    """Look at everything; makes every worker send its page table anew and compares the two."""
    before = {rank: await _pages(redis, rank) for rank in ranks}
    await asyncio.gather(*(_snapshot(redis, rank) for rank in ranks))
    after = {rank: await _pages(redis, rank) for rank in ranks}
    streams, consumers = {}, {}
    for name in (KEYS.ingress, *(KEYS.worker(rank) for rank in ranks)):
        groups: Any = await redis.xinfo_groups(name)
        short = name.removeprefix(KEYS.prefix)
        pending = sum(group["pending"] for group in groups)
        streams[short] = (int(await redis.xlen(name)), pending)
        consumers[short] = sum(group["consumers"] for group in groups)
    ttl_ms = {key.decode(): int(await redis.pttl(key)) async for key in redis.scan_iter(count=1000)}
    libraries: Any = await redis.function_list()
    return Picture(
        ttl_ms={key: ttl for key, ttl in ttl_ms.items() if ttl != -2},
        prefix=KEYS.prefix,
        rows=await PoolStore(redis, KEYS).ranks(),
        streams=streams,
        consumers=consumers,
        parked=int(await redis.zcard(KEYS.parked)) + int(await redis.hlen(KEYS.parked_requests)),
        journals=sum(key.startswith(KEYS.emitted("")) for key in ttl_ms),
        functions=[str(library[1].decode()) for library in libraries],
        pages_before=before,
        pages_after=after,
    )


async def _pages(redis: Redis, rank: int) -> dict[str, str]:
    table: Any = await redis.hgetall(KEYS.pages(rank))
    return {name.decode(): entry.decode() for name, entry in table.items() if name != b"_"}


async def _snapshot(redis: Redis, rank: int) -> None:
    """Pretend that reports were lost: the next one is a gap, and a whole snapshot follows."""
    row: Any = await redis.hget(KEYS.load, str(rank))
    if row is None or not row.startswith(b"up "):
        return
    *counts, version, epoch = row.decode().split()
    lost = int(version) + 1000
    await redis.hset(KEYS.load, str(rank), " ".join([*counts, str(lost), epoch]))
    await redis.xadd(KEYS.worker(rank), {"kind": "cancel", "id": "nobody"})
    async with asyncio.timeout(SNAPSHOT_S):
        while int((await redis.hget(KEYS.load, str(rank))).split()[8]) <= lost:
            await asyncio.sleep(0.02)
    async with asyncio.timeout(SNAPSHOT_S):
        while await redis.xlen(KEYS.worker(rank)):
            await asyncio.sleep(0.02)
