"""What a machine itself does to a process: others that run on it, and the host underneath."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import psutil

LOOK_S = 0.4
"""A process that goes first is stopped for a moment when it has run for 0.95 s in one second."""


def first_of_all(pid: int) -> None:
    """Let a process go first, where that is allowed: as if it had a core of its own.

    With fewer cores than busy processes it would be kept waiting by them for several times 4 ms,
    whatever the server is asked for.
    """
    with contextlib.suppress(OSError, AttributeError):  # not permitted, or not Linux
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
import os, time
from benchmarks.scale.machine import first_of_all
first_of_all(os.getpid())
before = time.perf_counter()
until, longest = before + {LOOK_S}, 0.0
while before < until:
    now = time.perf_counter()
    longest, before = max(longest, now - before), now
print(longest * 1000)
"""


def host_took_s() -> float:
    """Return the seconds that a virtual machine's host has taken of its processors so far."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))
