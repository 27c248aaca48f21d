"""A socket that answers as an HTTP server would, without being one: what waking a process costs.

python -m benchmarks.micro.gateway_socket PORT
"""

from __future__ import annotations

import asyncio
from typing import cast

import click
import uvloop

_JSON = b'{"choices":[{"text":"A"}]}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(_JSON), _JSON)
EVENTS = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    b"9\r\ndata: A\n\n\r\n"
    b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
)


class _Canned(asyncio.Protocol):
    """Answers whatever comes, unread but for whether a stream is asked for."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(EVENTS if b'"stream": true' in data else ANSWER)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Canned, "127.0.0.1", port)
    await server.serve_forever()


@click.command()
@click.argument("port", type=int)
def main(port: int) -> None:
    """Answer on PORT until ended."""
    uvloop.run(_serve(port))


if __name__ == "__main__":
    main()
