"""A device that hangs while its worker's process lives, at a signal."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

from workers.daemon.engine import Engine

HANG, GO_ON = signal.SIGUSR1, signal.SIGUSR2


def install() -> None:
    """Let no step end between HANG and GO_ON; call on the main thread."""
    device = threading.Event()
    device.set()
    signal.signal(HANG, lambda *_: device.clear())
    signal.signal(GO_ON, lambda *_: device.set())
    take_in = Engine._take_in

    def waiting(self) -> None:
        device.wait()
        take_in(self)

    Engine._take_in = waiting


def listens(pid: int) -> bool:
    """Whether a process has come so far that HANG does not end it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) & 1 << (HANG - 1) and int(caught, 16) & 1 << (GO_ON - 1))
