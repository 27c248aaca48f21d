"""A thousand workers on one server: what it decides in a second, and where that ends.

Scripted ranks and the real functions, in batches as lmpoold makes them: of 64, or of fewer where
one would hold the server for longer than clients wait. Three things cost the server: a route, which
looks at every candidate and notes what it saw; a worker's report of steps; a heartbeat. Each is
timed in CPU of the server, by growing numbers of ranks, with all of them as candidates and with 8.
From these and from what a worker asks of the server follows how many workers fill its one core.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import uvloop

from benchmarks.micro.route import BLOCK, Bench
from benchmarks.paper.result import environment, revision
from lmpoold.protocol.messages import Output
from lmpoold.protocol.views import Counts, PageEntry
from lmpoold.store.connect import open_redis
from lmpoold.store.embedded import EmbeddedServer
from lmpoold.store.said import delta_args, emit_args

BLOCKS = 64
HOLDERS = 8
FEW = 8
BATCH = 64
LOOKS = 8192
"""Most ranks that are looked at in one call: a larger one could outlast the client's patience."""
CLIENTS = 4
TOKENS = 8
COUNTS = Counts(free=900_000, reclaimable=900_000, wait_tokens=0, run_tokens=0, sequences=0)
HEARTBEATS_PER_S = 1.0
REQUESTS_PER_S = 2.0
REPORTS_PER_S = 20.0
"""What a worker asks of the server in the table of limits: steps that end close together are
reported together, so that there are fewer reports than steps."""


async def cpu_us(bench: Bench, times: int, deed: Callable[[], Awaitable[Any]]) -> float:
    """Return the server's CPU microseconds of a deed, of so many in a row."""
    before = await bench.server_cpu_s()
    for _ in range(times):
        await deed()
    return (await bench.server_cpu_s() - before) / times * 1e6


