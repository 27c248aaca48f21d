"""lmpoolctl as a user runs it: a process of its own, and `up` as one that goes on."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.house.tree import ROOT

MODEL = "random:tiny-qwen3"
COMMAND = (sys.executable, "-m", "ctl")
WITHIN_S = 50.0


def environ(**changes):
    """The test's environment without anything that names a pool."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("LMPOOL_") and name not in ("REDIS_URL", "COLUMNS")
    }
    return {**kept, **changes}


def lmpoolctl(*words, stdin=b"", within_s=30.0, **changes):
    """Run one command to its end; stdout and stderr come back as text."""
    done = subprocess.run(
        [*COMMAND, *map(str, words)],
        input=stdin,
        capture_output=True,
        cwd=ROOT,
        env=environ(**changes),
        timeout=within_s,
        check=False,
    )
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    return done


def runs(pid):
    """Whether a process is there and not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def until(predicate, what, within_s=WITHIN_S):
    """Wait until `predicate()` is true and return what it gave."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        if found := predicate():
            return found
        select.select([], [], [], 0.02)
    raise AssertionError(f"not within {within_s:g} s: {what}")


class Running:
    """A command that goes on, its output in a file."""

    def __init__(self, folder, *words, **changes):
        self.output = Path(folder) / f"{words[0]}-{time.monotonic_ns()}.txt"
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [*COMMAND, *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=ROOT,
                env=environ(**changes),
            )

    @property
    def text(self):
        return self.output.read_text(encoding="utf-8", errors="replace")

    def says(self, pattern, within_s=WITHIN_S):
        """Wait for output that matches; fails with all of it if the command ends before."""

        def found():
            match = re.search(pattern, self.text)
            assert match or self.process.poll() is None, self.text
            return match

        return until(found, f"{pattern} in {self.text}", within_s)

    def ends(self, number=None):
        """Send a signal, if any, and return the exit code."""
        if number is not None:
            self.process.send_signal(number)
        return self.process.wait(WITHIN_S)

    def end_for_sure(self):
        """End it in order if it still runs, so that no test leaves a process behind."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(WITHIN_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Up(Running):
    """`lmpoolctl up` in a state directory, ready."""

    def __init__(self, folder, state, *more, workers=1, within_s=WITHIN_S):
        options = ("--model", MODEL, "--blocks", 256, "--threads", 1, "--workers", workers)
        super().__init__(folder, "up", *options, "--state-dir", state, *more)
        self.state = Path(state)
        try:
            self.says(r"ready: ", within_s)
        except BaseException:
            self.end_for_sure()
            raise

    def children(self):
        """Name -> pid of the server, lmpoold and the workers, as the kernel has them."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                words = (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            except OSError:
                continue
            if any(str(self.state) in word for word in words) and runs(entry.name):
                found |= {name: int(entry.name) for name in _names(words)}
        return found


def _names(words):
    if words[0].endswith(("valkey-server", "redis-server")) or "valkey-server" in words[0]:
        return ["server"]
    if "-m" not in words:
        return []
    module = words[words.index("-m") + 1]
    if module == "workers":
        return [f"worker-{words[words.index('--rank') + 1]}"]
    return [module.rpartition(".")[2]] if module in ("lmpoold", "lmpoold.gateway") else []
