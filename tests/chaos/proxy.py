"""A link that can break: a unix socket in front of the server's, one for each process under test.

Besides breaking, a link keeps copies of what its process sent, so that a fault can deliver them to
the server a second time, late and in another order, as a network with retransmits in it might.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from pathlib import Path

CHUNK = 64 * 1024
KEPT = 200
REPEATABLE = (
    b"step",
    b"delta",
    b"emit",
    b"stage",
    b"swap",
    b"route",
    b"admit",
    b"heartbeat",
    b"rank_up",
)


def command_of(chunk: bytes) -> bytes | None:
    """Return the function that `chunk` calls if it is exactly one FCALL command, else None."""
    words: list[bytes] = []
    head, _, rest = chunk.partition(b"\r\n")
    if not head.startswith(b"*"):
        return None
    try:
        count = int(head[1:])
        for _ in range(count):
            size, _, rest = rest.partition(b"\r\n")
            if not size.startswith(b"$"):
                return None
            length = int(size[1:])
            if len(rest) < length + 2:
                return None
            words.append(rest[:length])
            rest = rest[length + 2 :]
    except ValueError:
        return None
    if rest or len(words) < 3 or words[0] != b"FCALL":
        return None
    return words[1]


class Link:
    """One process's way to the server.

    Attributes:
        url: for the process.
        sent: commands that it sent lately, as they stood on the wire.
    """

    def __init__(self, path: Path, server: Path) -> None:
        self.url = f"unix://{path}"
        self.sent: deque[bytes] = deque(maxlen=KEPT)
        self._path = path
        self._server = server
        self._listener: asyncio.Server | None = None
        self._flows: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._dead: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._delay_s = 0.0
        self._refusing = False
        self._trap: bytes | None = None

    async def start(self) -> None:
        """Listen."""
        self._path.unlink(missing_ok=True)
        self._listener = await asyncio.start_unix_server(self._accept, str(self._path))

    async def close(self) -> None:
        """Stop listening and end every connection."""
        if self._listener is not None:
            self._listener.close()
        self._end_flows()
        for task in self._dead:
            task.cancel()
        await asyncio.sleep(0)

    def cut(self) -> None:
        """End every connection; refuse new ones until `heal`."""
        self._refusing = True
        self._end_flows()

    def cut_at(self, word: bytes) -> None:
        """Cut as soon as a command with `word` in it comes, which is not delivered."""
        self._trap = word

    @property
    def refusing(self) -> bool:
        """Whether it has been cut and not healed."""
        return self._refusing

    def hold(self) -> None:
        """Deliver nothing until `heal`, then everything: packets that arrive late."""
        self._open.clear()

    def hole(self) -> None:
        """Deliver nothing on today's connections ever again, closing none; new ones work."""
        self._dead |= set(self._flows)

    def slow(self, delay_s: float) -> None:
        """Delay each chunk, either way, until `heal`."""
        self._delay_s = delay_s

    def heal(self) -> None:
        """Work again."""
        self._refusing = False
        self._delay_s = 0.0
        self._open.set()

    async def replay(self, draw: random.Random, most: int = 12) -> int:
        """Send the server copies of earlier commands, in another order; returns how many."""
        copies = draw.sample(list(self.sent), min(most, len(self.sent)))
        if not copies:
            return 0
        with contextlib.suppress(OSError, TimeoutError):
            reader, writer = await asyncio.open_unix_connection(str(self._server))
            try:
                for copy in copies:
                    writer.write(copy)
                    async with asyncio.timeout(5):
                        await writer.drain()
                        await reader.read(CHUNK)
            finally:
                writer.close()
        return len(copies)

    def _end_flows(self) -> None:
        for task in list(self._flows):
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._refusing:
            writer.close()
            return
        self._flows[task] = writer
        far: asyncio.StreamWriter | None = None
        try:
            far_reader, far = await asyncio.open_unix_connection(str(self._server))
            up = asyncio.create_task(self._pump(task, reader, far, keep=True))
            down = asyncio.create_task(self._pump(task, far_reader, writer, keep=False))
            try:
                await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                up.cancel()
                down.cancel()
                await asyncio.gather(up, down, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass  # the process, the server or the harness ended it
        finally:
            self._flows.pop(task, None)
            self._dead.discard(task)
            writer.close()
            if far is not None:
                far.close()

    async def _pump(
        self,
        flow: asyncio.Task[None],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        keep: bool,
    ) -> None:
        while chunk := await reader.read(CHUNK):
            if keep and self._trap is not None and self._trap in chunk:
                self._trap = None
                self.cut()
                return
            if keep and command_of(chunk) in REPEATABLE:
                self.sent.append(chunk)
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            await self._open.wait()
            if flow in self._dead:
                await asyncio.Event().wait()  # swallowed, and nobody is told
            writer.write(chunk)
            await writer.drain()
