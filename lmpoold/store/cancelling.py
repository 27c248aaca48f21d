"""Connections of redis-py on which a task can be cancelled while a command is written.

redis-py writes under `asyncio.wait_for`, which up to Python 3.11 forgets that its task was
cancelled when the write ended in the same turn of the loop. A write nearly always does: Ctrl-C, a
time limit or the end of a task that met one was lost, and who waited for its end waited for ever.
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection


class _Cancellable:
    """Goes before a connection class of redis-py."""

    async def send_packed_command(self, *args: Any, **options: Any) -> None:
        """Write a command; one whose task was cancelled meanwhile ends the connection."""
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        try:
            # A signal may have cancelled it while it ran: it hears of that here.
            await asyncio.sleep(0)
            await super().send_packed_command(*args, **options)  # type: ignore[misc]
            if task.cancelling() > before:
                raise asyncio.CancelledError
        except asyncio.CancelledError:
            # Replies to what was written before may be on their way: nobody else shall read them.
            await self.disconnect(nowait=True)  # type: ignore[attr-defined]
            raise


@cache
def _mixed(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    return type(f"Cancellable{kind.__name__}", (_Cancellable, kind), {})


def cancellable(redis: Redis) -> Redis:
    """Return the same client, whose connections from now on hear of a cancelled task."""
    pool = redis.connection_pool
    pool.connection_class = _mixed(pool.connection_class)  # type: ignore[arg-type]
    return redis
