"""One HTTP request as requests to the pool: submitted together, read together, withdrawn together.

A caller may name its request. The name is used as the pool's id, so that logs, `explain` and the
caller speak of the same thing; if it was used before, a few letters are put behind it, for a proxy
that tries again must be answered.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from redis.exceptions import RedisError

from lmpoold.client import PoolClient
from lmpoold.protocol.errors import Conflict, LMPoolError
from lmpoold.protocol.messages import Output

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
MARK = ":"
"""Stands between a request's name and what is put behind it; no caller's name holds one."""

Numbered = tuple[int, Output]


def usable_name(header: str) -> str:
    """Return the id to ask under: the caller's if it can be one, else a new one."""
    return header if _NAME.fullmatch(header) else os.urandom(16).hex()


class Asked:
    """A request that the pool has taken.

    Attributes:
        name: the pool's id of it; of several choices, what their ids begin with.
    """

    def __init__(self, name: str, ids: Sequence[str], pool: PoolClient) -> None:
        self.name = name
        self._ids = ids
        self._pool = pool

    def outputs(self) -> AsyncGenerator[Numbered, None]:
        """Yield outputs with the index of their choice, until every choice has ended.

        Raises: what `PoolClient.stream` raises; the other choices end with the first that fails.
        """
        return self._stream(0) if len(self._ids) == 1 else self._merged()

    async def _merged(self) -> AsyncGenerator[Numbered, None]:
        queue: asyncio.Queue[Numbered | Exception | None] = asyncio.Queue()
        pumps = [
            asyncio.create_task(self._pump(index, queue), name=f"choice {name}")
            for index, name in enumerate(self._ids)
        ]
        try:
            running = len(pumps)
            while running:
                match await queue.get():
                    case None:
                        running -= 1
                    case Exception() as error:
                        raise error
                    case numbered:
                        yield numbered
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _stream(self, index: int) -> AsyncGenerator[Numbered, None]:
        async with aclosing(self._pool.stream(self._ids[index])) as stream:
            async for output in stream:
                yield index, output

    async def _pump(self, index: int, queue: asyncio.Queue[Numbered | Exception | None]) -> None:
        try:
            async with aclosing(self._stream(index)) as stream:
                async for numbered in stream:
                    queue.put_nowait(numbered)
        except (LMPoolError, RedisError, OSError) as error:
            queue.put_nowait(error)
        else:
            queue.put_nowait(None)


class Asker:
    """Submits calls for many callers over one client of the pool."""

    def __init__(self, pool: PoolClient) -> None:
        """Ask through `pool`, which the caller opens and closes."""
        self._pool = pool
        self._live: set[str] = set()

    @asynccontextmanager
    async def asked(self, name: str, choices: Sequence[Mapping[str, Any]]) -> AsyncIterator[Asked]:
        """Submit all choices; what has not ended when the body is left is cancelled.

        Args:
            name: from `usable_name`.
            choices: the fields of each, as `PoolClient.submit` takes them.
        Raises: what `PoolClient.submit` raises; nothing of the call goes on then.
        """
        if name in self._live:
            name = _renamed(name)
        claimed = {name}
        self._live.add(name)
        try:
            try:
                ids = await self._submit(name, choices)
            except Conflict:
                name = _renamed(name)
                claimed.add(name)
                self._live.add(name)
                ids = await self._submit(name, choices)
            try:
                yield Asked(name, ids, self._pool)
            finally:
                await self._drop(ids)
        finally:
            self._live -= claimed

    async def _submit(self, name: str, choices: Sequence[Mapping[str, Any]]) -> list[str]:
        if len(choices) == 1:
            return [await self._pool.submit(request_id=name, **choices[0])]
        ids = [f"{name}{MARK}{number}" for number in range(len(choices))]
        results = await asyncio.gather(
            *(
                self._pool.submit(request_id=one, **fields)
                for one, fields in zip(ids, choices, strict=True)
            ),
            return_exceptions=True,
        )
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            await self._drop([result for result in results if isinstance(result, str)])
            raise failures[0]
        return ids

    async def _drop(self, ids: Sequence[str]) -> None:
        for one in ids:
            await self._pool.drop(one)


def _renamed(name: str) -> str:
    return f"{name}{MARK}{secrets.token_hex(4)}"
