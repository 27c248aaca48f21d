"""Another client of the server: a process that pings and notes how long each answer took.

A plain socket and nothing else, so that what is measured is the server and not the client. It waits
for the server, pings until its input closes, then prints its figures as one JSON line; a line of
input prints them too, and begins anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from typing import Any

from benchmarks.micro.route import percentile

EVERY_S = 0.001
PING = b"*1\r\n$4\r\nPING\r\n"
LOOK_S = 0.4
"""A process that goes first is stopped for a moment when it has run for 0.95 s in one second."""


def first_of_all(pid: int) -> None:
    """Let a process go first, where that is allowed: as if it had a core of its own.

    With fewer cores than busy processes it would be kept waiting by them for several times 4 ms,
    whatever the server is asked for.
    """
    with contextlib.suppress(PermissionError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setscheduler(int(thread), os.SCHED_FIFO, os.sched_param(1))


def kept_waiting_ms(beside: int, looks: int) -> float:
    """Return the longest time that this machine keeps a process from running.

    The process goes first, as the server does, and only reads the clock; `beside` others compute.
    """
    burn = "while True: bytes(bytearray(200_000))"
    others = [subprocess.Popen([sys.executable, "-c", burn]) for _ in range(beside)]
    try:
        seen = [
            subprocess.run(
                [sys.executable, "-c", _CLOCK], capture_output=True, text=True, check=True
            )
            for _ in range(looks)
        ]
    finally:
        for other in others:
            other.kill()
            other.wait()
    return max(float(one.stdout) for one in seen)


_CLOCK = f"""
import contextlib, os, time
with contextlib.suppress(PermissionError):
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
before = time.perf_counter()
until, longest = before + {LOOK_S}, 0.0
while before < until:
    now = time.perf_counter()
    longest, before = max(longest, now - before), now
print(longest * 1000)
"""


def figures(taken_s: list[float]) -> dict[str, Any]:
    """Return what the pings took, in microseconds."""
    return {
        "pings": len(taken_s),
        "p50_us": percentile(taken_s, 0.5),
        "p99_us": percentile(taken_s, 0.99),
        "max_us": percentile(taken_s, 1.0),
    }


def _connected(path: str) -> socket.socket:
    """Return a connection as soon as the server listens."""
    while True:
        link = socket.socket(socket.AF_UNIX)
        try:
            link.connect(path)
            return link
        except OSError:
            link.close()
            time.sleep(0.005)


def watch(path: str) -> None:
    """Ping the server at a socket's path; figures go out at each line of input and at its end."""
    first_of_all(os.getpid())
    print("waiting", flush=True)
    with _connected(path) as link:
        taken_s: list[float] = []
        while True:
            start_s = time.perf_counter()
            link.sendall(PING)
            if not link.recv(64):
                return
            taken_s.append(time.perf_counter() - start_s)
            if select.select([sys.stdin], [], [], EVERY_S)[0]:
                more = sys.stdin.readline()
                print(json.dumps(figures(taken_s)), flush=True)
                taken_s = []
                if not more:
                    return


if __name__ == "__main__":
    watch(sys.argv[1])
