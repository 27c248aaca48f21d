"""The gateway's end of ASGI: bodies read within a limit, callers that leave, answers as bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, NoReturn, TypeVar

from starlette.types import Receive, Scope, Send

from lmpoold.gateway.faults import Fault, invalid, too_large
from lmpoold.gateway.rendering import DONE, event, to_json

T = TypeVar("T")

Header = tuple[bytes, bytes]
DISCARD_TIMES = 4
"""A body up to so many times the limit is read to its end and dropped: many a client reads no
answer before it has sent everything. What is longer loses its connection."""
WATCH_AFTER_S = 0.02
"""How long an answer takes before its caller is watched; one who leaves earlier is seen then."""
JSON_TYPE: Header = (b"content-type", b"application/json")
EVENT_HEADERS: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # or nginx would hold chunks back
)


class CallerLeft(Exception):
    """The connection was closed before the answer was complete."""


def header(scope: Scope, name: bytes) -> str:
    """Return a request header's value, "" if it is missing."""
    known: bytes
    value: bytes
    for known, value in scope["headers"]:
        if known == name:
            return value.decode("latin-1")
    return ""


async def read_json(scope: Scope, receive: Receive, limit_bytes: int) -> Any:
    """Read a request's body as JSON.

    Raises:
        Fault: 400 for what is not JSON, 413 for what is too long.
        CallerLeft: before the body was complete.
    """
    declared = header(scope, b"content-length")
    if declared.isdigit() and int(declared) > DISCARD_TIMES * limit_bytes:
        raise too_large(limit_bytes)
    parts: list[bytes] = []
    size_bytes, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise CallerLeft
        part: bytes = message.get("body", b"")
        size_bytes += len(part)
        if size_bytes > DISCARD_TIMES * limit_bytes:
            raise too_large(limit_bytes)
        if size_bytes > limit_bytes:
            parts.clear()
        else:
            parts.append(part)
        more = message.get("more_body", False)
    if size_bytes > limit_bytes:
        raise too_large(limit_bytes)
    try:
        body = b"".join(parts)
        ascii_start = body[:1] == b"{" and body[1:2] != b"\0"
        encoding = "utf-8" if ascii_start else json.detect_encoding(body)
        return _decode(body.decode(encoding, "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise invalid(f"the body is not JSON: {error}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")


_decode = json.JSONDecoder(parse_constant=_no_constant).decode


async def unless_gone(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Await `work`; cancel it if the caller closes the connection first.

    The body must have been read: what `receive` brings then is the end of the connection. The work
    runs in the task that asks, and the caller is watched by another one once the answer takes
    `WATCH_AFTER_S`: tasks would cost a short answer dearly.

    Raises: CallerLeft, once the work has ended.
    """
    task = asyncio.current_task()
    assert task is not None
    left = False

    def leave(_: asyncio.Task[None]) -> None:
        nonlocal left
        left = True
        task.cancel()

    leaving: asyncio.Task[None] | None = None

    def watch() -> None:
        nonlocal leaving
        leaving = asyncio.create_task(_gone(receive), name="caller")
        leaving.add_done_callback(leave)

    waiting = asyncio.get_running_loop().call_later(WATCH_AFTER_S, watch)
    try:
        return await work
    except asyncio.CancelledError:
        if left and not task.uncancel():
            raise CallerLeft from None
        raise
    finally:
        waiting.cancel()
        if leaving is not None:
            leaving.remove_done_callback(leave)
            leaving.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Answering:
    """One answer under way.

    Attributes:
        name: sent back as `x-request-id`, once it is set.
        status: sent, 0 before.
    """

    def __init__(self, send: Send) -> None:
        self.name = ""
        self.status = 0
        self._send = send

    async def _start(self, status: int, headers: Iterable[Header]) -> None:
        named = [(b"x-request-id", self.name.encode("latin-1"))] if self.name else []
        self.status = status
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [*headers, *named]}
        )

    async def whole(
        self, body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a body of JSON, and end."""
        extra = [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
        length = (b"content-length", str(len(body)).encode())
        await self._start(status, (JSON_TYPE, length, *extra))
        await self._send({"type": "http.response.body", "body": body})

    async def write(self, chunk: bytes) -> None:
        """Send events at once; the first ones bring the headers along."""
        if not self.status:
            await self._start(200, EVENT_HEADERS)
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def close(self, chunk: bytes = b"") -> None:
        """End a stream of events, with a last chunk."""
        await self._send({"type": "http.response.body", "body": chunk + DONE})

    async def fail(self, fault: Fault) -> None:
        """Send an error: as the whole answer, or as the last event of a stream that has begun."""
        if self.status:
            await self.close(event(fault.body()))
            return
        # A body that was not read to its end must not be taken for the next request.
        closing = {"Connection": "close"} if fault.status == 413 else {}
        await self.whole(
            to_json(fault.body()), status=fault.status, headers={**fault.headers, **closing}
        )
