"""Brings a pool up on this machine, and takes it down again.

The order is the order of need: model, server, lmpoolds, workers. It goes down in the reverse order,
so that a worker can still hand its requests back to the server when it stops.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from redis.exceptions import RedisError

from ctl.plan import PoolPlan, check_installed, child_environ
from ctl.progress import Progressing, read_boot
from ctl.statedir import StateDir, owned
from ctl.supervise import FIRST_DELAY_S, Child, Program, Supervisor, describe_exit
from ctl.target import server_errors
from lmpoold.protocol.errors import ConfigError, LMPoolError
from lmpoold.protocol.views import RankRow
from lmpoold.store.connect import check_server, open_redis
from lmpoold.store.embedded import EmbeddedServer
from lmpoold.store.scripts import PoolStore

T = TypeVar("T")

POLL_S = 0.1
WATCH_S = 0.5
READY_TIMEOUT_S = 120.0


class LocalPool:
    """A pool that runs on this machine, all of it up."""

    def __init__(self, url: str, supervisor: Supervisor) -> None:
        """See `local_pool`."""
        self.url = url
        self._supervisor = supervisor

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` while the pool lives; raises what ends the pool."""
        return await self._supervisor.guard(work)


@asynccontextmanager
async def local_pool(plan: PoolPlan, show: Progressing) -> AsyncIterator[LocalPool]:
    """Bring a pool up; the body runs once every rank is up, and the pool is down behind it.

    Raises:
        ConfigError: a setting is wrong, the server is unsafe, or another `up` owns the folder.
        LMPoolError: a program did not come up.
        Unreachable: the server that was named does not answer.
    """
    check_installed(gateway=plan.gateway is not None)
    _ = plan.target.keys  # a pool name that cannot be one is refused before anything starts
    with owned(plan.target.state_dir) as folder:
        environ = child_environ(os.environ)
        supervisor = Supervisor(folder, show.say, environ)
        server = None if plan.target.redis_url else plan.target.embedded()
        with hurry_on_repeat(supervisor):
            try:
                if names := await asyncio.to_thread(folder.end_leftovers):
                    show.say(f"ended {', '.join(names)}, left over from an `up` that was killed")
                if program := plan.prepare():
                    await _prepare(program, environ)
                if server:
                    await _start_server(server, folder)
                    supervisor.own(_keep_server(server, folder, show), "keep server")
                url = server.url if server else str(plan.target.redis_url)
                await _check(url)
                await supervisor.guard(_bring_up(plan, url, supervisor, show))
                yield LocalPool(url, supervisor)
            finally:
                await supervisor.stop()
                if server:
                    await asyncio.to_thread(server.stop)
                folder.forget_all()


@contextmanager
def hurry_on_repeat(supervisor: Supervisor) -> Iterator[None]:
    """Cancel the current task on the first SIGINT, SIGTERM or SIGHUP; kill children on a second."""
    task, loop, seen = asyncio.current_task(), asyncio.get_running_loop(), []
    assert task is not None

    def interrupted() -> None:
        seen.append(True)
        if len(seen) == 1:
            task.cancel()
        else:
            supervisor.hurry()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, interrupted)
    yield


async def _prepare(program: Program, environ: dict[str, str]) -> None:
    """Have the model fetched or converted; its progress is its own business."""
    process = await asyncio.create_subprocess_exec(
        *program.argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        env=environ,
        start_new_session=True,
    )
    try:
        code = await process.wait()
    except asyncio.CancelledError:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        raise
    if code == 2:
        raise ConfigError("the model cannot be had; see above")
    if code:
        raise LMPoolError(f"preparing the model failed ({describe_exit(code)}); see above")


async def _start_server(server: EmbeddedServer, folder: StateDir) -> None:
    await server.start()
    assert server.process is not None
    folder.remember("server", server.process.pid)


async def _keep_server(server: EmbeddedServer, folder: StateDir, show: Progressing) -> None:
    """Start the server again if it dies: its AOF has what it knew."""
    while True:
        await asyncio.sleep(WATCH_S)
        code = server.process.poll() if server.process else None
        if code is not None:
            show.say(f"the server ended ({describe_exit(code)}): starting it again")
            await asyncio.sleep(FIRST_DELAY_S)
            await _start_server(server, folder)


async def _check(url: str) -> None:
    with server_errors(url):
        redis = open_redis(url)
        try:
            await check_server(redis)
        finally:
            await redis.aclose()


async def _bring_up(plan: PoolPlan, url: str, supervisor: Supervisor, show: Progressing) -> None:
    await _until_ready(supervisor.start(plan.lmpoold_programs(url)))
    workers = supervisor.start(plan.worker_programs(url))
    redis = open_redis(url)
    try:
        store = PoolStore(redis, plan.target.keys)
        with show, server_errors(url):
            while True:
                if await _all_up(store, workers, show):
                    break
                await asyncio.sleep(POLL_S)
    finally:
        await redis.aclose()
    await _until_ready(supervisor.start(plan.gateway_programs(url)))
    supervisor.settled = True
    supervisor.own(_watch(plan, url, workers, show), "watch the ranks")


async def _until_ready(children: list[Child]) -> None:
    """Wait until each child has logged that it is ready."""
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while waiting := [child for child in children if not child.logged("ready")]:
        if time.monotonic() > deadline_s:
            name, log = waiting[0].program.name, waiting[0].log
            raise LMPoolError(
                f"{name} was not ready within {READY_TIMEOUT_S:g} s; its log is {log}"
            )
        await asyncio.sleep(POLL_S)


def _serving(row: RankRow | None, child: Child) -> bool:
    """Return whether a rank is up in the hands of this very child, not of a former one."""
    return row is not None and row.state in ("up", "drain") and row.pid == str(child.pid)


async def _all_up(store: PoolStore, workers: list[Child], show: Progressing) -> bool:
    rows = {row.rank: row for row in await store.ranks()}
    boots: Any = await store.redis.mget([store.keys.boot(rank) for rank in range(len(workers))])
    stages = {}
    for rank, child in enumerate(workers):
        stage = ("starting", 0, 0)
        if _serving(rows.get(rank), child):
            stage = ("up", 1, 1)
        elif boots[rank]:
            stage = read_boot(boots[rank].decode())
        stages[child.program.name] = stage
    show.update(stages)
    return all(stage == "up" for stage, _, _ in stages.values())


async def _watch(plan: PoolPlan, url: str, workers: list[Child], show: Progressing) -> None:
    """Say when a worker that was started again serves its rank again."""
    redis = open_redis(url)
    store = PoolStore(redis, plan.target.keys)
    known = [child.pid for child in workers]
    try:
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                rows = {row.rank: row for row in await store.ranks()}
            except RedisError:
                continue  # the server is being started again, or will come back
            for rank, child in enumerate(workers):
                if child.pid != known[rank] and _serving(rows.get(rank), child):
                    known[rank] = child.pid
                    show.say(f"{child.program.name} is up again")
    finally:
        await redis.aclose()
