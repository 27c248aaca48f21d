"""Ingress to first byte: XADD to the first entry of the answer, through lmpoold and an idle worker.

Requests are sent at fixed times whatever the answers do (open loop), so a queue would show. The
sender and the reader are plain blocking threads: an event loop's timers are a millisecond coarse,
which is what is measured here. Latency counts from just before the XADD is written; how late the
sender itself was is printed beside it. The same load goes first over a bare relay (`relay.py`): the
same hops on the same server with nothing done in them, the floor on this machine at this hour.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import click
import hiredis
import redis
import uvloop

from benchmarks.idle_worker import MODEL
from benchmarks.processes import Processes, running_pool, running_processes
from lmpoold.protocol.keys import Keyspace

PATIENCE_S = 10.0
PROMPT = "Why is the sky blue?"


class Load:
    """One rate for one while, on a pool that runs."""

    def __init__(self, url: str, rate: float, seconds: float, label: str) -> None:
        # Bare connections: on two cores the load must not be a load.
        self._sender = redis.Redis.from_url(url, protocol=2).connection_pool.make_connection()
        self._reader = redis.Redis.from_url(url, protocol=2).connection_pool.make_connection()
        self._keys = Keyspace()
        self._rate = rate
        self._label = label
        self._client = f"bench-{label}"
        self.count = int(rate * seconds)
        self.sent_s: dict[bytes, float] = {}
        self.late_s: list[float] = []
        self.first_s: dict[bytes, float] = {}
        self.ends: dict[bytes, int] = {}
        self._until_s = time.perf_counter() + seconds + PATIENCE_S

    def run(self) -> dict[str, Any]:
        """Send, read until everything was answered or patience ends; returns the row."""
        reading = threading.Thread(target=self._read)
        reading.start()
        self._send()
        reading.join()
        self._sender.disconnect()
        self._reader.disconnect()
        samples = sorted((self.first_s[name] - self.sent_s[name]) * 1e6 for name in self.first_s)
        late = sorted(self.late_s)
        return {
            "rate": self._rate,
            "sent": self.count,
            "lost": self.count - len(self.ends),
            "twice": sum(number > 1 for number in self.ends.values()),
            "p50_us": samples[len(samples) // 2],
            "p90_us": samples[int(len(samples) * 0.9)],
            "p99_us": samples[int(len(samples) * 0.99)],
            "sender_late_p50_us": late[len(late) // 2] * 1e6,
        }

    def _send(self) -> None:
        began_s, sent, unread = time.perf_counter() + 0.2, 0, 0
        while sent < self.count:
            wait_s = began_s + sent / self._rate - time.perf_counter()
            if wait_s > 0:
                time.sleep(wait_s)
            commands = bytearray()
            now_s = time.perf_counter()
            while sent < self.count and began_s + sent / self._rate <= now_s:
                name = f"{self._label}-{sent}"
                self.late_s.append(now_s - began_s - sent / self._rate)
                self.sent_s[name.encode()] = now_s
                words = ("XADD", self._keys.ingress, "*", "id", name, "client", self._client)
                words += ("prompt", PROMPT, "max_tokens", "1")
                commands += hiredis.pack_command(words)  # type: ignore[arg-type]
                sent += 1
                unread += 1
            self._sender.send_packed_command([bytes(commands)])
            while unread and (unread > 100 or sent == self.count):
                self._sender.read_response()  # of commands sent long ago: no waiting
                unread -= 1

    def _read(self) -> None:
        stream, last = self._keys.out(self._client), b"0-0"
        while len(self.ends) < self.count and time.perf_counter() < self._until_s:
            self._reader.send_command("XREAD", "COUNT", 1000, "BLOCK", 500, "STREAMS", stream, last)
            reply: Any = self._reader.read_response()
            now_s = time.perf_counter()
            for entry, flat in reply[0][1] if reply else ():
                last = entry
                for name, ended in _answered(flat):
                    self.first_s.setdefault(name, now_s)
                    if ended:
                        self.ends[name] = self.ends.get(name, 0) + 1


def _answered(flat: list[bytes]) -> list[tuple[bytes, bool]]:
    """Return (id, whether it ended) of the outputs of an entry."""
    row = dict(zip(flat[::2], flat[1::2], strict=True))
    if b"step" not in row:
        return [(row[b"id"], b"finish_reason" in row or b"code" in row)]
    rows = json.loads(row[b"step"])
    return [(one["id"].encode(), "finish_reason" in one or "code" in one) for one in rows]


async def _rates(
    processes: Processes, what: str, rates: tuple[float, ...], seconds: float
) -> list[dict[str, Any]]:
    """Run each rate on what runs, after a warm-up."""
    rows = []
    await asyncio.to_thread(Load(processes.url, 200, 2, "warm").run)
    for rate in rates:
        before = processes.cpu_s()
        row = await asyncio.to_thread(Load(processes.url, rate, seconds, f"r{rate:.0f}").run)
        after = processes.cpu_s()
        row["what"] = what
        row["cpu_us"] = {
            name: (after[name] - before[name]) / row["sent"] * 1e6 for name in sorted(after)
        }
        rows.append(row)
        spent = ", ".join(f"{name} {each:.0f}" for name, each in row["cpu_us"].items())
        click.echo(
            f"{what:5} {rate:6,.0f} req/s: first byte p50 {row['p50_us']:.0f} us, "
            f"p90 {row['p90_us']:.0f}, p99 {row['p99_us']:.0f}; "
            f"sender late by {row['sender_late_p50_us']:.0f} us; "
            f"{row['sent']} sent, {row['lost']} lost, {row['twice']} answered twice; "
            f"CPU us a request: {spent}"
        )
    return rows


async def measure(rates: tuple[float, ...], seconds: float) -> list[dict[str, Any]]:
    """Run each rate over the bare relay, then over a pool."""
    async with running_processes() as processes:
        for half in ("pass", "answer"):
            processes.start(half, "benchmarks.relay", half)
        floor = await _rates(processes, "relay", rates, seconds)
    async with running_pool(MODEL, [["benchmarks.idle_worker"]]) as processes:
        rows = await _rates(processes, "pool", rates, seconds)
    for row, bare in zip(rows, floor, strict=True):
        row["of_relay_p50"] = row["p50_us"] / bare["p50_us"]
        click.echo(f"{row['rate']:6,.0f} req/s: p50 is {row['of_relay_p50']:.2f} of the relay's")
    return floor + rows


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
