"""What the HTTP gateway adds to an answer: beside the same requests by PoolClient, turn by turn.

One request at a time, or some at once (`--at-once`), over an idle worker and open connections.
`json` is a whole answer of one token; `stream` ends at the first event of many. Beside it, in the
same turns, a socket is asked that answers unread, a bare uvicorn application, and with `--peer`
other routers in front of that one. Before each of them go as many requests by PoolClient: all find
the machine as a pool leaves it, caches cold, which costs more than asking the same thing again and
again. What a hop adds is told from what it stands before: PoolClient for the gateway, the bare
application for a router.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click
import uvloop

from benchmarks.idle_worker import MODEL
from benchmarks.micro.gateway_caller import PROMPT, Caller
from benchmarks.micro.gateway_peer import running_peers
from benchmarks.processes import Processes, running_pool
from lmpoold.client import PoolClient

STREAMED_TOKENS = 8
WARM_TURNS = 50
READY_S = 30.0
KINDS = (("json", 1, False), ("stream", STREAMED_TOKENS, True))

Row = dict[str, Any]


async def _port(processes: Processes) -> int:
    """Start a gateway and return where it listens."""
    processes.start("gateway", "lmpoold.gateway", "--port", "0", "--log-level", "info")
    log = processes.folder / "gateway.log"
    async with asyncio.timeout(READY_S):
        while True:
            processes.check()
            rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
            if ready := [row["port"] for row in rows if row["msg"] == "ready"]:
                return int(ready[0])
            await asyncio.sleep(0.05)


async def _direct(pool: PoolClient, *, tokens: int, stream: bool) -> float:
    began_s = time.perf_counter()
    request = await pool.submit(prompt=PROMPT, max_tokens=tokens)
    first_s = 0.0
    async for _ in pool.stream(request):
        first_s = first_s or time.perf_counter() - began_s
    return first_s if stream else time.perf_counter() - began_s


def _rows(what: str, times_s: dict[str, list[float]]) -> list[Row]:
    """Return a row a way: its median, and what it adds to the way that it stands before."""
    rows: list[Row] = []
    for way, took_s in times_s.items():
        p50_us, p90_us = median(took_s) * 1e6, quantiles(took_s, n=10)[-1] * 1e6
        row: Row = {"what": what, "way": way, "p50_us": p50_us, "p90_us": p90_us}
        if way not in ("direct", "socket", "bare"):
            behind = "direct" if way == "gateway" else "bare"
            row["added_p50_us"] = p50_us - median(times_s[behind]) * 1e6
        rows.append(row)
    return rows


Asked = Callable[[], Awaitable[float]]
"""Sends a request and returns the seconds it took."""


async def _times(ways: Mapping[str, Sequence[Asked]], turns: int) -> dict[str, list[float]]:
    """Return the seconds of each way's requests: as many at once as it has askers, ways in turn."""
    times_s: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(turns):
        for way in (way for way in ways if way != "direct"):
            for one in ("direct", way):
                times_s[one] += await asyncio.gather(*(ask() for ask in ways[one]))
    return times_s


async def measure(requests: int, at_once: Sequence[int], peers: Sequence[str]) -> list[Row]:
    """Print and return a row for each way of whole answers, and of first events."""
    rows = []
    async with (
        running_pool(MODEL, [["benchmarks.idle_worker"]]) as processes,
        running_peers(processes.folder, peers, max(at_once)) as others,
        PoolClient(processes.url) as pool,
    ):
        port = await _port(processes)
        gateway = [await Caller.to(port) for _ in range(max(at_once))]
        for count, (what, tokens, stream) in itertools.product(at_once, KINDS):
            direct = partial(_direct, pool, tokens=tokens, stream=stream)
            ways: dict[str, Sequence[Asked]] = {"direct": [direct] * count}
            for way, callers in {"gateway": gateway, **others}.items():
                chosen = callers[:count]
                ways[way] = [partial(c.seconds, tokens=tokens, stream=stream) for c in chosen]
            await _times(ways, WARM_TURNS)
            before_s = processes.cpu_s()["gateway"]
            times_s = await _times(ways, max(1, requests // count))
            asked = len(times_s["gateway"])
            cpu_us = (processes.cpu_s()["gateway"] - before_s) / asked * 1e6
            for row in _rows(what, times_s):
                if row["way"] == "gateway":
                    row["cpu_us"] = cpu_us
                rows.append({"requests": asked, "at_once": count, **row})
                added = f", adds {row['added_p50_us']:.0f}" if "added_p50_us" in row else ""
                click.echo(
                    f"{what:7}{row['way']:14} {count:3} at once: p50 {row['p50_us']:6.0f} us, "
                    f"p90 {row['p90_us']:6.0f}{added}"
                )
            click.echo(f"{what:7}gateway CPU {cpu_us:.0f} us a request")
    return rows


@click.command()
@click.option("--requests", default=1000, show_default=True, help="Each way, of each kind.")
@click.option("--at-once", multiple=True, default=(1,), show_default=True, help="Again for more.")
@click.option("--peer", "peers", multiple=True, help="Command of a router to compare; repeatable.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the rows here too.")
def main(requests: int, at_once: tuple[int, ...], peers: tuple[str, ...], out: Path | None) -> None:
    """Print what the gateway adds to a whole answer, and to the first event of a stream.

    A peer is a router of others, from an environment of its own:

    \b
      python -m venv /tmp/vllm-router && /tmp/vllm-router/bin/pip install vllm-router
      python -m venv /tmp/sglang-router && /tmp/sglang-router/bin/pip install sglang-router
      python -m benchmarks.micro.gateway --peer /tmp/vllm-router/bin/vllm-router \\
        --peer "/tmp/sglang-router/bin/sglang-router launch"
    """
    rows = uvloop.run(measure(requests, at_once, peers))
    if out is not None:
        out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
