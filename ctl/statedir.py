"""The folder in which `up` keeps its server's data, its logs, its lock, and who its children are.

One `up` at a time owns a folder: it holds a file lock, which the kernel frees should it be killed.
Its children outlive such a death, so each is recorded as it starts, by pid and start time; the next
`up` ends those that still run before it starts its own: two servers must never write one AOF.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lmpoold.protocol.errors import ConfigError

END_TIMEOUT_S = 15.0
POLL_S = 0.05


def started_at(pid: int) -> str:
    """Return when a process began, in kernel ticks, or "" if it does not run or is a zombie.

    Together with the pid this names a process for good: pids are used again, ticks are not. Where
    there is no /proc the answer is always "", and nothing is ever taken for a child of ours.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    words = text.rpartition(")")[2].split()  # the name before may hold blanks
    return "" if words[0] in "ZX" else words[19]


class StateDir:
    """An owned state directory."""

    def __init__(self, path: Path) -> None:
        """Use `path`; see `owned`."""
        self.path = path
        self._children: dict[str, tuple[int, str]] = {}
        self._record = path / "children.json"

    def log(self, name: str) -> Path:
        """Return where a child's output goes."""
        return self.path / "logs" / f"{name}.log"

    def remember(self, name: str, pid: int) -> None:
        """Record a child that has just started."""
        self._children[name] = (pid, started_at(pid))
        self._record.write_text(json.dumps(self._children), encoding="utf-8")

    def forget_all(self) -> None:
        """Record that no child is left."""
        self._children = {}
        self._record.unlink(missing_ok=True)

    def end_leftovers(self) -> list[str]:
        """End the children of an `up` that was killed; returns their names."""
        try:
            recorded = json.loads(self._record.read_text(encoding="utf-8"))
            left = {name: (int(pid), str(since)) for name, (pid, since) in recorded.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return []  # no record, or one that was cut short by the death we clean up after

        def alive() -> dict[str, int]:
            return {n: pid for n, (pid, since) in left.items() if since == started_at(pid) != ""}

        names = list(alive())
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in alive().values():
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            deadline = time.monotonic() + END_TIMEOUT_S
            while alive() and time.monotonic() < deadline:
                time.sleep(POLL_S)
        self.forget_all()
        return names


@contextmanager
def owned(path: Path) -> Iterator[StateDir]:
    """Make and lock a state directory.

    Raises: ConfigError: another `up` owns it, or it cannot be made; the message says what to do.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        (path / "logs").mkdir(exist_ok=True)
        lock = open(path / "up.lock", "a+", encoding="ascii")  # noqa: SIM115  (closed below)
    except OSError as error:
        raise ConfigError(f"cannot use {path}: {error}; give another --state-dir") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise ConfigError(
                f"`lmpoolctl up` (pid {lock.read().strip() or 'unknown'}) already runs in {path}; "
                "stop it first, or give another --state-dir"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield StateDir(path)
