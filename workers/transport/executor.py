"""Threads that do a transport's blocking work for the event loop.

They are daemons of our own and not the loop's executor: a communicator that waits for a dead peer
may never return, and such a thread must neither fill the executor nor hold up the exit.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class SerialExecutor:
    """One thread that does what it is given, in order."""

    def __init__(self, name: str) -> None:
        """Start it."""
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def run(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Do `job` after those before it; its result or error comes through the future."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put((job, future))
        return future

    def end(self) -> None:
        """Let the thread end after its present job; never waits for it."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, future = item
            result, failure = None, None
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001  (whoever awaits the future has to see it)
                failure = error
            try:
                self._loop.call_soon_threadsafe(_settle, future, result, failure)
            except RuntimeError:
                return  # the loop is over, and nobody waits


def _settle(future: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
    if future.done():
        return  # given up on
    if failure is None:
        future.set_result(result)
    else:
        future.set_exception(failure)
        future.exception()  # seen: a job that nobody waits for any more may fail in silence


def start(name: str, job: Callable[[], T]) -> asyncio.Future[T]:
    """Do one job on a thread of its own."""
    executor = SerialExecutor(name)
    future = executor.run(job)
    executor.end()
    return future
