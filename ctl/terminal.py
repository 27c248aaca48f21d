"""Standard output and error: what goes where, and how a command's coroutine is run."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from redis.exceptions import RedisError
from rich.console import Console

from ctl.render import Sheet, plain, terminal
from lmpoold.store.scripts import PoolStore

T = TypeVar("T")

PING_S = 1.0
LOST_S = 15.0
"""How long a server may be away, restarting say, before nobody waits for it any more."""


def console() -> Console:
    """Return a console on standard output, as it stands now."""
    return Console(highlight=False, soft_wrap=False)


def show(tables: Sequence[Sheet]) -> None:
    """Print tables: drawn on a terminal, plain aligned text in a pipe."""
    out = console()
    for at, table in enumerate(tables):
        if at:
            print()
        if out.is_terminal:
            out.print(terminal(table, out.width))
        else:
            print(plain(table))
    sys.stdout.flush()


def note(text: str) -> None:
    """Print a remark on standard error, so that standard output stays the answer alone."""
    print(text, file=sys.stderr, flush=True)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine; SIGTERM ends it as Ctrl-C does: by cancelling it.

    Raises: KeyboardInterrupt: it was interrupted, and has cleaned up.
    """

    async def guarded() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def while_served(store: PoolStore, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`; raises redis-py's error if the server is away for `LOST_S` meanwhile."""
    task = asyncio.create_task(work, name="served work")
    watch = asyncio.create_task(_until_lost(store), name="watch the server")
    either: set[asyncio.Task[Any]] = {task, watch}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            watch.result()
        return task.result()
    finally:
        for each in either:
            each.cancel()
        await asyncio.gather(*either, return_exceptions=True)


async def _until_lost(store: PoolStore) -> None:
    seen_s = time.monotonic()
    while True:
        await asyncio.sleep(PING_S)
        try:
            await store.redis.ping()
            seen_s = time.monotonic()
        except (RedisError, OSError):
            if time.monotonic() - seen_s > LOST_S:
                raise
