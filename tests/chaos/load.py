"""The askers: they send what `asking` planned and write down every output that comes back."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from redis.exceptions import RedisError

from lmpoold.client import PoolClient
from lmpoold.protocol.errors import RequestFailed
from lmpoold.protocol.keys import Keyspace
from lmpoold.protocol.messages import Output, read_outputs
from lmpoold.store.connect import open_redis
from lmpoold.store.scripts import PoolStore
from tests.chaos.asking import Asking, Template
from workers.daemon.inbox import entry_place

KEYS = Keyspace()
RETRY_S = 0.1
MOST_AT_ONCE = 96
T = TypeVar("T")


async def until_done(call: Callable[[], Awaitable[T]]) -> T:
    """Call again and again until the server has answered."""
    while True:
        try:
            async with asyncio.timeout(5):
                return await call()
        except (RedisError, OSError, TimeoutError):
            await asyncio.sleep(RETRY_S)


class Askers:
    """Several plain clients, and one that uses the library.

    The plain ones reach the server directly and write to `in` as any producer would. The library's
    goes through a link that breaks; what it was told is kept apart (`told`), and its stream is
    read beside it too.

    Attributes:
        outputs: by request id, as they stand on the streams.
        told: by request id, as the library gave them.
        asked_s: when a request was accepted, by `time.monotonic`.
        ended_s: when its first end was read.
        forgotten: outputs that a killed server had shown and then no longer knew.
        cancelled: ids that were cancelled.
        broken: what the library raised that is no answer.
    """

    def __init__(self, url: str, link_url: str, clients: int) -> None:
        self._redis = open_redis(url)
        self._store = PoolStore(self._redis, KEYS)
        self._blocking = open_redis(url, blocking=True)
        self._library = PoolClient(link_url)
        self._names = [f"client{number}" for number in range(clients - 1)]
        self._names.append(self._library._client)
        self._readers: list[asyncio.Task[None]] = []
        self._room = asyncio.Semaphore(MOST_AT_ONCE)
        self._closing = False
        self._ended: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.outputs: dict[str, list[Output]] = defaultdict(list)
        self.told: dict[str, list[Output]] = defaultdict(list)
        self.forgotten = 0
        self._stands: dict[tuple[str, int, bool], tuple[bytes, Output]] = {}
        self.asked_s: dict[str, float] = {}
        self.ended_s: dict[str, float] = {}
        self.cancelled: set[str] = set()
        self.broken: list[str] = []

    async def __aenter__(self) -> Askers:
        await self._library.__aenter__()
        self._readers = [asyncio.create_task(self._read(name)) for name in self._names]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._closing = True  # redis-py may turn a cancellation into a lost connection
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        await self._library.__aexit__(None, None, None)
        await self._redis.aclose()
        await self._blocking.aclose()

    async def run(self, askings: Sequence[Asking], began_s: float) -> None:
        """Ask everything at its time, however the answers fare; returns when all is accepted."""
        async with asyncio.TaskGroup() as group:
            for asking in askings:
                await asyncio.sleep(max(0.0, began_s + asking.at_s - time.monotonic()))
                await self._room.acquire()
                group.create_task(self._ask(asking), name=asking.id)

    async def undisturbed(self, templates: Sequence[Template]) -> dict[int, list[Output]]:
        """Ask every template, with the two best tokens of each step; returns the outputs."""
        askings = [Asking(at_s=0, id=f"u{t.number}", client=0, template=t) for t in templates]
        for asking in askings:
            fields = {**self._fields(asking), "logprobs": "2"}
            await self._redis.xadd(KEYS.ingress, fields)
        async with asyncio.timeout(120):
            for asking in askings:
                await self._ended[asking.id].wait()
        self.ended_s.clear()
        return {asking.template.number: self.outputs.pop(asking.id) for asking in askings}

    def _fields(self, asking: Asking) -> dict[str, str]:
        template = asking.template
        fields = {
            "id": asking.id,
            "client": self._names[asking.client],
            "tokens": json.dumps(template.tokens),
            "max_tokens": str(template.max_tokens),
            "ignore_eos": "1",
            "priority": str(asking.priority),
        }
        if template.temperature:
            fields |= {"temperature": str(template.temperature), "seed": str(template.seed)}
        if asking.deadline_ms:
            fields["deadline_ms"] = str(asking.deadline_ms)
        return fields

    async def _ask(self, asking: Asking) -> None:
        try:
            if self._names[asking.client] == self._library._client:
                await self._ask_library(asking)
            else:
                await self._ask_plainly(asking)
        finally:
            self._room.release()

    async def _ask_plainly(self, asking: Asking) -> None:
        fields: Any = self._fields(asking)
        for _ in range(1 + asking.twice):
            await until_done(lambda: self._redis.xadd(KEYS.ingress, fields))
            self.asked_s.setdefault(asking.id, time.monotonic())
        await self._cancel_later(asking)
        await self._ended[asking.id].wait()

    async def _cancel_later(self, asking: Asking) -> None:
        if asking.cancel_s is None:
            return
        await asyncio.sleep(asking.cancel_s)
        self.cancelled.add(asking.id)
        await until_done(lambda: self._store.cancel(asking.id))

    async def _ask_library(self, asking: Asking) -> None:
        fields = self._fields(asking)
        del fields["id"], fields["client"]
        try:
            await self._library.submit(
                tokens=asking.template.tokens,
                request_id=asking.id,
                **{name: value for name, value in fields.items() if name != "tokens"},
            )
            self.asked_s[asking.id] = time.monotonic()
            canceller = asyncio.create_task(self._cancel_later(asking))
            async for output in self._library.stream(asking.id):
                self.told[asking.id].append(output)
            await canceller
        except RequestFailed as error:
            row = Output(asking.id, len(self.told[asking.id]), error="error", code=error.code)
            self.told[asking.id].append(row)
        except Exception as error:  # noqa: BLE001  (whatever it is, it is written down)
            self.asked_s.setdefault(asking.id, time.monotonic())
            self.broken.append(f"{asking.id}: {type(error).__name__}: {error}")

    async def _read(self, name: str) -> None:
        stream, last = KEYS.out(name), b"0-0"
        while not self._closing:
            try:
                reply: Any = await self._blocking.xread({stream: last}, count=500, block=1000)
            except (RedisError, OSError):
                await asyncio.sleep(RETRY_S)
                continue
            now_s = time.monotonic()
            for entry, values in reply[0][1] if reply else ():
                last = entry
                for output in read_outputs(values):
                    await self._note(stream, entry, output)
                    if output.ends:
                        self.ended_s.setdefault(output.id, now_s)
                        self._ended[output.id].set()

    async def _note(self, stream: str, entry: bytes, output: Output) -> None:
        """Write an output down; what the server forgot and has said anew counts once.

        `appendfsync everysec` lets a server show what it has not yet written. A reader who saw that
        before the server was killed sees it again, which is what `index` is for; but then the entry
        that he saw first is no more.
        """
        what = (output.id, output.index, output.token is not None)
        before, self._stands[what] = self._stands.get(what), (entry, output)
        rows = self.outputs[output.id]
        if before is not None:
            old, seen = before
            # an entry older than all of the stream was trimmed, and tells nothing
            kept: Any = await until_done(lambda: self._redis.xrange(stream, count=1))
            stands = await until_done(lambda: self._redis.xrange(stream, old, old))
            if not stands and kept and entry_place(kept[0][0].decode()) < entry_place(old.decode()):
                rows.remove(seen)
                self.forgotten += 1
        rows.append(output)
