"""A server that comes back empty: how soon every rank is routable by its cache again.

Each rank is a process of its own that waits with its page table, as workers do, joins when the
server answers and sends a full snapshot. Meanwhile another client pings: no snapshot may hold it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import uvloop
from redis.exceptions import RedisError

from benchmarks.micro.route import BLOCK, Bench, percentile
from lmpoold.protocol.errors import LMPoolError
from lmpoold.protocol.hashing import PrefixHash, chain_hashes
from lmpoold.protocol.views import Counts, PageEntry, RouteCall
from lmpoold.store.connect import open_redis
from lmpoold.store.embedded import EmbeddedServer
from lmpoold.store.lane import Lane
from lmpoold.store.scripts import STAGE_CHUNK_PAGES, PoolStore

CHAIN = 64
LONG_US = 1000
"""Commands that keep the server longer are counted by its slow log."""


def chain(bench: Bench, rank: int) -> tuple[PrefixHash, ...]:
    """The prompt that only `rank` holds."""
    rng = random.Random(rank)
    return chain_hashes([rng.randrange(50_000) for _ in range(CHAIN * BLOCK)], BLOCK, bench.root)


async def play_worker(url: str, rank: int, pages: int) -> None:
    """Wait for the server with a full table, join, send it, and stay until killed."""
    redis = open_redis(url)
    bench = Bench(redis, rank)
    bench.store = PoolStore(redis, bench.store.keys, Lane(redis))  # as workers call
    names = [*chain(bench, rank)]
    names += [PrefixHash(f"{bench.random.getrandbits(128):032x}") for _ in range(pages - CHAIN)]
    table = {name: PageEntry(at, 1, at, bench.root) for at, name in enumerate(names)}
    print("waiting", flush=True)
    while True:
        try:
            identity = {"block_size": str(BLOCK), "weights": "w"}
            facts = {"device": "none", "host": "bench", "pid": "0"}
            epoch = await bench.store.rank_up(
                rank, held="", ttl_ms=60_000, blocks=2 * pages, identity=identity, facts=facts
            )
            await bench.store.swap(rank, epoch, 1, Counts(pages, pages, 0, 0, 0), table)
            break
        except (RedisError, OSError, LMPoolError):
            await asyncio.sleep(0.02)
    await asyncio.sleep(3600)


async def ping(url: str, gaps_s: list[float], stop: asyncio.Event) -> None:
    """Another client of the server: how long each PING took."""
    redis = open_redis(url)
    while not stop.is_set():
        start = time.perf_counter()
        await redis.ping()
        gaps_s.append(time.perf_counter() - start)
        await asyncio.sleep(0.0005)
    await redis.aclose()


async def held(bench: Bench, rank: int, turn: int) -> int:
    """Return how many blocks of its prompt `rank` is routed by."""
    keys = bench.store.keys
    entry: Any = await bench.redis.xadd(keys.ingress, {"prompt": "x"})
    await bench.redis.xreadgroup("sched", "bench", {keys.ingress: ">"}, count=1)
    call = RouteCall(
        id=f"q{rank}-{turn}",
        source=entry.decode(),
        prompt_tokens=CHAIN * BLOCK + 1,
        max_tokens=1,
        hashes=chain(bench, rank),
        client="bench",
        payload='{"sampling":{}}',
        tokens="1",
    )
    (routed,) = await bench.store.route([call])
    return routed.hit if routed.rank == rank else 0


async def measure(ranks: int, pages: int) -> dict[str, Any]:
    """Run once; returns seconds until routable, and what the snapshots cost another client."""
    children: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="lmpool-") as folder:
        server = EmbeddedServer(Path(folder) / "s")
        try:
            for rank in range(ranks):
                argv = [sys.executable, "-m", "benchmarks.scale.restart", "--play", str(rank)]
                argv += ["--url", server.url, "--pages", str(pages)]
                children.append(subprocess.Popen(argv, stdout=subprocess.PIPE))  # noqa: ASYNC220
            for child in children:
                assert child.stdout is not None
                await asyncio.to_thread(child.stdout.readline)
            await server.start()
            began_s = time.perf_counter()
            # The server comes first on a machine with fewer cores than processes.
            with contextlib.suppress(PermissionError):
                assert server.process is not None
                os.setpriority(os.PRIO_PROCESS, server.process.pid, -10)
            redis = open_redis(server.url)
            await redis.config_set("slowlog-log-slower-than", LONG_US)
            bench = Bench(redis, 0)
            await bench.set_up(0)
            gaps_s: list[float] = []
            stop = asyncio.Event()
            pinging = asyncio.create_task(ping(server.url, gaps_s, stop))
            found = [0.0] * ranks
            turn = 0
            while not all(found):
                turn += 1
                for rank in range(ranks):
                    if not found[rank] and await held(bench, rank, turn) == CHAIN:
                        found[rank] = time.perf_counter() - began_s
                await asyncio.sleep(0.01)
            stop.set()
            await pinging
            slow: Any = await redis.slowlog_get(1000)
            spread: Any = (await redis.info("latencystats"))["latency_percentiles_usec_hset"]
            await redis.aclose()
        finally:
            for child in children:
                child.kill()
                child.wait()
            server.stop()
    loads = [one for one in slow if one["command"].startswith(b"FUNCTION")]
    others = [one for one in slow if one not in loads]
    return {
        "ranks": ranks,
        "pages": pages,
        "routable_s": max(found),
        "first_s": min(found),
        "chunk_us": {name: float(value) for name, value in spread.items()},
        "longest_command_ms": _longest_ms(others),
        "commands_over_1_ms": len(others),
        "function_load_ms": _longest_ms(loads),
        "ping_p50_us": percentile(gaps_s, 0.5),
        "ping_p99_us": percentile(gaps_s, 0.99),
        "ping_max_us": percentile(gaps_s, 1.0),
    }


def _longest_ms(commands: list[Any]) -> float:
    """0 if none was long enough for the slow log."""
    return max((int(one["duration"]) for one in commands), default=0) / 1000


@click.command()
@click.option("--ranks", default=2, show_default=True, help="8 for the full size.")
@click.option(
    "--pages", default=10_000, show_default=True, help="A rank; 100000 for the full size."
)
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures here too.")
@click.option("--play", default=-1, hidden=True)
@click.option("--url", default="", hidden=True)
def main(ranks: int, pages: int, out: Path | None, play: int, url: str) -> None:
    """Print how soon ranks are routable by cache after a server has come back empty."""
    if play >= 0:
        uvloop.run(play_worker(url, play, pages))
        return
    found = uvloop.run(measure(ranks, pages))
    click.echo(
        f"{ranks} ranks x {pages:,} pages: the first routable by its cache after "
        f"{found['first_s']:.2f} s, all after {found['routable_s']:.2f} s"
    )
    click.echo(
        f"a chunk of {STAGE_CHUNK_PAGES} pages holds the server for "
        f"{found['chunk_us']['p50']:.0f} us (p99 {found['chunk_us']['p99']:.0f}, "
        f"p99.9 {found['chunk_us']['p99.9']:.0f})"
    )
    click.echo(
        f"meanwhile the server's longest command took {found['longest_command_ms']:.2f} ms "
        f"({found['commands_over_1_ms']} over {LONG_US / 1000:g} ms; loading the functions, once, "
        f"{found['function_load_ms']:.1f} ms); another client's PING p50 "
        f"{found['ping_p50_us']:.0f} us, p99 {found['ping_p99_us']:.0f} us, max "
        f"{found['ping_max_us'] / 1000:.1f} ms"
    )
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
