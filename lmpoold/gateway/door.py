"""uvicorn's HTTP protocol, with an answer's head and the first bytes of its body in one write.

uvicorn writes them apart. Each write of a socket costs a system call and wakes the caller up, and
the first of the two brings nothing to act on: on a quiet machine it is a tenth of all that a short
answer costs this process.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

INTERIM = b"HTTP/1.1 1"
"""How a head begins that comes before the answer: 100 Continue."""


class _OneWrite:
    """The transport of one answer, as uvicorn's cycle uses it: the first write is the head."""

    __slots__ = ("_begun", "_head", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""
        self._begun = False

    def write(self, part: bytes) -> None:
        """Hold the head back until there is something to send behind it."""
        if self._begun:
            self._transport.write(part)
        elif self._head:
            self._transport.write(self._head + part)
            self._begun = True
        elif part.startswith(INTERIM):
            self._transport.write(part)
        else:
            self._head = part

    def close(self) -> None:
        """Close the connection, behind a head that never got a body."""
        if self._head and not self._begun:
            self.write(b"")
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether the connection is ending."""
        return self._transport.is_closing()


class DoorProtocol(HttpToolsProtocol):
    """One connection of a caller."""

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if cycle.scope["method"] == "POST":  # a HEAD is answered without a body to wait for
            cycle.transport = _OneWrite(cycle.transport)
        super()._start_asgi_task(cycle, app)
