"""A server that comes back empty: how soon every rank is routable by its cache again.

Each rank is a process of its own that waits with its page table, as workers do, joins when the
server answers and sends a full snapshot. Meanwhile another client pings: no snapshot may hold it.
The server and that client go before the workers, as on a machine with cores for all of them.
On a machine that does other work too, run it several times and take the least.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import psutil
import uvloop
from redis.asyncio import Redis
from redis.exceptions import RedisError

from benchmarks.micro.route import BLOCK, Bench
from benchmarks.scale.machine import first_of_all, host_took_s, kept_waiting_ms
from lmpoold.protocol.errors import LMPoolError
from lmpoold.protocol.hashing import PrefixHash, chain_hashes
from lmpoold.protocol.views import Counts, RouteCall
from lmpoold.shell.steady import settle_heap
from lmpoold.store.connect import open_redis
from lmpoold.store.embedded import EmbeddedServer
from lmpoold.store.lane import Lane
from lmpoold.store.scripts import PoolStore
from workers.core.blocks import BlockPool

CHAIN = 64
LONG_US = 1000
"""Commands that keep the server longer are counted by its slow log."""
LOOK_S = 0.05
LOOKS = 6
"""How often the machine is watched for what it does to a process that needs nothing."""
IDLE_S = 1.0
"""How long the bystander pings an idle server first: what it sees then is the machine's own."""


def chain(bench: Bench, rank: int) -> tuple[PrefixHash, ...]:
    """The prompt that only `rank` holds."""
    rng = random.Random(rank)
    return chain_hashes([rng.randrange(50_000) for _ in range(CHAIN * BLOCK)], BLOCK, bench.root)


def filled(bench: Bench, rank: int, pages: int) -> BlockPool:
    """A pool with `pages` blocks in its map: the rank's prompt, and blocks that begin others."""
    pool = BlockPool(2 * pages, BLOCK)
    names = [*chain(bench, rank)]
    names += [PrefixHash(f"{bench.random.getrandbits(128):032x}") for _ in range(pages - CHAIN)]
    parents = [bench.root, *names[: CHAIN - 1], *[bench.root] * (pages - CHAIN)]
    depths = [*range(CHAIN), *[0] * (pages - CHAIN)]
    blocks = pool.allocate(pages)
    assert blocks is not None
    for block, name, parent, depth in zip(blocks, names, parents, depths, strict=True):
        pool.publish(block, name, parent, depth, [0] * BLOCK, 0.0)
    pool.drain_changes()
    return pool


async def play_worker(url: str, rank: int, pages: int) -> None:
    """Wait for the server with a full table, join, send it, and stay until killed."""
    redis = open_redis(url)
    bench = Bench(redis, rank)
    bench.store = PoolStore(redis, bench.store.keys, Lane(redis))  # as workers call
    pool = filled(bench, rank, pages)
    settle_heap()  # as workers do
    print("waiting", flush=True)
    while True:
        try:
            identity = {"block_size": str(BLOCK), "weights": "w"}
            facts = {"device": "none", "host": "bench", "pid": "0"}
            epoch = await bench.store.rank_up(
                rank, held="", ttl_ms=60_000, blocks=2 * pages, identity=identity, facts=facts
            )
            # Written down only now, as a worker's engine does when it is told of the new epoch.
            counts = Counts(pool.free, pool.reclaimable, 0, 0, 0)
            await bench.store.swap(rank, epoch, 1, counts, pool.table())
            break
        except (RedisError, OSError, LMPoolError):
            await asyncio.sleep(0.02)
    await asyncio.sleep(3600)


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
        tokens=b"\1\0\0\0",
    )
    (routed,) = await bench.store.route([call])
    return routed.hit if routed.rank == rank else 0


