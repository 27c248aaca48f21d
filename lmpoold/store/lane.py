"""One connection for the calls of the request path: a write and a read a call, nothing between.

redis-py makes the connection (URL, TLS, credentials, Sentinel) and then hands its transport over.
Its own asyncio client spends several times as much on a call as the server does: streams, locks,
a timer a read. Here a call is one write, replies complete the waiting calls in order, and calls
made meanwhile share the connection. Nothing is ever sent twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any, cast

import hiredis
from redis.asyncio import Redis
from redis.asyncio import connection as links
from redis.exceptions import ConnectionError as ServerLost
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as ServerSlow

from lmpoold.store.connect import CALL_TIMEOUT_S, LONGEST_BLOCK_S
from lmpoold.store.primary import MOVED

_parse_error = links.BaseParser.parse_error  # type: ignore[attr-defined]

MULTI, EXEC, TIME = ("MULTI",), ("EXEC",), ("TIME",)
_Waiting = tuple[float, asyncio.Future[Any], int, list[Any]]
"""When a write was made, who waits for it, how many commands it held (0 for one alone), and the
replies to them so far."""


Words = tuple[str | bytes | int, ...]


class Plain:
    """The same calls through redis-py's own pool, for callers that make few.

    It also serves clients without a transport that could be taken over, as stand-ins are.
    """

    def __init__(self, redis: Redis) -> None:
        """Use `redis`, which the caller closes."""
        self._redis = redis

    async def execute(self, *words: str | bytes | int) -> Any:
        """As `Lane.execute`."""
        return await self._redis.execute_command(*words)  # type: ignore[no-untyped-call]

    async def together(self, *commands: Words) -> list[Any]:
        """As `Lane.together`."""
        async with self._redis.pipeline(transaction=True) as pipe:
            for words in commands:
                pipe.execute_command(*words)
            return await pipe.execute()

    async def timed(self, *commands: Words) -> float:
        """As `Lane.timed`."""
        began = await self.execute("TIME")
        await self.together(*commands)
        return _passed_s(began, await self.execute("TIME"))


class Lane(asyncio.Protocol):
    """A connection to the server of `redis`, opened by the first call and after each loss."""

    def __init__(self, redis: Redis, *, blocking: bool = False, timeout_s: float = 0.0) -> None:
        """Use the server, credentials and TLS settings of `redis`.

        Args:
            redis: gives the connection, as its pool makes them.
            blocking: for callers that block `LONGEST_BLOCK_S` at most: cancelling such a call
                closes the connection, which is busy with it.
            timeout_s: a call without a reply for so long ends every call on the connection with a
                timeout; 0 for `CALL_TIMEOUT_S`, and the block on top.
        """
        self._redis = redis
        self._blocking = blocking
        self._timeout_s = timeout_s or CALL_TIMEOUT_S + (LONGEST_BLOCK_S if blocking else 0.0)
        self._connection: Any = None
        self._transport: asyncio.WriteTransport | None = None
        self._reader = hiredis.Reader()
        self._waiting: deque[_Waiting] = deque()
        self._opening = asyncio.Lock()
        self._watch: asyncio.TimerHandle | None = None

    async def execute(self, *words: str | bytes | int) -> Any:
        """Send one command; returns its reply, undecoded.

        Raises: redis-py's exceptions: ResponseError and its kin, ConnectionError, TimeoutError.
        """
        transport = self._transport or await self._open()
        reply = self._send(transport, hiredis.pack_command(words), 0)  # type: ignore[arg-type]
        if not self._blocking:
            return await reply
        try:
            return await reply
        except asyncio.CancelledError:
            self._drop(ServerLost("the call was cancelled"))
            raise

    async def together(self, *commands: Words) -> list[Any]:
        """Run commands as one transaction, in one write; returns their replies.

        Raises: as `execute`; ResponseError of the first one that failed.
        """
        *_, done = await self._several((MULTI, *commands, EXEC))
        return cast("list[Any]", done)

    async def timed(self, *commands: Words) -> float:
        """Run commands as `together` does, in one write with the questions for the time.

        Returns: seconds from before them to behind them, by the server's clock.
        Raises: as `together`.
        """
        # Inside the transaction the clock stands still.
        began, *_, ended = await self._several((TIME, MULTI, *commands, EXEC, TIME))
        return _passed_s(began, ended)

    async def _several(self, commands: tuple[Words, ...]) -> list[Any]:
        """Send commands in one write; returns their replies, or raises the first error."""
        transport = self._transport or await self._open()
        wire = b"".join(map(hiredis.pack_command, commands))  # type: ignore[arg-type]
        replies: list[Any] = await self._send(transport, wire, len(commands))
        for reply in replies:
            for each in reply if isinstance(reply, list) else (reply,):
                if isinstance(each, BaseException):
                    raise each
        return replies

    def _send(
        self, transport: asyncio.WriteTransport, wire: bytes, count: int
    ) -> asyncio.Future[Any]:
        """Write commands; the result is the reply to one, or for `count` above 0 a list of them."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((loop.time(), reply, count, []))
        transport.write(wire)
        if self._watch is None:
            self._watch = loop.call_later(self._timeout_s, self._check)
        return reply

    async def close(self) -> None:
        """Close the connection; calls in flight end with ConnectionError. A later call reopens."""
        self._drop(ServerLost("the connection was closed by its owner"))

    async def _open(self) -> asyncio.WriteTransport:
        async with self._opening:
            if self._transport is not None:
                return self._transport
            connection = self._redis.connection_pool.make_connection()  # type: ignore[no-untyped-call]
            try:
                await connection.connect()
            except (RedisError, OSError):
                # redis-py lets a broken connection hide that its task was cancelled meanwhile.
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise asyncio.CancelledError from None
                raise
            transport = cast("asyncio.Transport", connection._writer.transport)
            self._reader = hiredis.Reader(replyError=_parse_error)
            transport.set_protocol(self)
            self._connection, self._transport = connection, transport
            return transport

    def data_received(self, data: bytes) -> None:
        """Complete the calls whose replies `data` ends."""
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                _, waiting, count, replies = self._waiting[0]
                moved = isinstance(reply, MOVED)
                if count and not moved:
                    replies.append(reply)  # errors too: whoever waits looks through them
                    if len(replies) < count:
                        continue
                    reply = replies
                self._waiting.popleft()
                if waiting.done():
                    pass  # its caller was cancelled
                elif isinstance(reply, Exception):
                    waiting.set_exception(reply)
                else:
                    waiting.set_result(reply)
                if moved:
                    self._drop(ServerLost(f"the pool's primary is elsewhere by now: {reply}"))
                    return
        except (hiredis.ProtocolError, IndexError) as error:
            self._drop(ServerLost(f"not a reply of a Redis server: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """End the calls in flight: what became of them is unknown."""
        self._drop(ServerLost(str(exc) or "the server closed the connection"))

    def _drop(self, why: Exception) -> None:
        connection, self._connection = self._connection, None
        transport, self._transport = self._transport, None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        waiting, self._waiting = self._waiting, deque()
        for _, reply, *_ in waiting:
            if not reply.done():
                reply.set_exception(why)
                with contextlib.suppress(asyncio.CancelledError):
                    reply.exception()  # a caller that has gone leaves no warning behind
        if transport is not None:
            transport.abort()
        if connection is not None:
            connection._writer = connection._reader = None

    def _check(self) -> None:
        """End the connection when its oldest call has waited too long, else look again later."""
        self._watch = None
        if not self._waiting:
            return
        loop = asyncio.get_running_loop()
        left_s = self._waiting[0][0] + self._timeout_s - loop.time()
        if left_s <= 0:
            self._drop(ServerSlow(f"no reply from the server within {self._timeout_s:g} s"))
        else:
            self._watch = loop.call_later(left_s, self._check)


def _passed_s(began: list[bytes], ended: list[bytes]) -> float:
    """Return the seconds from one reply to TIME to the next; 0 if the clock went back."""
    passed_us = (int(ended[0]) - int(began[0])) * 1_000_000 + int(ended[1]) - int(began[1])
    return max(0, passed_us) / 1e6
