"""Starts workers and lmpoolds by fork from a process that has imported everything already.

A worker's imports cost ten processor seconds, its start without them less than one. One JSON line
in, {"program", "argv", "log", "fault"}; one line out, the pid; or {"ended": pid}, and its exit code
or null. The children are processes of their own in every respect that a kill, a stop or a lost
server shows.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from lmpoold import __main__ as daemon
from tests.e2e import faulty_worker
from workers import __main__ as worker

PROGRAMS = {"workers": worker.main, "lmpoold": daemon.main}
IMPORTED_LATER = (
    "lmpoold.daemon.serve",
    "torch.distributed",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen3.modeling_qwen3",
    "workers.daemon.build",
    "workers.model.device",
    "workers.transport.gloo",
)
"""What the programs import when they need it."""
ENVIRON = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
"""One thread for OpenMP, as a process that has more cannot be forked."""


def child(program: str, argv: list[str], log: str, fault: str) -> int:
    """Become a program; returns its exit code."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((null, 0), (out, 1), (out, 2)):
        os.dup2(descriptor, number)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if fault:
        faulty_worker.install(faulty_worker.Fault.read(fault))
    sys.argv = [program, *argv]
    try:
        PROGRAMS[program]()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def main() -> None:
    for name in IMPORTED_LATER:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else the first collection of each child copies all of it
    codes: dict[int, int] = {}

    def reap(*_: object) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            codes[pid] = os.waitstatus_to_exitcode(status)

    signal.signal(signal.SIGCHLD, reap)
    for line in sys.stdin:
        order = json.loads(line)
        if "ended" in order:
            print(json.dumps(codes.get(order["ended"])), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = child(**order)
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(pid, flush=True)


class Child:
    """A process that the forge has started; what callers of `Popen` use of one."""

    def __init__(self, forge: Forge, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._forge = forge

    def poll(self) -> int | None:
        """Return its exit code, minus the signal that ended it, or None while it runs."""
        if self.returncode is None:
            self.returncode = self._forge.ended(self.pid)
        return self.returncode

    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.poll() is None

    def wait(self, timeout: float = 60.0) -> int:
        """Wait for its end; TimeoutExpired if it does not come."""
        until_s = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > until_s:
                raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        if self.runs():
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forge:
    """The process that forks."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.forge"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRON,
        )
        self._asking = threading.Lock()

    def start(self, program: str, *argv: str, log: Path, fault: str = "") -> Child:
        order = {"program": program, "argv": argv, "log": str(log), "fault": fault}
        return Child(self, int(self._ask(order)))

    def ended(self, pid: int) -> int | None:
        """Return the exit code of a child, or None while it runs."""
        return json.loads(self._ask({"ended": pid}))

    def _ask(self, order: dict[str, object]) -> str:
        with self._asking:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return self._process.stdout.readline()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@functools.cache
def forge() -> Forge:
    """The forge of this run of the tests; it begins to import when it is first asked for."""
    return Forge()


def spawn(argv: tuple[str, ...], log: Path) -> Child | subprocess.Popen[bytes]:
    """Start `python -m *argv`: by fork what the forge knows, anything else as it is."""
    program, *words = argv
    if program in PROGRAMS:
        return forge().start(program, *words, log=log)
    with log.open("wb") as out:
        return subprocess.Popen([sys.executable, "-m", *argv], stdout=out, stderr=out)


def put_out() -> None:
    """End the forge, if it was used."""
    if forge.cache_info().currsize:
        forge().close()
        forge.cache_clear()


if __name__ == "__main__":
    main()
