"""Moving blocks between two GPUs: byte equality, time, interference, deaths, whole plans.

Run on a machine with two GPUs: `python -m benchmarks.micro.transfer --out transfer.json`. Two
processes hold pools of the Qwen3-0.6B shape and move random blocks of random content. `ms` are
those of the destination, between events on its device, from the first copy to the last; `wall` is
what its event loop saw, words and threads included. Raw NCCL sends of contiguous buffers and the
links' own limit stand beside them, from the same run. Every section has a time limit of its own,
and one that fails leaves the others their figures.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from benchmarks.micro import dispatch
from benchmarks.micro.transfer_pair import SidePair, SideProcess
from lmpoold.protocol.errors import ConfigError
from lmpoold.shell.links import read_topology

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
POOL_BLOCKS = 256
BUSY_BLOCKS = 32
LOAD_S = 1.5
DISPATCH_BLOCKS = 8
DISPATCH_PLANS = 60
WAYS = ("peer", "nccl", "nccl:max_ctas=8", "nccl:max_ctas=4")
RAW_MB = (29.36, 234.9, 939.5, 3758.1)


def ms(samples_s: list[float], share: float) -> float:
    """Return a percentile of seconds, in ms."""
    ordered = sorted(samples_s)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000


class Run:
    """The results as they come, written out after each section."""

    def __init__(self, out: Path | None, revision: str, rounds: int) -> None:
        self.out = out
        self.rounds = rounds
        self.pair: SidePair | None = None
        self.found: dict[str, Any] = {
            "revision": revision,
            "link_gb_s": None,
            "rows": [],
            "interference": [],
            "dispatch_to_publish_ms": None,
            "survivor_recovered_s": None,
            "raw_nccl": [],
            "deaths": [],
            "failed_sections": [],
        }

    async def section(self, name: str, limit_s: float, work: Callable[[], Awaitable[None]]) -> None:
        """Do one section; whatever becomes of it, the next begins with sound processes."""
        begin_s = time.monotonic()
        print(f"## {name}", flush=True)
        try:
            async with asyncio.timeout(limit_s):
                await work()
        except (Exception, SystemExit) as error:  # noqa: BLE001  (the others' figures must stay)
            print(f"!! {name}: {type(error).__name__}: {error}", flush=True)
            self.found["failed_sections"].append(f"{name}: {type(error).__name__}: {error}")
            if self.pair is not None:
                self.pair.source.kill()
                self.pair.target.kill()
                self.pair = None
        print(f"-- {name}: {time.monotonic() - begin_s:.1f} s", flush=True)
        if self.out is not None:
            self.out.write_text(json.dumps(self.found, indent=1) + "\n")

    async def sides(self) -> SidePair:
        """Return the two processes."""
        if self.pair is None:
            self.pair = await SidePair.start()
        return self.pair

    async def raw(self) -> None:
        """Bare NCCL, and the links' limit."""
        try:
            found = read_topology()
            self.found["link_gb_s"] = next((one.gb_s for one in found.connections), None)
            print(f"  links: {found.connections} ({found.source})")
        except ConfigError as error:
            print(f"  links: {error}")
        pair = await self.sides()
        port = await pair.source.ask("store_port")
        sizes = [int(mb * 1e6) // 8 * 8 for mb in RAW_MB]
        taken = (await pair.both("raw", port=port, sizes=sizes, rounds=self.rounds))[1]
        for size in sizes:
            p50, p95 = (ms(taken[str(size)], share) for share in (0.5, 0.95))
            rate = size / p50 / 1e6
            self.found["raw_nccl"].append(
                {"bytes": size, "p50_ms": p50, "p95_ms": p95, "gb_s": rate}
            )
            print(f"  raw NCCL {size / 1e6:8.1f} MB  {p50:7.3f} ms  {rate:6.1f} GB/s")

    async def table(self, way: str, block_tokens: int) -> None:
        """Byte equality and time of one way, for every number of blocks."""
        pair = await self.sides()
        block_bytes = (await pair.both("pool", block_tokens=block_tokens, blocks=POOL_BLOCKS))[0][
            "block_bytes"
        ]
        await pair.source.ask("fill", seed=block_tokens)
        opened_s = await pair.connect(way)
        print(f"  {way}, {block_tokens} tokens a block: pair made in {opened_s * 1000:.0f} ms")
        for blocks in COUNTS:
            src = [(at * 89 + 7) % POOL_BLOCKS for at in range(blocks)]
            dst = [(at * 57 + 3) % POOL_BLOCKS for at in range(blocks)]
            await pair.target.ask("poison")
            await pair.halves("once", plan=f"check {blocks}", src=src, dst=dst)
            equal = await pair.target.ask(
                "holds", seed=block_tokens, src_blocks=src, dst_blocks=dst
            )
            await pair.both("lag")
            taken = await pair.halves(
                "timed", plan=f"time {blocks}", blocks=blocks, rounds=self.rounds + 2
            )
            device = [one for one, _ in taken[1][2:]]
            walls = [wall for _, wall in taken[1][2:]]
            row = {
                "transport": way,
                "block_tokens": block_tokens,
                "blocks": blocks,
                "p50_ms": ms(device, 0.5),
                "p95_ms": ms(device, 0.95),
                "gb_s": blocks * block_bytes / ms(device, 0.5) / 1e6,
                "byte_equal": equal,
                "wall_p50_ms": ms(walls, 0.5),
                "wall_p95_ms": ms(walls, 0.95),
                "loop_lag_ms": max(await pair.both("lag")),
            }
            self.found["rows"].append(row)
            print(
                f"  {way:16s} {block_tokens:3d} x {blocks:3d} p50 {row['p50_ms']:7.3f} "
                f"p95 {row['p95_ms']:7.3f} ms {row['gb_s']:6.1f} GB/s "
                f"wall {row['wall_p50_ms']:7.3f} {'equal' if equal else 'NOT EQUAL'}",
                flush=True,
            )

    async def dispatch(self) -> None:
        """A pool of its own on the two GPUs: plans of 8 blocks, from dispatch to publish."""
        if self.pair is not None:
            await self.pair.end()
            self.pair = None
        found = await dispatch.measure("cuda", "auto", 256, DISPATCH_BLOCKS, DISPATCH_PLANS)
        dispatch.show(found)
        self.found["dispatch"] = found
        self.found["dispatch_to_publish_ms"] = {
            "blocks": DISPATCH_BLOCKS,
            **found["dispatch_to_publish_ms"],
        }

    async def interference(self, way: str) -> None:
        """A decode step on each side, alone and beside moves without a pause."""
        pair = await self.sides()
        await pair.both("load_build")
        await pair.both("pool", block_tokens=256, blocks=POOL_BLOCKS)
        await pair.connect(way)
        alone = await self._loaded(pair, None)
        await pair.both("lag")
        moving = asyncio.ensure_future(
            pair.halves("until_told", plan=f"busy {way}", blocks=BUSY_BLOCKS)
        )
        beside = await self._loaded(pair, moving)
        await pair.target.ask("halt")
        # The source's last half has nobody any more: it ends with the pair.
        await pair.source.ask("halt")
        await pair.target.ask("close")
        rates = await moving
        lag_ms = await pair.both("lag")
        for at, side in enumerate(("source", "target")):
            row = {
                "transport": way,
                "step_alone_ms": alone[at]["device_ms"],
                "step_with_ms": beside[at]["device_ms"],
                "gb_s": rates[1]["gb_s"],
                "side": side,
                "wall_alone_ms": alone[at]["wall_ms"],
                "wall_with_ms": beside[at]["wall_ms"],
                "loop_lag_ms": lag_ms[at],
            }
            self.found["interference"].append(row)
            slower = row["step_with_ms"] / row["step_alone_ms"] - 1
            print(
                f"  {way:16s} {side}: step {row['step_alone_ms']:.3f} -> "
                f"{row['step_with_ms']:.3f} ms ({slower:+.1%}), wall {row['wall_alone_ms']:.3f} -> "
                f"{row['wall_with_ms']:.3f}, {row['gb_s']:.0f} GB/s, loop lag {lag_ms[at]:.1f} ms",
                flush=True,
            )

    async def _loaded(
        self, pair: SidePair, moving: asyncio.Future[Any] | None
    ) -> list[dict[str, Any]]:
        await pair.both("load_start")
        await asyncio.sleep(LOAD_S)
        if moving is not None and moving.done():
            moving.result()
        steps: list[dict[str, Any]] = await pair.both("load_stop")
        return steps

    async def death(self, way: str, victim: int) -> None:
        """SIGKILL one side amid moves; the other decodes on and moves with its successor."""
        pair = await self.sides()
        await pair.both("load_build")
        await pair.both("pool", block_tokens=256, blocks=POOL_BLOCKS)
        await pair.connect(way)
        dead, survivor = (pair.source, pair.target)[:: 1 if victim == 0 else -1]
        await survivor.ask("load_start")
        moving = survivor.ask("until_told", plan="m", out=victim == 1, blocks=BUSY_BLOCKS)
        other = dead.ask("until_told", plan="m", out=victim == 0, blocks=BUSY_BLOCKS)
        await asyncio.sleep(1.0)
        killed_s = time.time()
        dead.kill()
        ended = await moving
        raised_s = ended["failed"]["at_s"] - killed_s
        closed_s = await survivor.ask("close")
        await asyncio.sleep(0.5)
        steps = await survivor.ask("load_stop")
        other.cancel()
        successor = await SideProcess.start(victim)
        pair.source, pair.target = (successor, survivor) if victim == 0 else (survivor, successor)
        await successor.ask("pool", block_tokens=256, blocks=POOL_BLOCKS)
        offers = [
            await side.ask("transport_of", way=way)
            if side is successor
            else await side.ask("offer")
            for side in (pair.source, pair.target)
        ]
        opened_s = await pair.open(offers, "e2")
        await pair.source.ask("fill", seed=99)
        await pair.target.ask("poison")
        src, dst = list(range(8)), list(range(100, 108))
        await pair.halves("once", plan="after", src=src, dst=dst)
        equal = await pair.target.ask("holds", seed=99, src_blocks=src, dst_blocks=dst)
        row = {
            "transport": way,
            "victim": ("source", "target")[victim],
            "why": ended["failed"]["why"],
            "move_raised_s": raised_s,
            "close_s": closed_s,
            "longest_step_ms": steps["longest_wall_ms"],
            "step_ms": steps["wall_ms"],
            "reopened_s": opened_s,
            "byte_equal_after": equal,
        }
        self.found["deaths"].append(row)
        recovered_s = raised_s + closed_s
        earlier = self.found["survivor_recovered_s"] or 0.0
        self.found["survivor_recovered_s"] = max(earlier, recovered_s)
        print(f"  {json.dumps(row)}", flush=True)


async def measure(out: Path | None, revision: str, rounds: int, only: tuple[str, ...]) -> None:
    """Run every section, or those whose name begins with one of `only`."""
    run = Run(out, revision, rounds)
    sections: list[tuple[str, float, Callable[[], Awaitable[None]]]] = [("raw", 60, run.raw)]
    cases = [(way, tokens) for way in ("peer", "nccl") for tokens in (256, 64, 16)]
    sections += [
        (f"table {way} {tokens}", 60, partial(run.table, way, tokens))
        for way, tokens in (*cases, ("nccl:max_ctas=8", 256))
    ]
    sections += [(f"interference {way}", 75, partial(run.interference, way)) for way in WAYS]
    sections += [
        (f"death {way} {victim}", 75, partial(run.death, way, victim))
        for way in ("peer", "nccl:max_ctas=8")
        for victim in (0, 1)
    ]
    sections.append(("dispatch", 180, run.dispatch))
    for name, limit_s, work in sections:
        if not only or name.startswith(only):
            await run.section(name, limit_s, work)
    if run.pair is not None:
        await run.pair.end()
    equal = [row["byte_equal"] for row in run.found["rows"]]
    print(f"rows {len(equal)}, all byte-equal {all(equal)}, failed {run.found['failed_sections']}")
    if run.found["rows"]:
        lags = [row["loop_lag_ms"] for row in run.found["rows"]]
        print(f"loop lag: median {statistics.median(lags):.2f} ms, worst {max(lags):.2f} ms")


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=None, help="JSON goes there.")
@click.option("--revision", default=lambda: os.environ.get("LMPOOL_REVISION", "unknown"))
@click.option("--rounds", default=20, show_default=True, help="Timed moves of each case.")
@click.option("--only", multiple=True, help="Sections whose name begins so; again for more.")
def main(out: Path | None, revision: str, rounds: int, only: tuple[str, ...]) -> None:
    """Measure moves between GPUs 0 and 1 of this machine."""
    asyncio.run(measure(out, revision, rounds, only))


if __name__ == "__main__":
    main()
