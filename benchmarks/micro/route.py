"""Route cost: one FCALL of `route` beside one FCALL that does nothing, in the same run.

Prints, for candidates x blocks: p50 and p99 of both and their ratio; server CPU a route, alone and
in batches of 64; and the same over page tables of 10k to 1M pages, whose size must not matter.

Batches stand beside a floor measured in turn with them: a function that gets the same arguments and
only writes what a route must leave behind (acknowledgement, reservation, the worker's entry, the
request's record), without a look at pages or load. Both calls of a pair go through redis-py.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import uvloop
from redis.asyncio import Redis

from lmpoold.protocol.config import PoolConstants, PoolIdentity
from lmpoold.protocol.hashing import PrefixHash, chain_hashes, domain_root
from lmpoold.protocol.keys import INGRESS_GROUP, Keyspace
from lmpoold.protocol.messages import PROTOCOL
from lmpoold.protocol.views import RouteCall
from lmpoold.store.connect import open_redis
from lmpoold.store.embedded import EmbeddedServer
from lmpoold.store.scripts import PoolStore

FLOORS = """#!lua name=lmpool_floors
redis.register_function('noop', function(keys, args) return 1 end)
redis.register_function('bare', function(keys, args)
  local p, sources = string.sub(keys[1], 1, -5), {}
  for i = 1, #args, 8 do
    sources[#sources + 1] = args[i + 1]
    local entry = redis.call('XADD', p .. 'w:0', '*', 'kind', 'route', 'id', args[i],
      'attempt', '0', 'hit', '0', 'p', args[i + 6], 'tokens', args[i + 7])
    redis.call('HSET', p .. 'r:0:resv', args[i] .. '.0', '1:1:1:-')
    redis.call('HSET', p .. 'req:' .. args[i], 'state', 'routed', 'rank', '0',
      'client', args[i + 5], 'entry', entry)
  end
  redis.call('XACK', p .. 'in', 'sched', unpack(sources))
  redis.call('XDEL', p .. 'in', unpack(sources))
end)
"""
BLOCK = 16
FILL_PAGES = 500
SHARES = (1.0, 0.31, 0.0, 0.63, 0.05, 0.0, 0.0, 0.0)
"""How much of the prompt each rank holds: half of them nothing, as under prefix-aware routing."""


def percentile(samples_s: list[float], share: float) -> float:
    """Return a percentile of samples in seconds, as microseconds."""
    ordered = sorted(samples_s)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1e6


class Bench:
    """A pool of scripted ranks on a server of its own."""

    def __init__(self, redis: Redis, seed: int) -> None:
        self.redis = redis
        self.store = PoolStore(redis, Keyspace("bench"))
        self.random = random.Random(seed)
        self.identity: dict[str, str] = {}
        self.epochs: dict[int, str] = {}
        self.root = domain_root("f" * 32, BLOCK)

    async def set_up(self, ranks: int) -> None:
        """Make an empty pool of `ranks` ranks that lives for an hour."""
        await self.redis.flushall()
        await self.store.load_library()
        await self.redis.function_load(FLOORS, replace=True)
        identity = PoolIdentity(
            protocol=PROTOCOL,
            model="bench",
            fingerprint="f" * 32,
            dtype="float32",
            block_size=BLOCK,
            kv_block_bytes=1,
            domain=self.root,
            max_model_len=65536,
        )
        await self.store.configure(identity, PoolConstants())
        self.identity = identity.to_fields() | {"weights": "w"}
        del self.identity["model"]
        for rank in range(ranks):
            self.epochs[rank] = await self.store.rank_up(
                rank,
                held="",
                ttl_ms=3_600_000,
                blocks=2_000_000,
                identity=self.identity,
                facts={"device": "none", "host": "bench", "pid": "0"},
            )

    async def fill(self, rank: int, pages: int) -> None:
        """Give a rank `pages` pages of prompts that nobody asks for."""
        key = self.store.keys.pages(rank)
        for start in range(0, pages, FILL_PAGES):
            count = min(FILL_PAGES, pages - start)
            rows = {
                f"{self.random.getrandbits(128):032x}": f"{start + i}:1:{i}:{self.root}"
                for i in range(count)
            }
            await self.redis.hset(key, mapping=rows)

    async def prompt(self, blocks: int, ranks: int) -> tuple[PrefixHash, ...]:
        """Return a fresh prompt's hashes, published on the ranks by `SHARES`."""
        tokens = [self.random.randrange(50_000) for _ in range(blocks * BLOCK)]
        hashes = chain_hashes(tokens, BLOCK, self.root)
        for rank in range(ranks):
            held = hashes[: int(blocks * SHARES[rank % len(SHARES)])]
            if held:
                rows = {name: f"{i}:1:{i}:{self.root}" for i, name in enumerate(held)}
                await self.redis.hset(self.store.keys.pages(rank), mapping=rows)
        return hashes

    async def calls(self, hashes: tuple[PrefixHash, ...], count: int) -> list[RouteCall]:
        """Return `count` calls for entries that lie in ingress, read and pending."""
        keys = self.store.keys
        pipe = self.redis.pipeline(transaction=False)
        for _ in range(count):
            pipe.xadd(keys.ingress, {"prompt": "x"})
        entries = [entry.decode() for entry in await pipe.execute()]
        await self.redis.xreadgroup(INGRESS_GROUP, "bench", {keys.ingress: ">"}, count=count)
        tokens = len(hashes) * BLOCK + 5
        return [
            RouteCall(
                id=entry,
                source=entry,
                prompt_tokens=tokens,
                max_tokens=64,
                hashes=hashes,
                client=entry,
                payload='{"sampling":{}}',
                tokens=bytes(32),
            )
            for entry in entries
        ]

    async def clear(self, ranks: int) -> None:
        """Forget what was routed, so that no queue grows over the run."""
        keys = self.store.keys
        async for key in self.redis.scan_iter(match=f"{keys.prefix}req:*", count=1000):
            await self.redis.unlink(key)
        for rank in range(ranks):
            await self.redis.xtrim(keys.worker(rank), maxlen=0, approximate=False)
            await self.redis.unlink(keys.reservations(rank))
        await self.store.reap(1)

    async def server_cpu_s(self) -> float:
        """Return the server's CPU seconds so far."""
        cpu = await self.redis.info("cpu")
        return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])

    async def alone(self, ranks: int, blocks: int, rounds: int) -> dict[str, Any]:
        """Time single routes between single no-ops."""
        hashes = await self.prompt(blocks, ranks)
        route_s: list[float] = []
        noop_s: list[float] = []
        cpu_s = 0.0
        for _ in range(rounds // 100):
            calls = await self.calls(hashes, 100)
            for call in calls:
                args = call.to_args()
                start = time.perf_counter()
                await self.redis.execute_command("FCALL", "noop", 1, self.store.keys.load)
                middle = time.perf_counter()
                await self.store.call("route", *args)
                route_s.append(time.perf_counter() - middle)
                noop_s.append(middle - start)
            calls = await self.calls(hashes, 100)
            before = await self.server_cpu_s()
            for call in calls:
                await self.store.call("route", *call.to_args())
            cpu_s += await self.server_cpu_s() - before
            await self.clear(ranks)
        return {
            "candidates": ranks,
            "blocks": blocks,
            "noop_p50_us": percentile(noop_s, 0.5),
            "noop_p99_us": percentile(noop_s, 0.99),
            "route_p50_us": percentile(route_s, 0.5),
            "route_p99_us": percentile(route_s, 0.99),
            "ratio_p50": percentile(route_s, 0.5) / percentile(noop_s, 0.5),
            "server_cpu_us": cpu_s / (rounds // 100 * 100) * 1e6,
        }

    async def batched(self, ranks: int, blocks: int, batches: int) -> dict[str, Any]:
        """Time routes in batches of 64: what one server core sustains."""
        hashes = await self.prompt(blocks, ranks)
        wall_s = {"route": 0.0, "bare": 0.0}
        cpu_s = {"route": 0.0, "bare": 0.0}
        for _ in range(batches // 10):
            for function in ("route", "bare"):
                groups = [await self.calls(hashes, 64) for _ in range(10)]
                args = [[arg for call in group for arg in call.to_args()] for group in groups]
                before, start = await self.server_cpu_s(), time.perf_counter()
                for group in args:
                    words = ("FCALL", function, 1, self.store.keys.load, *group)
                    await self.redis.execute_command(*words)  # type: ignore[no-untyped-call]
                wall_s[function] += time.perf_counter() - start
                cpu_s[function] += await self.server_cpu_s() - before
                await self.clear(ranks)
        routes = batches // 10 * 640
        return {
            "candidates": ranks,
            "blocks": blocks,
            "routes_per_s": routes / wall_s["route"],
            "routes_per_server_core_s": routes / cpu_s["route"],
            "server_cpu_us": cpu_s["route"] / routes * 1e6,
            "bare_server_cpu_us": cpu_s["bare"] / routes * 1e6,
        }


async def measure(rounds: int, largest: int, seed: int) -> dict[str, Any]:
    """Run everything on a fresh server; returns the rows."""
    result: dict[str, Any] = {"alone": [], "batched": [], "pages": []}
    with tempfile.TemporaryDirectory(prefix="lmpool-") as folder:
        server = EmbeddedServer(Path(folder) / "s")
        await server.start()
        redis = open_redis(server.url)
        try:
            bench = Bench(redis, seed)
            for ranks, blocks in ((3, 8), (3, 64), (8, 64), (8, 2000)):
                await bench.set_up(ranks)
                row = await bench.alone(ranks, blocks, rounds)
                result["alone"].append(row)
                click.echo(
                    f"{ranks} candidates x {blocks:4} blocks: no-op {row['noop_p50_us']:.0f} us, "
                    f"route {row['route_p50_us']:.0f} us (p99 {row['route_p99_us']:.0f}), "
                    f"ratio {row['ratio_p50']:.2f}, server CPU {row['server_cpu_us']:.1f} us"
                )
            for ranks, blocks in ((3, 64), (8, 64)):
                await bench.set_up(ranks)
                row = await bench.batched(ranks, blocks, max(10, rounds // 50))
                result["batched"].append(row)
                click.echo(
                    f"{ranks} candidates x {blocks:4} blocks, batches of 64: "
                    f"{row['routes_per_s']:,.0f} routes/s, {row['routes_per_server_core_s']:,.0f} "
                    f"a server core, server CPU {row['server_cpu_us']:.1f} us, "
                    f"{row['server_cpu_us'] / row['bare_server_cpu_us']:.2f} of the bare writes'"
                )
            for pages in (10_000, 100_000, 1_000_000):
                if pages > largest:
                    continue
                await bench.set_up(3)
                for rank in range(3):
                    await bench.fill(rank, pages // 3)
                row = await bench.alone(3, 64, rounds) | {"pages": pages}
                result["pages"].append(row)
                click.echo(
                    f"{pages:9,} pages: ratio {row['ratio_p50']:.2f}, "
                    f"server CPU {row['server_cpu_us']:.1f} us"
                )
        finally:
            await redis.aclose()
            server.stop()
    return result


@click.command()
@click.option("--rounds", default=2000, show_default=True, help="Routes timed in each case.")
@click.option("--largest", default=1_000_000, show_default=True, help="Largest page table.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the rows here too.")
def main(rounds: int, largest: int, seed: int, out: Path | None) -> None:
    """Print route p50 beside no-op FCALL p50, batched throughput, and cost by page table size."""
    result = uvloop.run(measure(max(100, rounds), largest, seed))
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
