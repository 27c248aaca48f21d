"""The gateway's own connections, as its server makes them."""

import asyncio
import os
import signal
import socket

import pytest
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lmpoold.gateway.keyring import KeyRing
from lmpoold.gateway.serve import GatewayConfig, serve


@pytest.mark.bar(53)
@pytest.mark.timeout(30)
def test_an_accepted_connection_does_not_hold_small_writes_back(server_url, monkeypatch):
    accepted: list[int] = []
    made = HttpToolsProtocol.connection_made

    def watching(self, transport):
        used = transport.get_extra_info("socket")
        accepted.append(used.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        made(self, transport)

    monkeypatch.setattr(HttpToolsProtocol, "connection_made", watching)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    config = GatewayConfig(redis_url=server_url, keys=KeyRing(()), port=port)

    async def ask() -> bytes:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0.02)
        writer.write(b"GET /health HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    async def both() -> bytes:
        serving = asyncio.create_task(serve(config))
        try:
            async with asyncio.timeout(20):
                return await ask()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # as it is stopped in earnest
            await serving

    assert uvloop.run(both()).startswith(b"HTTP/1.1 200")
    assert accepted
    assert all(accepted)
