"""Starts workers by fork from a process that has imported everything: what costs seconds else.

One JSON line in, {"argv", "log", "fault"}; one line out, the pid. The children are processes of
their own in every respect that a kill, a stop or a lost server shows.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from lmpoold import __main__ as daemon
from tests.e2e import faulty_worker
from workers import __main__ as worker
from workers.daemon import build

PROGRAMS = {"workers": worker.main, "lmpoold": daemon.main}


def child(program: str, argv: list[str], log: str, fault: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((null, 0), (out, 1), (out, 2)):
        os.dup2(descriptor, number)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if fault:
        faulty_worker.install(faulty_worker.Fault.read(fault))
    sys.argv = [program, *argv]
    PROGRAMS[program]()


def main() -> None:
    assert build  # imported for what it brings along
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended children leave nothing behind
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                child(order["program"], order["argv"], order["log"], order["fault"])
            finally:
                os._exit(1)
        print(pid, flush=True)


class Child:
    """A process that the forge has started."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def runs(self) -> bool:
        """Whether it has not ended."""
        return Path(f"/proc/{self.pid}").exists()

    def kill(self) -> None:
        if self.runs():
            os.kill(self.pid, signal.SIGKILL)


class Forge:
    """The process that forks, and the children it has started."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.forge"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )

    def start(self, program: str, *argv: str, log: Path, fault: str = "") -> Child:
        order = {"program": program, "argv": argv, "log": str(log), "fault": fault}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return Child(int(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


if __name__ == "__main__":
    main()
