"""Blocks stored and removed by the million: the server's resident memory must stay flat.

One rank's page table keeps its size while every delta replaces a part of it, oldest first.
"""

from __future__ import annotations

import json
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import click
import uvloop

from benchmarks.micro.route import Bench
from lmpoold.protocol.hashing import PrefixHash
from lmpoold.protocol.views import Counts, PageEntry
from lmpoold.store.connect import open_redis
from lmpoold.store.embedded import EmbeddedServer

DELTA_PAGES = 1000
WARM = 3
"""How many times the table is replaced before memory is first read: tables grow by doubling."""


async def measure(stores: int, live: int, seed: int) -> dict[str, Any]:
    """Store and remove `stores` pages around `live` that stay; returns resident bytes over time."""
    with tempfile.TemporaryDirectory(prefix="lmpool-") as folder:
        server = EmbeddedServer(Path(folder) / "s")
        await server.start()
        redis = open_redis(server.url)
        bench = Bench(redis, seed)
        held: deque[PrefixHash] = deque()
        version = done = 0
        samples: list[int] = []
        try:
            await redis.config_set("appendonly", "no")
            await bench.set_up(1)
            every = max(DELTA_PAGES, stores // 40 // DELTA_PAGES * DELTA_PAGES)
            while done < stores + WARM * live:
                names = [
                    PrefixHash(f"{bench.random.getrandbits(128):032x}") for _ in range(DELTA_PAGES)
                ]
                puts = {
                    name: PageEntry(version % 1000, version, at, bench.root)
                    for at, name in enumerate(names)
                }
                gone = [held.popleft() for _ in range(len(held) + DELTA_PAGES - live)]
                held.extend(names)
                counts = Counts(live, 0, 0, 0, 0)
                epoch = bench.epochs[0]
                await bench.store.delta(
                    0, epoch, version, version + 1, counts, puts=puts, dels=gone
                )
                version += 1
                done += DELTA_PAGES
                if done >= WARM * live and done % every == 0:
                    samples.append(int((await redis.info("memory"))["used_memory_rss"]))
            pages = await redis.hlen(bench.store.keys.pages(0)) - 1
        finally:
            await redis.aclose()
            server.stop()
    first = samples[0]
    drift = max(abs(one - first) for one in samples) / first
    return {"stored": done, "live": pages, "rss_bytes": samples, "drift": drift}


@click.command()
@click.option("--stores", default=200_000, show_default=True, help="10000000 for the full size.")
@click.option("--live", default=20_000, show_default=True, help="Pages that stay; 100000 in full.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the samples here too.")
def main(stores: int, live: int, seed: int, out: Path | None) -> None:
    """Print how far resident memory strays while pages come and go."""
    found = uvloop.run(measure(stores, live, seed))
    rss = found["rss_bytes"]
    click.echo(
        f"{found['stored']:,} pages stored and removed around {found['live']:,}: resident "
        f"{rss[0] / 2**20:.1f} MiB at first, {min(rss) / 2**20:.1f} to {max(rss) / 2**20:.1f} "
        f"over {len(rss)} samples, {found['drift']:.1%} off at most"
    )
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
