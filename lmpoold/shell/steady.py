"""Loops that outlive a lost server, and the signals that end them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from redis.exceptions import (
    AskError,
    ClusterDownError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as ServerLost
from redis.exceptions import TimeoutError as ServerSlow

from lmpoold.protocol.backoff import decide_wait
from lmpoold.protocol.errors import ConfigError
from lmpoold.store.connect import describe

log = logging.getLogger(__name__)
T = TypeVar("T")

RETRY_S = 0.2
"""Between two tries of a start."""

GC_YOUNG_OBJECTS = 20_000
"""Objects made since the last collection that start the next one; a request makes some hundreds."""

ELSEWHERE = (ReadOnlyError, AskError, TryAgainError, ClusterDownError)
"""The server is not the primary (MovedError and MasterDownError are among these)."""
LOST = (ServerLost, ServerSlow, OSError, *ELSEWHERE)
"""The server went away or is not the primary any more: it comes back, or another takes over."""


def is_lost(error: BaseException) -> bool:
    """Whether an error says that the server is away for a while, or has forgotten a group."""
    if isinstance(error, ResponseError):
        return isinstance(error, ELSEWHERE) or str(error).startswith(("NOGROUP", "UNBLOCKED"))
    return isinstance(error, LOST)


async def steadily(name: str, turn: Callable[[], Awaitable[None]], stop: asyncio.Event) -> None:
    """Run `turn` again and again until `stop`; wait and go on when the server is lost.

    Any other exception ends the loop, and by its task group the process: a loop that is broken
    must not look alive.
    """
    failures = 0
    while not stop.is_set():
        try:
            await turn()
            failures = 0
        except (*LOST, ResponseError) as error:
            if not is_lost(error):
                raise
            failures += 1
            wait_s = decide_wait(failures, random.random())
            if failures in (1, 10) or failures % 60 == 0:
                log.warning(
                    "server lost",
                    extra={"loop": name, "why": describe(error), "failures": failures},
                )
            await _wait(stop, wait_s)


async def persist(call: Callable[[], Awaitable[T]], stop: asyncio.Event, *, within_s: float) -> T:
    """Return what `call` returns, calling again while the server is lost: it may be starting.

    Raises: ConfigError: the server refused, or was lost until the time was over or `stop`.
    """
    until_s = time.monotonic() + within_s
    while True:
        try:
            return await call()
        except (RedisError, OSError) as error:
            if not is_lost(error) or time.monotonic() > until_s or stop.is_set():
                raise ConfigError(
                    f"the Redis server cannot be used: {describe(error)}; "
                    "start it, or give its URL with --redis-url"
                ) from None
        await pause(stop, RETRY_S)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return


async def pause(stop: asyncio.Event, seconds: float) -> None:
    """Wait for `seconds`, or until `stop`."""
    await _wait(stop, seconds)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage within, and never look again at what was made meanwhile.

    For large imports: looking for garbage among modules takes a fifth of their time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def settle_heap() -> None:
    """Leave what start-up made out of garbage collection, which else walks it all again and again.

    To be called when everything is loaded: a full collection over a tokenizer's and a model's
    objects stops a process for tens of milliseconds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS, 50, 100)


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM or SIGINT sets."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
