"""PoolClient: submit a prompt, stream its tokens, cancel. For asyncio programs.

All requests of one client share one output stream and one blocking read, so a thousand of them cost
one connection. The stream may repeat entries after a lost connection; `index` tells, and repeats
are dropped here.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from redis.exceptions import ConnectionError as ServerLost
from redis.exceptions import TimeoutError as ServerSlow

from lmpoold.protocol.errors import Conflict, ProtocolError, RequestFailed
from lmpoold.protocol.keys import DEFAULT_POOL, Keyspace
from lmpoold.protocol.messages import Output, Usage, read_outputs
from lmpoold.protocol.request import read_request
from lmpoold.store.connect import open_redis
from lmpoold.store.scripts import PoolStore

READ_BLOCK_MS = 1000
READ_COUNT = 512
RETRY_S = 0.2


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

    def __init__(self, url: str, pool: str = DEFAULT_POOL) -> None:
        """Prepare a client; nothing is sent before `async with`."""
        self._redis = open_redis(url)
        self._blocking = open_redis(url, blocking=True)
        self._store = PoolStore(self._redis, Keyspace(pool))
        self._client = f"c-{uuid.uuid4().hex}"
        self._waiting: dict[str, asyncio.Queue[Output | Exception]] = {}
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
        for request_id in list(self._waiting):
            await self._store.cancel(request_id)
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        await self._redis.unlink(self._store.keys.out(self._client))
        await self._redis.aclose()
        await self._blocking.aclose()

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
            if not await self._store.submit(request_id, self._client, values):
                await self._check_owner(request_id)
        except BaseException:
            self._waiting.pop(request_id, None)
            raise
        return request_id

    async def _check_owner(self, request_id: str) -> None:
        """Refuse an id whose answer goes elsewhere, or is over."""
        key = self._store.keys.request(request_id)
        fields: list[Any] = await self._redis.hmget(key, ["client", "state"])
        owner, state = (field.decode() if field else "" for field in fields)
        if owner != self._client or state not in ("queued", "parked", "routed", "running"):
            raise Conflict(
                f"request id {request_id} was used before ({state}, answered on out:{owner}); "
                "choose another id, or none"
            )

    async def stream(self, request_id: str) -> AsyncIterator[Output]:
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
            if not ended:
                await self._store.cancel(request_id)

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
        return await self._store.cancel(request_id)

    async def _read(self) -> None:
        """Hand outputs to their streams; go on where it was after a lost connection."""
        stream, last = self._store.keys.out(self._client), b"0-0"
        while True:
            try:
                reply: Any = await self._blocking.xread(
                    {stream: last}, count=READ_COUNT, block=READ_BLOCK_MS
                )
            except (ServerLost, ServerSlow, OSError):
                await asyncio.sleep(RETRY_S)
                continue
            except Exception as error:
                # Nobody awaits this task while streams run: they have to hear of its end.
                for queue in self._waiting.values():
                    queue.put_nowait(error)
                raise
            for entry, values in reply[0][1] if reply else ():
                last = entry
                for output in read_outputs(values):
                    if (asked := self._waiting.get(output.id)) is not None:
                        asked.put_nowait(output)
