"""The processes of a pool under measurement: server, lmpoold, workers; ended whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Protocol

import psutil

from lmpoold.protocol.keys import Keyspace
from lmpoold.store.connect import open_redis
from lmpoold.store.embedded import EmbeddedServer
from lmpoold.store.scripts import PoolStore

READY_S = 240.0
PAIR_MODELS = {"cpu": "random:tiny-qwen3", "cuda": "random:qwen3-0.6b"}
"""What two workers run between which blocks are moved, by device."""


class Started(Protocol):
    """What is used of a process; `subprocess.Popen` has it."""

    @property
    def pid(self) -> int:
        """Its number."""
        ...

    def poll(self) -> int | None:
        """Return its exit code, or None while it runs."""
        ...

    def wait(self, timeout: float) -> int:
        """Wait for its end; TimeoutExpired after `timeout` seconds."""
        ...

    def send_signal(self, number: int, /) -> None:
        """Send a signal."""
        ...

    def terminate(self) -> None:
        """Send SIGTERM."""
        ...

    def kill(self) -> None:
        """Send SIGKILL."""
        ...


Spawn = Callable[[tuple[str, ...], Path], Started]
"""Starts `python -m *argv` with a log."""


def spawn(argv: tuple[str, ...], log: Path) -> Started:
    """Start `python -m *argv`, its output in `log`."""
    with log.open("wb") as out:
        return subprocess.Popen((sys.executable, "-m", *argv), stdout=out, stderr=out)


class Processes:
    """A server and the processes around it, in a folder of their own.

    Attributes:
        url: the server's.
    """

    def __init__(self, folder: Path, server: EmbeddedServer, spawn: Spawn) -> None:
        self.url = server.url
        self.folder = folder
        self._server = server
        self._spawn = spawn
        self.children: dict[str, Started] = {}

    def start(self, name: str, *argv: str) -> None:
        """Start `python -m *argv --redis-url URL`."""
        log = self.folder / f"{name}.log"
        self.children[name] = self._spawn((*argv, "--redis-url", self.url), log)

    def check(self) -> None:
        """Raise SystemExit with the logs if a process has ended."""
        if any(child.poll() is not None for child in self.children.values()):
            logs = "\n".join(log.read_text()[-2000:] for log in self.folder.glob("*.log"))
            raise SystemExit(f"a process under measurement ended:\n{logs}")

    def cpu_s(self) -> dict[str, float]:
        """Return the CPU seconds of each process so far, the server's as `server`."""
        assert self._server.process is not None
        pids = {name: child.pid for name, child in self.children.items()}
        pids["server"] = self._server.process.pid
        times = {name: psutil.Process(pid).cpu_times() for name, pid in pids.items()}
        return {name: spent.user + spent.system for name, spent in times.items()}

    def end(self) -> None:
        """End every child, by SIGKILL if SIGTERM does not do."""
        for child in reversed(self.children.values()):
            child.terminate()
        for child in reversed(self.children.values()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(15)
            if child.poll() is None:
                child.kill()
                child.wait(15)


@contextlib.asynccontextmanager
async def running_processes(spawn: Spawn = spawn) -> AsyncIterator[Processes]:
    """Yield a fresh server with no processes yet; all that `spawn` starts end with it."""
    with tempfile.TemporaryDirectory(prefix="lmpool-") as folder:
        server = EmbeddedServer(Path(folder) / "s")
        await server.start()
        processes = Processes(Path(folder), server, spawn)
        try:
            yield processes
        finally:
            processes.end()
            server.stop()


def pair_of_workers(
    device: str, transport: str, blocks: int, block_tokens: int, longest: int
) -> tuple[str, list[list[str]], tuple[str, ...]]:
    """Return model, workers and daemon options of a pool of two, as `running_pool` takes them.

    Args:
        device: `cpu` or `cuda`; then rank k takes cuda:k.
        transport: as workers take it.
        blocks: of each worker.
        block_tokens: tokens a block.
        longest: tokens of the longest sequence.
    """
    model = PAIR_MODELS[device]
    workers = [
        [
            *("workers", "--model", model, "--rank", str(rank), "--blocks", str(blocks)),
            *("--threads", "1", "--transport", transport),
            *("--device", f"cuda:{rank}" if device == "cuda" else "cpu"),
        ]
        for rank in (0, 1)
    ]
    dtype = "float32" if device == "cpu" else "bfloat16"
    options = ("--block-size", str(block_tokens), "--dtype", dtype, "--max-model-len", str(longest))
    return model, workers, options


@contextlib.asynccontextmanager
async def running_pool(
    model: str,
    workers: Sequence[Sequence[str]],
    *,
    daemon_options: Sequence[str] = (),
    daemons: int = 1,
    spawn: Spawn = spawn,
) -> AsyncIterator[Processes]:
    """Yield a pool's processes once every worker is up.

    Args:
        model: as lmpoold takes it.
        workers: argv behind `python -m` of each worker, without its --redis-url.
        daemon_options: more options for lmpoold.
        daemons: how many lmpoold.
        spawn: starts a program.
    """
    async with running_processes(spawn) as processes:
        for number in range(daemons):
            name = f"lmpoold{number or ''}"
            processes.start(name, "lmpoold", "--model", model, *daemon_options)
        for number, argv in enumerate(workers):
            processes.start(f"worker{number}", *argv)
        await _until_up(processes, len(workers))
        yield processes


async def _until_up(processes: Processes, count: int) -> None:
    redis = open_redis(processes.url)
    store = PoolStore(redis, Keyspace())
    try:
        async with asyncio.timeout(READY_S):
            while sum(row.state == "up" for row in await store.ranks()) < count:
                processes.check()
                await asyncio.sleep(0.1)
    finally:
        await redis.aclose()
