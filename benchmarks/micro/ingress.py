"""Ingress to first byte: XADD to the first entry of the answer, through lmpoold and an idle worker.

Requests arrive at fixed times whatever the answers do (open loop), so a queue would show. Latency
counts from the moment a request was due, not from when the producer got round to sending it.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import click
import uvloop

from benchmarks.idle_worker import MODEL
from benchmarks.processes import running_pool
from lmpoold.protocol.keys import Keyspace
from lmpoold.protocol.messages import read_outputs
from lmpoold.store.connect import open_redis

PATIENCE_S = 10.0


async def drive(url: str, rate: float, seconds: float, label: str) -> dict[str, Any]:
    """Send `rate` requests a second for `seconds`; returns latencies and losses."""
    sender, reader = open_redis(url), open_redis(url, blocking=True)
    keys = Keyspace()
    client = f"bench-{label}"
    count = int(rate * seconds)
    due_s: dict[str, float] = {}
    first_s: dict[str, float] = {}
    ends: dict[str, int] = {}
    began_s = time.perf_counter() + 0.2

    async def read() -> None:
        last = b"0-0"
        while len(ends) < count:
            reply: Any = await reader.xread({keys.out(client): last}, count=1000, block=1000)
            now_s = time.perf_counter()
            for entry, values in reply[0][1] if reply else ():
                last = entry
                for output in read_outputs(values):
                    first_s.setdefault(output.id, now_s)
                    if output.ends:
                        ends[output.id] = ends.get(output.id, 0) + 1

    async def send() -> None:
        sent = 0
        while sent < count:
            now_s = time.perf_counter()
            pipe = sender.pipeline(transaction=False)
            while sent < count and began_s + sent / rate <= now_s:
                request_id = f"{label}-{sent}"
                due_s[request_id] = began_s + sent / rate
                fields = {"id": request_id, "client": client, "prompt": "Why is the sky blue?"}
                pipe.xadd(keys.ingress, {**fields, "max_tokens": "1"})
                sent += 1
            if len(pipe):
                await pipe.execute()
            else:
                await asyncio.sleep(max(0.0, began_s + sent / rate - now_s))

    try:
        reading = asyncio.create_task(read())
        await send()
        done, _ = await asyncio.wait([reading], timeout=PATIENCE_S)
        if not done:
            reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    finally:
        await sender.aclose()
        await reader.aclose()
    samples = sorted((first_s[name] - due_s[name]) * 1e6 for name in first_s)
    return {
        "rate": rate,
        "sent": count,
        "answered": len(ends),
        "lost": count - len(ends),
        "twice": sum(number > 1 for number in ends.values()),
        "p50_us": samples[len(samples) // 2] if samples else None,
        "p90_us": samples[int(len(samples) * 0.9)] if samples else None,
        "p99_us": samples[int(len(samples) * 0.99)] if samples else None,
    }


async def measure(rates: tuple[float, ...], seconds: float) -> list[dict[str, Any]]:
    """Run each rate on one pool, after a warm-up."""
    rows = []
    async with running_pool(MODEL, [["benchmarks.idle_worker"]]) as url:
        await drive(url, 200, 2, "warm")
        for rate in rates:
            row = await drive(url, rate, seconds, f"r{rate:.0f}")
            rows.append(row)
            click.echo(
                f"{rate:6,.0f} req/s: first byte p50 {row['p50_us']:.0f} us, "
                f"p90 {row['p90_us']:.0f}, p99 {row['p99_us']:.0f}; "
                f"{row['sent']} sent, {row['lost']} lost, {row['twice']} answered twice"
            )
    return rows


@click.command()
@click.option("--rate", "rates", multiple=True, default=(100.0, 1000.0, 5000.0), show_default=True)
@click.option("--seconds", default=5.0, show_default=True)
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the rows here too.")
def main(rates: tuple[float, ...], seconds: float, out: Path | None) -> None:
    """Print latency from XADD to the first byte of the answer, and losses, by arrival rate."""
    rows = uvloop.run(measure(rates, seconds))
    if out is not None:
        out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
