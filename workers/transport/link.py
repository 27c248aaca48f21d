"""The words two workers exchange about a pair: one TCP connection, one JSON object a line.

The pair's bytes never go here. The connection does three things that the ways themselves cannot:
it tells at once that a peer's process is gone, it lets both sides begin together (a communicator
waits for ever for a peer that is not there), and it carries the word that a pull is over.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lmpoold.protocol.errors import TransferFailed

LONGEST_WORD_BYTES = 64 * 1024
CLOSING_S = 0.5
GREETING_S = 5.0
"""How long a caller at the door has to say who it is."""

Word = dict[str, Any]


class LinkLost(TransferFailed):
    """The connection ended: the peer closed it, or its process is gone."""


class Link:
    """One connection to a peer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Own both halves."""
        self._reader = reader
        self._writer = writer

    @property
    def gone(self) -> bool:
        """Whether it is known to be over."""
        return self._reader.at_eof() or self._writer.is_closing()

    def say(self, word: str, **facts: Any) -> None:
        """Send a word; one that cannot arrive any more is dropped, and `hear` raises."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps({"word": word, **facts}).encode() + b"\n")

    async def hear(self) -> Word:
        """Return the next word.

        Raises: LinkLost: there will be none, or it is not one of ours.
        """
        try:
            line = await self._reader.readuntil(b"\n")
            word = json.loads(line)
            if not isinstance(word, dict) or "word" not in word:
                raise LinkLost(f"the peer said {line[:80]!r}, which is no word of ours")
        except (asyncio.IncompleteReadError, ConnectionError):
            raise LinkLost("the peer closed the connection, or its process is gone") from None
        except (asyncio.LimitOverrunError, OSError) as error:
            raise LinkLost(f"the peer's connection ended: {error}") from None
        except ValueError as error:
            raise LinkLost(f"the peer said what is no JSON: {error}") from None
        return word

    async def expect(self, word: str) -> Word:
        """Return the next word, which has to be `word`; LinkLost otherwise."""
        heard = await self.hear()
        if heard["word"] != word:
            raise LinkLost(f"the peer said {heard['word']!r} where {word!r} was due")
        return heard

    def close(self) -> None:
        """End it; the peer learns of it at once."""
        self._writer.close()

    async def closed(self) -> None:
        """Wait until a connection that was closed is; not for a peer that takes nothing more."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSING_S):
                await self._writer.wait_closed()


class Door:
    """Where peers of a higher rank knock."""

    def __init__(self, host: str, key: str, on_hello: Callable[[int, str, Link], None]) -> None:
        """Bind to a free port of `host`; `on_hello(rank, key, link)` gets those who know `key`."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=64)
        self._key = key
        self._on_hello = on_hello
        self._server: asyncio.Server | None = None
        self.host = host
        self.port: int = self._socket.getsockname()[1]

    async def open(self) -> None:
        """Begin to accept."""
        self._server = await asyncio.start_server(
            self._greet, sock=self._socket, limit=LONGEST_WORD_BYTES
        )

    async def close(self) -> None:
        """Stop accepting."""
        if self._server is None:
            self._socket.close()
        else:
            self._server.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(reader, writer)
        try:
            async with asyncio.timeout(GREETING_S):
                hello = await link.expect("hello")
            rank, key, to = int(hello["rank"]), str(hello["key"]), str(hello["to"])
        except (LinkLost, TimeoutError, KeyError, ValueError, TypeError):
            link.close()
            return
        if not hmac.compare_digest(to.encode(), self._key.encode()):
            link.close()  # a stranger, or one who looks for an earlier process of this rank
            return
        self._on_hello(rank, key, link)


async def dial(host: str, port: int, *, rank: int, key: str, to: str) -> Link:
    """Knock at a peer's door and say who we are.

    Raises: TransferFailed: nobody listens there.
    """
    try:
        reader, writer = await asyncio.open_connection(host, port, limit=LONGEST_WORD_BYTES)
    except OSError as error:
        raise TransferFailed(f"nobody listens at {host}:{port}: {error}") from None
    link = Link(reader, writer)
    link.say("hello", rank=rank, key=key, to=to)
    return link
