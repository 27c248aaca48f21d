"""What the HTTP gateway adds to an answer: beside the same requests by PoolClient, turn by turn.

One request at a time, over an idle worker and an open connection; the two ways take turns,
so that both see the same machine. `json` is a whole answer of one token; `stream` ends at the first
event of many. The client is a bare socket: it should weigh nothing.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click
import uvloop

from benchmarks.idle_worker import MODEL
from benchmarks.processes import Processes, running_pool
from lmpoold.client import PoolClient

PROMPT = "Why is the sky blue?"
STREAMED_TOKENS = 8
READY_S = 30.0


class Caller:
    """One HTTP connection that asks for completions."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def ask(self, **fields: Any) -> None:
        """Send a request."""
        body = json.dumps({"model": MODEL, "prompt": PROMPT, "temperature": 0, **fields}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def whole(self) -> None:
        """Read an answer that has a length."""
        head = await self._head()
        length = head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]
        await self._reader.readexactly(int(length))

    async def first(self) -> None:
        """Read a stream up to its first event."""
        await self._head()
        await self._reader.readuntil(b"\n\n")

    async def rest(self) -> None:
        """Read the stream to its end."""
        await self._reader.readuntil(b"data: [DONE]\n\n\r\n0\r\n\r\n")

    async def _head(self) -> bytes:
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"the gateway refused: {head.decode('latin-1').splitlines()[0]}")
        return head


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


async def _hop(caller: Caller, *, tokens: int, stream: bool) -> float:
    began_s = time.perf_counter()
    caller.ask(max_tokens=tokens, stream=stream)
    await (caller.first() if stream else caller.whole())
    took_s = time.perf_counter() - began_s
    if stream:
        await caller.rest()
    return took_s


def _row(what: str, direct_s: list[float], hop_s: list[float]) -> dict[str, Any]:
    return {
        "what": what,
        "requests": len(direct_s),
        "direct_p50_us": median(direct_s) * 1e6,
        "gateway_p50_us": median(hop_s) * 1e6,
        "added_p50_us": (median(hop_s) - median(direct_s)) * 1e6,
        "direct_p90_us": quantiles(direct_s, n=10)[-1] * 1e6,
        "gateway_p90_us": quantiles(hop_s, n=10)[-1] * 1e6,
    }


async def measure(requests: int) -> list[dict[str, Any]]:
    """Print and return a row for whole answers and one for first events."""
    rows = []
    async with running_pool(MODEL, [["benchmarks.idle_worker"]]) as processes:
        port = await _port(processes)
        caller = Caller(*await asyncio.open_connection("127.0.0.1", port))
        async with PoolClient(processes.url) as pool:
            for what, tokens, stream in (("json", 1, False), ("stream", STREAMED_TOKENS, True)):
                for _ in range(50):
                    await _direct(pool, tokens=tokens, stream=stream)
                    await _hop(caller, tokens=tokens, stream=stream)
                before = processes.cpu_s()["gateway"]
                direct_s, hop_s = [], []
                for _ in range(requests):
                    direct_s.append(await _direct(pool, tokens=tokens, stream=stream))
                    hop_s.append(await _hop(caller, tokens=tokens, stream=stream))
                row = _row(what, direct_s, hop_s)
                row["gateway_cpu_us"] = (processes.cpu_s()["gateway"] - before) / requests * 1e6
                rows.append(row)
                click.echo(
                    f"{what:6} direct p50 {row['direct_p50_us']:.0f} us, "
                    f"gateway {row['gateway_p50_us']:.0f}: "
                    f"added {row['added_p50_us']:.0f}; p90 {row['direct_p90_us']:.0f}, "
                    f"{row['gateway_p90_us']:.0f}; "
                    f"gateway CPU {row['gateway_cpu_us']:.0f} us a request"
                )
    return rows


@click.command()
@click.option("--requests", default=1000, show_default=True, help="Each way, of each kind.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the rows here too.")
def main(requests: int, out: Path | None) -> None:
    """Print what the gateway adds to a whole answer, and to the first event of a stream."""
    rows = uvloop.run(measure(requests))
    if out is not None:
        out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
