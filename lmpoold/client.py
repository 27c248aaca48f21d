"""PoolClient: submit a prompt, stream its tokens, cancel. For asyncio programs.

All requests of one client share one output stream and one blocking read, so a thousand of them cost
one connection. The stream may repeat entries after a lost connection; `index` tells, and repeats
are dropped here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from redis.exceptions import RedisError

from lmpoold.protocol.errors import (
    ConfigError,
    Conflict,
    NoCapacity,
    PoolUnknown,
    ProtocolError,
    RequestFailed,
)
from lmpoold.protocol.keys import DEFAULT_POOL, Keyspace
from lmpoold.protocol.messages import Output, Usage, read_outputs
from lmpoold.protocol.request import read_request
from lmpoold.shell.steady import is_lost
from lmpoold.store.connect import open_redis
from lmpoold.store.lane import Lane
from lmpoold.store.scripts import PoolStore
from lmpoold.store.secure import tls_cure
from lmpoold.store.streams import Tail

READ_BLOCK_MS = 1000
READ_COUNT = 512
RETRY_S = 0.2
LIVE = frozenset({"queued", "parked", "routed", "running"})
PATIENCE_S = 60.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished request.

    Attributes:
        finish_reason: `stop` or `length`.
    """

    id: str
    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    usage: Usage | None


