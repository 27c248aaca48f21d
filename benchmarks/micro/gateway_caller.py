"""A client of completions over HTTP that weighs nothing: one open connection, one bare socket."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from benchmarks.idle_worker import MODEL

PROMPT = "Why is the sky blue?"


class Refused(Exception):
    """The server answered with another status than 200."""


class Caller:
    """One HTTP connection that asks for completions."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, port: int) -> Caller:
        """Connect to a port of this machine."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def seconds(self, *, tokens: int, stream: bool) -> float:
        """Return the seconds to a whole answer, or to the first event of a stream.

        Raises: Refused.
        """
        began_s = time.perf_counter()
        self._ask(max_tokens=tokens, stream=stream)
        await (self._first() if stream else self._whole())
        took_s = time.perf_counter() - began_s
        if stream:
            await self._reader.readuntil(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        return took_s

    def _ask(self, **fields: Any) -> None:
        body = json.dumps({"model": MODEL, "prompt": PROMPT, "temperature": 0, **fields}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def _whole(self) -> None:
        head = await self._head()
        length = head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]
        await self._reader.readexactly(int(length))

    async def _first(self) -> None:
        await self._head()
        await self._reader.readuntil(b"\n\n")

    async def _head(self) -> bytes:
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise Refused(head.decode("latin-1").splitlines()[0])
        return head
