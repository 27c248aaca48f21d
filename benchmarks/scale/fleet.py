"""Many scripted workers with many pages each on one server: route cost and memory a page.

A route names 8 candidates. Its cost is measured with 8 workers and then with all of them, beside a
no-op call, in one run: neither the fleet nor its pages may matter.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import uvloop

from benchmarks.micro.route import Bench, percentile
from lmpoold.store.connect import open_redis
from lmpoold.store.embedded import EmbeddedServer

CANDIDATES = 8
BLOCKS = 64


async def cost(bench: Bench, ranks: int, rounds: int) -> dict[str, float]:
    """Time single routes over the first 8 of `ranks` ranks, between no-ops."""
    hashes = await bench.prompt(BLOCKS, CANDIDATES)
    wanted = tuple(range(CANDIDATES))
    route_s: list[float] = []
    noop_s: list[float] = []
    cpu_s = 0.0
    for _ in range(max(1, rounds // 100)):
        calls = [replace(call, candidates=wanted) for call in await bench.calls(hashes, 100)]
        before = await bench.server_cpu_s()
        for call in calls:
            start = time.perf_counter()
            await bench.redis.execute_command("FCALL", "noop", 1, bench.store.keys.load)
            middle = time.perf_counter()
            await bench.store.call("route", *call.to_args())
            route_s.append(time.perf_counter() - middle)
            noop_s.append(middle - start)
        cpu_s += await bench.server_cpu_s() - before
        await bench.clear(CANDIDATES)
    return {
        "workers": ranks,
        "noop_p50_us": percentile(noop_s, 0.5),
        "route_p50_us": percentile(route_s, 0.5),
        "route_p99_us": percentile(route_s, 0.99),
        "server_cpu_us": cpu_s / len(route_s) * 1e6,
    }


async def measure(workers: int, pages: int, rounds: int, seed: int) -> dict[str, Any]:
    """Run on a fresh server; returns the rows."""
    with tempfile.TemporaryDirectory(prefix="lmpool-") as folder:
        server = EmbeddedServer(Path(folder) / "s")
        await server.start()
        redis = open_redis(server.url)
        bench = Bench(redis, seed)
        try:
            # Pages by the hundred million commands would only fill the log that is not measured.
            await redis.config_set("appendonly", "no")
            await bench.set_up(CANDIDATES)
            small = await cost(bench, CANDIDATES, rounds)
            await bench.set_up(workers)
            before = int((await redis.info("memory"))["used_memory"])
            start = time.perf_counter()
            for rank in range(workers):
                await bench.fill(rank, pages)
            fill_s = time.perf_counter() - start
            used = int((await redis.info("memory"))["used_memory"]) - before
            large = await cost(bench, workers, rounds)
        finally:
            await redis.aclose()
            server.stop()
    return {
        "few": small,
        "all": large,
        "times": large["route_p50_us"] / small["route_p50_us"],
        "pages": workers * pages,
        "bytes_a_page": used / (workers * pages),
        "fill_s": fill_s,
    }


@click.command()
@click.option("--workers", default=100, show_default=True, help="1000 for the full size.")
@click.option("--pages", default=1000, show_default=True, help="A worker; 10000 for the full size.")
@click.option("--rounds", default=1000, show_default=True, help="Routes timed in each case.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the rows here too.")
def main(workers: int, pages: int, rounds: int, seed: int, out: Path | None) -> None:
    """Print what a route with 8 candidates costs among few and among many workers."""
    found = uvloop.run(measure(workers, pages, rounds, seed))
    for row in (found["few"], found["all"]):
        click.echo(
            f"{row['workers']:5,} workers: no-op {row['noop_p50_us']:.0f} us, route "
            f"{row['route_p50_us']:.0f} us (p99 {row['route_p99_us']:.0f}), server CPU of both "
            f"{row['server_cpu_us']:.1f} us"
        )
    click.echo(f"route cost: {found['times']:.2f} times that among {CANDIDATES} workers")
    click.echo(f"{found['pages']:,} pages: {found['bytes_a_page']:.0f} bytes a page")
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