async def route_cost(bench: Bench, ranks: int, batches: int, *, few: bool) -> dict[str, float]:
    """Time batches of routes among all ranks, or among `FEW` of them that are named."""
    hashes = await bench.prompt(BLOCKS, HOLDERS)
    size = BATCH if few else max(1, min(BATCH, LOOKS // ranks))
    wall_s = cpu_s = 0.0
    record_bytes = 0
    for _ in range(batches):
        calls = await bench.calls(hashes, size)
        if few:
            calls = [replace(call, candidates=tuple(range(FEW))) for call in calls]
        before, start = await bench.server_cpu_s(), time.perf_counter()
        await bench.store.route(calls)
        wall_s += time.perf_counter() - start
        cpu_s += await bench.server_cpu_s() - before
        record: Any = await bench.redis.memory_usage(
            bench.store.keys.request(calls[0].id), samples=0
        )
        record_bytes = max(record_bytes, int(record))
        await bench.clear(HOLDERS)
    routes = batches * size
    return {
        "us": cpu_s / routes * 1e6,
        "decisions_per_core_s": routes / cpu_s,
        "decisions_per_s": routes / wall_s,
        "batch": size,
        "record_bytes": record_bytes,
        "batch_of_64_holds_ms": cpu_s / routes * BATCH * 1000,
    }


async def report_cost(bench: Bench, rounds: int) -> float:
    """Time the report of a step: tokens for some clients, one page that came."""
    done = {"version": 0}
    for_all = {f"c{n}": [Output(f"q{n}", i, 7, "x") for i in range(TOKENS)] for n in range(CLIENTS)}

    async def deed() -> None:
        version = done["version"]
        done["version"] += 1
        name = f"{version:032x}"
        said = emit_args(0, bench.epochs[0], version + 1, for_all, ())
        put = {name: PageEntry(version % 10_000, 1, 0, bench.root)}
        args = (0, bench.epochs[0], version, version + 1, COUNTS, (), put, ())
        await bench.store.step(said, delta_args(*args))

    return await cpu_us(bench, rounds, deed)


def breaks_at(sizes: Sequence[int], route_us: Sequence[float], each_us: float) -> float:
    """Return at how many workers one core is full, by proportion between what was measured.

    Args:
        sizes: numbers of workers, growing.
        route_us: of a route at each.
        each_us: what a worker asks of the server in a second, routes apart.
    """

    def load(place: int) -> float:
        return sizes[place] * (REQUESTS_PER_S * route_us[place] + each_us) / 1e6

    for place in range(len(sizes)):
        if load(place) >= 1:
            if not place:
                return sizes[0] / load(0)
            low, high = load(place - 1), load(place)
            share = (1 - low) / (high - low)
            return sizes[place - 1] + share * (sizes[place] - sizes[place - 1])
    return sizes[-1] / load(-1)


async def measure(sizes: Sequence[int], pages: int, batches: int, seed: int) -> dict[str, Any]:
    """Run on a fresh server; returns the rows and what follows from them."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="lmpool-") as folder:
        server = EmbeddedServer(Path(folder) / "s")
        await server.start()
        redis = open_redis(server.url)
        bench = Bench(redis, seed)
        try:
            # The log of millions of scripted pages would only fill a disk.
            await redis.config_set("appendonly", "no")
            for ranks in sizes:
                await bench.set_up(ranks)
                empty = int((await redis.info("memory"))["used_memory"])
                for rank in range(ranks):
                    await bench.fill(rank, pages)
                used = int((await redis.info("memory"))["used_memory"])
                row: dict[str, Any] = {
                    "workers": ranks,
                    "pages": ranks * pages,
                    "memory_mib": used / 2**20,
                    "bytes_a_page": (used - empty) / (ranks * pages),
                    "route_all": await route_cost(bench, ranks, batches, few=False),
                    "route_few": await route_cost(bench, ranks, batches, few=True),
                    "heartbeat_us": await cpu_us(
                        bench,
                        500,
                        lambda: bench.store.heartbeat(1, bench.epochs[1], 3_600_000),
                    ),
                    "report_us": await report_cost(bench, 500),
                }
                rows.append(row)
                _say(row)
        finally:
            await redis.aclose()
            server.stop()
    each_us = REPORTS_PER_S * rows[-1]["report_us"] + HEARTBEATS_PER_S * rows[-1]["heartbeat_us"]
    found = [row["workers"] for row in rows]
    return {
        "rows": rows,
        "worker_asks": {
            "requests_per_s": REQUESTS_PER_S,
            "reports_per_s": REPORTS_PER_S,
            "heartbeats_per_s": HEARTBEATS_PER_S,
            "server_us_per_s_without_routes": each_us,
        },
        "one_core_is_full_at_workers": {
            "all_are_candidates": breaks_at(found, [r["route_all"]["us"] for r in rows], each_us),
            f"{FEW}_candidates": breaks_at(found, [r["route_few"]["us"] for r in rows], each_us),
        },
    }


def _say(row: dict[str, Any]) -> None:
    every, few = row["route_all"], row["route_few"]
    click.echo(
        f"{row['workers']:5,} workers: route among all {every['us']:8.1f} us of server CPU, "
        f"{every['decisions_per_core_s']:8,.0f} decisions a core-second, 64 hold the server "
        f"{every['batch_of_64_holds_ms']:6.1f} ms; among {FEW} {few['us']:5.1f} us, "
        f"{few['decisions_per_core_s']:8,.0f}; a request's record has "
        f"{every['record_bytes']:,.0f} bytes; report {row['report_us']:.0f} us, heartbeat "
        f"{row['heartbeat_us']:.0f} us; {row['memory_mib']:,.0f} MiB, "
        f"{row['bytes_a_page']:.0f} bytes a page"
    )


@click.command()
@click.option("--workers", "sizes", multiple=True, type=int, default=(8, 64, 256, 1024, 2048))
@click.option("--pages", default=1000, show_default=True, help="A worker.")
@click.option("--batches", default=20, show_default=True, help="Of 64 routes, a case.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the rows here too.")
def main(sizes: tuple[int, ...], pages: int, batches: int, seed: int, out: Path | None) -> None:
    """Print what routes, reports and heartbeats cost by number of workers, and where it ends."""
    about = {"revision": revision()[0], "block_tokens": BLOCK, "environment": environment()}
    found = about | uvloop.run(measure(sorted(sizes), pages, batches, seed))
    for name, workers in found["one_core_is_full_at_workers"].items():
        click.echo(
            f"{name.replace('_', ' ')}: one core is full at {workers:,.0f} workers that each take "
            f"{REQUESTS_PER_S:g} requests and send {REPORTS_PER_S:g} reports a second"
        )
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