async def measure(ranks: int, pages: int) -> dict[str, Any]:
    """Run once; returns seconds until routable, and what the snapshots cost another client."""
    children: list[subprocess.Popen[bytes]] = []
    bystander: subprocess.Popen[bytes] | None = None
    with tempfile.TemporaryDirectory(prefix="lmpool-") as folder:
        server = EmbeddedServer(Path(folder) / "s")
        try:
            for rank in range(ranks):
                argv = ["benchmarks.scale.restart", "--play", str(rank), "--url", server.url]
                children.append(_start(*argv, "--pages", str(pages)))
            bystander = _start("benchmarks.scale.bystander", str(server.socket))
            for child in (*children, bystander):
                await _line(child)
            spent_s = [_cpu_s(child.pid) for child in children]
            await server.start()
            began_s = time.perf_counter()
            assert server.process is not None
            first_of_all(server.process.pid)
            redis = open_redis(server.url)
            await redis.config_set("slowlog-log-slower-than", LONG_US)
            await redis.config_set("slowlog-max-len", 100_000)
            await redis.config_set("latency-monitor-threshold", 1)
            bench = Bench(redis, 0)
            await bench.set_up(0)
            await _figures(bystander)  # what loading the functions cost is told apart
            stolen_s = host_took_s()
            found = await _until_routable(bench, ranks, pages, began_s)
            busy = await _figures(bystander)
            stolen_s = host_took_s() - stolen_s
            log_ms = await _longest_log_write_ms(redis)
            spent_s = [_cpu_s(child.pid) - spent_s[at] for at, child in enumerate(children)]
            server_s = _cpu_s(server.process.pid)
            await asyncio.sleep(IDLE_S)
            idle = await _figures(bystander)
            slow: Any = await redis.slowlog_get(100_000)
            stats: Any = await redis.info("everything")
            await redis.aclose()
        finally:
            for child in (*children, *([bystander] if bystander else [])):
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
        "chunks": stats["cmdstat_hset"]["calls"],
        "chunk_us": stats["latency_percentiles_usec_hset"],
        "longest_command_ms": _longest_ms(others),
        "commands_over_1_ms": len(others),
        "function_load_ms": _longest_ms(loads),
        "bystander": busy,
        "bystander_idle": idle,
        "worker_cpu_s": sum(spent_s) / ranks,
        "server_cpu_s": server_s,
        "rewrites": stats["aof_rewrites"],
        "log_write_ms": log_ms,
        "stolen_ms": stolen_s * 1000,
        "machine_floor_ms": kept_waiting_ms(ranks, LOOKS),
    }


def _start(*argv: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", *argv]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


async def _line(child: subprocess.Popen[bytes]) -> bytes:
    assert child.stdout is not None
    return await asyncio.to_thread(child.stdout.readline)


async def _figures(bystander: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What the bystander has seen since it was asked last."""
    assert bystander.stdin is not None
    bystander.stdin.write(b"\n")
    bystander.stdin.flush()
    found: dict[str, Any] = json.loads(await _line(bystander))
    return found


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


async def _longest_log_write_ms(redis: Redis) -> float:
    """Return the longest time that the server was at writing its log, 0 for under 1 ms."""
    rows: Any = await redis.execute_command("LATENCY", "LATEST")  # type: ignore[no-untyped-call]
    return float(max((row[3] for row in rows if row[0] == b"aof-write"), default=0))


async def _until_routable(bench: Bench, ranks: int, pages: int, began_s: float) -> list[float]:
    """Return, by rank, after how many seconds a request for its prompt was routed there."""
    found = [0.0] * ranks
    turn = 0
    while not all(found):
        await asyncio.sleep(LOOK_S)
        turn += 1
        for rank in range(ranks):
            # Looked for by counting first: routes of our own must not be what takes the time.
            if found[rank] or await bench.redis.hlen(bench.store.keys.pages(rank)) < pages:
                continue
            if await held(bench, rank, turn) == CHAIN:
                found[rank] = time.perf_counter() - began_s
    return found


def _waits(seen: dict[str, Any]) -> str:
    return (
        f"{seen['p50_us']:.0f} us (p99 {seen['p99_us']:.0f}) and at most "
        f"{seen['max_us'] / 1000:.1f} ms"
    )


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
    chunk, busy, idle = found["chunk_us"], found["bystander"], found["bystander_idle"]
    click.echo(
        f"{found['chunks']} chunks of {ranks * pages / found['chunks']:.0f} pages in the mean held "
        f"the server for {chunk['p50']:.0f} us each (p99 {chunk['p99']:.0f}, p99.9 "
        f"{chunk['p99.9']:.0f}); its longest command took {found['longest_command_ms']:.2f} ms "
        f"({found['commands_over_1_ms']} over {LONG_US / 1000:g} ms; loading the functions, once, "
        f"{found['function_load_ms']:.1f} ms)"
    )
    click.echo(
        f"meanwhile another client waited {_waits(busy)} for its PING; on the idle server "
        f"{_waits(idle)}"
    )
    click.echo(
        f"its log took it {found['log_write_ms']:.0f} ms at most; the host took "
        f"{found['stolen_ms']:.0f} ms of this machine's processors meanwhile"
    )
    click.echo(
        f"a process that only reads the clock, beside as many busy ones, was kept waiting for "
        f"{found['machine_floor_ms']:.1f} ms at most"
    )
    click.echo(
        f"CPU: a worker {found['worker_cpu_s']:.2f} s, the server {found['server_cpu_s']:.2f} s "
        f"({found['rewrites']} rewrites of its log)"
    )
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