class PoolClient:
    """Talks to a pool through its server; use it as an async context manager.

    Example:
        async with PoolClient("redis://localhost:6379/0") as pool:
            request_id = await pool.submit(prompt="Why is the sky blue?", max_tokens=64)
            async for output in pool.stream(request_id):
                print(output.text, end="", flush=True)
    """

    def __init__(
        self, url: str, pool: str = DEFAULT_POOL, *, patience_s: float = PATIENCE_S
    ) -> None:
        """Prepare a client; nothing is sent before `async with`.

        Args:
            url: of the server.
            pool: its name.
            patience_s: how long a call goes on trying while the server is away.
        """
        self._patience_s = patience_s
        self._redis = open_redis(url, pool=pool)
        self._blocking = open_redis(url, pool=pool, blocking=True)
        self._calls = Lane(self._redis)
        self._reads = Lane(self._blocking, blocking=True)
        self._store = PoolStore(self._redis, Keyspace(pool), self._calls)
        self._client = f"c-{uuid.uuid4().hex}"
        self._waiting: dict[str, asyncio.Queue[Output | Exception]] = {}
        self._accepted: dict[str, dict[str, str]] = {}
        self._served = False
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Start reading answers."""
        self._reader = asyncio.create_task(self._read(), name="lmpool client reader")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Cancel what is still being answered, and close."""
        # Without a server nobody can be told: answers then run to their end, and expire.
        with contextlib.suppress(RedisError, OSError):
            for request_id in list(self._waiting):
                await self._store.cancel(request_id)
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        with contextlib.suppress(RedisError, OSError):
            await self._redis.unlink(self._store.keys.out(self._client))
        await self._calls.close()
        await self._reads.close()
        await self._redis.aclose()
        await self._blocking.aclose()

    @property
    def reading(self) -> bool:
        """Whether answers are being read; False for good once the reader broke."""
        return self._reader is not None and not self._reader.done()

    async def submit(
        self,
        *,
        prompt: str | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
        tokens: Sequence[int] | None = None,
        request_id: str | None = None,
        stop: str | Sequence[str] | None = None,
        **options: str | float | bool,
    ) -> str:
        """Send one request; returns its id, to `stream` from.

        Args:
            prompt: text to continue; or
            messages: a conversation, each with `role` and `content`; or
            tokens: token ids.
            request_id: sending an id again neither runs nor answers it again.
            stop: strings that end the answer.
            options: the other fields of a request: max_tokens, temperature, top_p, seed, ...
        Raises:
            InvalidRequest: a field cannot be read; nothing was sent.
            ConfigError: the server's certificate is refused; the message says what to do.
            NoCapacity: the pool's ingress is full; send it again later.
            Conflict: the id was used before, by another client or for an answer that is over.
        """
        request_id = request_id or uuid.uuid4().hex
        values = {"id": request_id, "client": self._client}
        if prompt is not None:
            values["prompt"] = prompt
        if messages is not None:
            values["messages"] = json.dumps(list(messages), ensure_ascii=False)
        if tokens is not None:
            values["tokens"] = json.dumps(list(tokens))
        if stop is not None:
            values["stop"] = json.dumps([stop] if isinstance(stop, str) else list(stop))
        for name, value in options.items():
            values[name] = str(value).lower() if isinstance(value, bool) else str(value)
        read_request("0-0", {name.encode(): text.encode() for name, text in values.items()})
        self._waiting.setdefault(request_id, asyncio.Queue())
        try:
            entry, lost = await self._insist(
                lambda: self._store.submit(request_id, self._client, values)
            )
            if not entry:
                (owner, state), _ = await self._insist(lambda: self._owner(request_id))
                ours = owner == self._client
                # After a lost reply the first try may have been taken, and even answered, already.
                if not ours or not (lost or state in LIVE):
                    raise Conflict(
                        f"request id {request_id} was used before ({state}, answered on "
                        f"out:{owner}); choose another id, or none"
                    )
        except asyncio.CancelledError:
            self._waiting.pop(request_id, None)
            await self._withdraw(request_id)  # the server may have taken it already
            raise
        except BaseException:
            self._waiting.pop(request_id, None)
            raise
        self._accepted[request_id] = values
        self._served = True
        return request_id

    async def drop(self, request_id: str) -> None:
        """Cancel a request whose answer nobody will stream; nothing if it is being streamed."""
        if self._waiting.pop(request_id, None) is not None:
            self._accepted.pop(request_id, None)
            await self.cancel(request_id)

    async def _withdraw(self, request_id: str) -> None:
        """Cancel a request that may or may not have been taken, unless it is somebody else's."""
        (owner, _), _ = await self._insist(lambda: self._owner(request_id))
        if owner in ("", self._client):  # one that is still on its way finds a tombstone
            await self.cancel(request_id)

    async def _owner(self, request_id: str) -> tuple[str, str]:
        """Return the client an id is answered to, and the request's state."""
        key = self._store.keys.request(request_id)
        fields: list[Any] = await self._redis.hmget(key, ["client", "state"])
        owner, state = (field.decode() if field else "" for field in fields)
        return owner, state

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> tuple[T, bool]:
        """Call until the server has answered; only for calls that may be repeated.

        Returns: the reply, and whether an earlier one may have been lost.
        Raises: whatever the call raises; an error of the connection only after `patience_s`, but
            ConfigError at once if the server's certificate was never accepted.
        """
        loop = asyncio.get_running_loop()
        until_s, lost = loop.time() + self._patience_s, False
        while True:
            try:
                return await call(), lost
            except (RedisError, OSError) as error:
                if not self._served and (cure := tls_cure(error)):
                    raise ConfigError(cure) from None
                if not is_lost(error) or loop.time() > until_s:
                    raise
                lost = True
            except PoolUnknown:
                # It was there before: the server came back empty, and will be filled.
                if not self._served or loop.time() > until_s:
                    raise
            await asyncio.sleep(RETRY_S)

    async def stream(self, request_id: str) -> AsyncGenerator[Output, None]:
        """Yield the outputs of a request of this client, in order, none twice, to its end.

        Leaving the loop early cancels the request.

        Raises:
            RequestFailed: the pool answered with an error.
            ProtocolError: outputs were trimmed from the stream before they were read.
        """
        queue = self._waiting.get(request_id)
        if queue is None:
            raise ProtocolError(f"request {request_id} was not submitted here, or was read already")
        following, ended = 0, False
        try:
            while not ended:
                output = await queue.get()
                if isinstance(output, Exception):
                    raise output
                if output.code:
                    ended = True
                    raise RequestFailed(output.code, output.message)
                if output.token is not None:
                    if output.index < following:
                        continue
                    if output.index > following:
                        raise ProtocolError(
                            f"tokens {following} to {output.index - 1} of {request_id} were "
                            "trimmed before they were read; read faster or raise out_maxlen"
                        )
                    following += 1
                ended = output.ends
                yield output
        finally:
            self._waiting.pop(request_id, None)
            self._accepted.pop(request_id, None)
            if not ended:
                await self.cancel(request_id)

    async def generate(self, **options: Any) -> Answer:
        """Submit (same arguments) and wait for the whole answer."""
        request_id = await self.submit(**options)
        text, tokens, last = [], [], None
        async for output in self.stream(request_id):
            text.append(output.text)
            if output.token is not None:
                tokens.append(output.token)
            last = output
        assert last is not None  # a stream ends with an output or raises
        return Answer(request_id, "".join(text), tuple(tokens), last.finish_reason, last.usage)

    async def cancel(self, request_id: str) -> str:
        """Cancel a request at any stage; returns the state it was in, `UNKNOWN` for none."""
        state, _ = await self._insist(lambda: self._store.cancel(request_id))
        return state

    async def _read(self) -> None:
        """Hand outputs to their streams; go on where it was after a lost connection."""
        tail, lost = Tail(self._reads, self._store.keys.out(self._client)), False
        while True:
            try:
                for values in await tail.read(READ_COUNT, READ_BLOCK_MS):
                    for output in read_outputs(values):
                        if (asked := self._waiting.get(output.id)) is not None:
                            asked.put_nowait(output)
                await asyncio.sleep(0)  # who waits goes first: the next read is nobody's hurry
                if lost:  # only now: what was read is handed over, whatever comes of this
                    await self._remind()
                lost = False
            except Exception as error:
                if is_lost(error) or isinstance(error, PoolUnknown):
                    lost = True
                    await asyncio.sleep(RETRY_S)
                    continue
                # Nobody awaits this task while streams run: they have to hear of its end.
                for queue in self._waiting.values():
                    queue.put_nowait(error)
                raise

    async def _remind(self) -> None:
        """Send again what is waited for: a server that was killed may have forgotten it.

        What it still knows is neither run nor answered again.
        """
        for request_id, values in list(self._accepted.items()):
            with contextlib.suppress(NoCapacity):
                await self._store.submit(request_id, self._client, values)
