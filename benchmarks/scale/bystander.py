"""Another client of the server: a process that pings and notes how long each answer took.

A plain socket and nothing else, so that what is measured is the server and not the client. It waits
for the server, pings until its input closes, then prints its figures as one JSON line; a line of
input prints them too, and begins anew.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from typing import Any

from benchmarks.micro.route import percentile
from benchmarks.scale.machine import first_of_all

EVERY_S = 0.001
PING = b"*1\r\n$4\r\nPING\r\n"


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
