"""The processes of a pool under measurement: server, lmpoold, workers; ended whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from lmpoold.protocol.keys import Keyspace
from lmpoold.store.connect import open_redis
from lmpoold.store.embedded import EmbeddedServer
from lmpoold.store.scripts import PoolStore

READY_S = 120.0


@contextlib.asynccontextmanager
async def running_pool(
    model: str, workers: Sequence[Sequence[str]], *, daemon_options: Sequence[str] = ()
) -> AsyncIterator[str]:
    """Yield the server's URL once every worker is up.

    Args:
        model: as lmpoold takes it.
        workers: argv behind `python -m` of each worker, without its --redis-url.
        daemon_options: more options for lmpoold.
    """
    children: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="lmpool-") as folder:
        server = EmbeddedServer(Path(folder) / "s")
        await server.start()

        def start(name: str, *argv: str) -> None:
            with (Path(folder) / f"{name}.log").open("wb") as log:
                argv = (sys.executable, "-m", *argv, "--redis-url", server.url)
                children.append(subprocess.Popen(argv, stdout=log, stderr=log))

        try:
            start("lmpoold", "lmpoold", "--model", model, *daemon_options)
            for number, argv in enumerate(workers):
                start(f"worker{number}", *argv)
            await _until_up(server.url, len(workers), children, Path(folder))
            yield server.url
        finally:
            for child in reversed(children):
                child.terminate()
            for child in reversed(children):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(15)
                if child.poll() is None:
                    child.kill()
                    child.wait()
            server.stop()


async def _until_up(
    url: str, count: int, children: Sequence[subprocess.Popen[bytes]], folder: Path
) -> None:
    redis = open_redis(url)
    store = PoolStore(redis, Keyspace())
    try:
        async with asyncio.timeout(READY_S):
            while sum(row.state == "up" for row in await store.ranks()) < count:
                if any(child.poll() is not None for child in children):
                    raise SystemExit(f"a process of the pool ended:\n{_logs(folder)}")
                await asyncio.sleep(0.1)
    finally:
        await redis.aclose()


def _logs(folder: Path) -> str:
    return "\n".join(log.read_text()[-2000:] for log in folder.glob("*.log"))
