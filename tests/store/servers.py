"""Real servers on TCP ports, as sentinels watch them and as nodes of a cluster."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from lmpoold.store.embedded import server_binary


def free_port() -> int:
    """A port nobody listens on now, low enough that a cluster bus port lies above it."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if port < 50_000:
            return port


class TcpServer:
    """One server process with a folder of its own."""

    def __init__(self, folder: Path, *options: str, port: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.port, self.options = folder, port or free_port(), options
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start the process and wait until it answers."""
        config = self.folder / "server.conf"
        if not config.exists():
            lines = [f"port {self.port}", f"dir {self.folder}", "save ''", *self.options]
            config.write_text("\n".join(lines) + "\n")
        mode = ["--sentinel"] if any("sentinel" in line for line in self.options) else []
        with (self.folder / "log").open("ab") as log:
            argv = [str(server_binary()), str(config), *mode]
            self.process = subprocess.Popen(argv, stdout=log, stderr=log)  # noqa: ASYNC220
        async with asyncio.timeout(20):
            while True:
                try:
                    await self.command("PING")
                    return
                except (RedisError, OSError):
                    await asyncio.sleep(0.02)

    async def command(self, *words: str | int) -> Any:
        """One command on a connection of its own."""
        link = Redis(host="127.0.0.1", port=self.port, protocol=2)
        try:
            return await link.execute_command(*words)
        finally:
            await link.aclose()

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
