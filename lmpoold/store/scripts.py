"""PoolStore: the only door to pool state. Each Lua function as a typed coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as ServerLost
from redis.exceptions import NoPermissionError, ResponseError

from lmpoold.protocol.config import PoolConstants, PoolIdentity
from lmpoold.protocol.errors import Conflict, NoCapacity
from lmpoold.protocol.hashing import PrefixHash
from lmpoold.protocol.keys import Keyspace
from lmpoold.protocol.messages import Output
from lmpoold.protocol.views import (
    PAGE_TEXT,
    Counts,
    Ended,
    PageEntry,
    RankRow,
    RouteCall,
    Routed,
    read_rank_row,
    read_routed,
)
from lmpoold.store.lane import Lane, Plain
from lmpoold.store.library import FUNCTIONS, source
from lmpoold.store.refusals import translated
from lmpoold.store.said import delta_args, emit_args
from lmpoold.store.staging import FIRST_PAGES, ChunkSize, Turn
from lmpoold.store.streams import as_text

STAGE_TTL_S = 60
CONSUMER_IDLE_MS = 30_000


class PoolStore:
    """Pool state of one pool on one server."""

    def __init__(self, redis: Redis, keys: Keyspace, lane: Lane | None = None) -> None:
        """Use `redis`, and `lane` for calls of functions; the caller opens and closes both."""
        self.redis = redis
        self.keys = keys
        self._lane = lane or Plain(redis)
        self._described: tuple[PoolIdentity, PoolConstants] | None = None

    async def load_library(self, *, replace: bool = True) -> None:
        """Load the function library; replacing one of the same name is safe at any time.

        Without `replace` a library that is there already is left alone, which costs the server
        nothing: all who miss it when a server comes back empty want to load it.
        """
        try:
            await self.redis.function_load(source(), replace=replace)
        except ResponseError as error:
            if replace or "already exists" not in str(error):
                raise

    async def call(self, function: str, *args: str | bytes | int) -> Any:
        """Call a function of the library.

        A server that came back empty gets the library again, and the pool's description, if this
        store has given it one before.

        Raises: a subclass of LMPoolError by the first word of the reply, see `refusals`.
        """
        command = "FCALL_RO" if FUNCTIONS[function] else "FCALL"
        for tries_left in (2, 1, 0):
            try:
                return await self._execute(command, function, *args)
            except ResponseError as error:
                if not tries_left or not await self._mend(str(error), again=tries_left == 1):
                    raise translated(error) from None
        raise AssertionError("the last try returns or raises")

    async def _mend(self, error: str, *, again: bool) -> bool:
        """Give back what a server has lost; False if that is not what is wrong.

        Args:
            error: what the server said.
            again: whether it said so before: a library that is there is an older one then.
        Raises: ConnectionError: this user may not; an lmpoold will, so the caller tries again.
        """
        if "Function not found" in error:
            try:
                await self.load_library(replace=again)
            except NoPermissionError:
                raise ServerLost(
                    "the server has lost the function library, and this user may not load it: "
                    "an lmpoold will"
                ) from None
            return True
        if self._described is not None and error.startswith("NOCFG"):
            await self.configure(*self._described)
            return True
        return False

    async def _execute(self, command: str, function: str, *args: str | bytes | int) -> Any:
        words = (command, function, 1, self.keys.load, *args)
        return await self._lane.execute(*words)

    async def configure(self, identity: PoolIdentity, constants: PoolConstants) -> None:
        """Describe the pool, or check that it is the same one.

        Raises: PoolMismatch: live workers serve the pool under another identity.
        """
        pairs = [part for pair in identity.to_fields().items() for part in pair]
        settings = [part for pair in constants.to_fields().items() for part in pair]
        await self.call("configure", len(pairs) // 2, *pairs, *settings)
        self._described = identity, constants

    async def tune(self, constants: Mapping[str, str]) -> None:
        """Change constants of `cfg`, as `read_constants` returns them; they count at once."""
        await self.call("tune", *(part for pair in constants.items() for part in pair))

    async def cfg(self) -> dict[str, str]:
        """Return `cfg` as it stands, empty before the first lmpoold."""
        raw: Mapping[Any, Any] = await self.redis.hgetall(self.keys.cfg)
        return as_text(raw)

    async def submit(self, request_id: str, client: str, values: Mapping[str, str]) -> str:
        """Put a request into ingress; idempotent by id.

        Returns: the entry id, or "" if the id was submitted before.
        Raises: NoCapacity: the ingress backlog is full, or the client has too many open.
        """
        flat = [part for pair in values.items() for part in pair]
        reply = (await self.call("submit", request_id, client, *flat)).decode()
        if reply == "OVERLOADED":
            raise NoCapacity("the ingress backlog is full; send the request again later")
        if reply == "BUSY":
            raise NoCapacity(
                f"client {client} has as many requests open as it may (max_client_requests); "
                "send the request again when one has ended"
            )
        return "" if reply == "DUP" else str(reply)

    async def route(self, calls: Sequence[RouteCall]) -> list[Routed]:
        """Route up to 64 requests in one atomic call; the replies align with `calls`."""
        args = [arg for call in calls for arg in call.to_args()]
        return [read_routed(line.decode()) for line in await self.call("route", *args)]

    async def finish(
        self, request_id: str, source_entry: str, client: str, code: str, message: str, excerpt: str
    ) -> bool:
        """Answer a request with an error and take it out of where it waits.

        Args:
            request_id: the request.
            source_entry: its ingress entry id, `parked`, or "" for neither.
            client: the stream to answer on.
            code: OpenAI's code where one exists.
            message: what to do about it.
            excerpt: what `dead` keeps of the entry; "" keeps nothing there.
        Returns: False if somebody else had answered it.
        """
        args = (request_id, source_entry, client, code, message, "failed", excerpt)
        return bool(await self.call("finish", *args) == b"OK")

    async def cancel(self, request_id: str) -> str:
        """Cancel a request at any stage; returns the state it was in, or UNKNOWN."""
        return str((await self.call("cancel", request_id)).decode())

    async def reap(self, most: int, *, consumer_idle_ms: int = CONSUMER_IDLE_MS) -> list[str]:
        """End what has outlived its time; returns a line a deed.

        Args:
            most: requests to move or end in this call.
            consumer_idle_ms: how long an lmpoold that holds nothing may be silent in its group.
        """
        reply = await self.call("reap", most, consumer_idle_ms)
        return [line.decode() for line in reply]

    async def acquire(self, owner: str, ttl_ms: int) -> str | None:
        """Lead, or go on leading; returns the fencing token, None if another leads."""
        try:
            return str((await self.call("acquire", owner, ttl_ms)).decode())
        except Conflict:
            return None

    async def lease_grant(
        self, token: str, name: PrefixHash, depth: int, ttl_ms: int, sides: Mapping[int, int]
    ) -> None:
        """Make some ranks cheaper for requests that begin with a prefix they hold.

        Args:
            token: the leader's, from `acquire`.
            name: hash of the prefix's last block.
            depth: blocks of the prefix.
            ttl_ms: how long the lease lasts at most.
            sides: rank -> how many requests it is to take.
        Raises:
            Stale: another lmpoold leads by now.
            Conflict: a side is not up.
            NoCapacity: as many leases as may be are held.
        """
        flat = [part for pair in sides.items() for part in pair]
        await self.call("lease_grant", token, name, depth, ttl_ms, *flat)

    async def lease_expire(self, token: str, names: Sequence[PrefixHash] = ()) -> list[PrefixHash]:
        """End leases, or without names those whose time is over; returns what ended."""
        ended = await self.call("lease_expire", token, *names)
        return [PrefixHash(name.decode()) for name in ended]

    async def rank_up(
        self,
        rank: int,
        *,
        held: str,
        ttl_ms: int,
        blocks: int,
        identity: Mapping[str, str],
        facts: Mapping[str, str],
    ) -> str:
        """Claim a rank; returns the new epoch.

        Args:
            rank: the rank.
            held: the epoch held before, "" for a new process.
            ttl_ms: how long the claim lives without a heartbeat.
            blocks: size of the worker's pool.
            identity: `cfg` fields that must agree, `weights` among them.
            facts: what `ranks` prints beside: device, host, pid.
        Raises:
            PoolMismatch: names the field that differs.
            Conflict: another live worker holds the rank.
            ConfigError: the pool is not described yet, or the rank is too small.
        """
        pairs = [part for pair in identity.items() for part in pair]
        extra = [part for pair in facts.items() for part in pair]
        reply = await self.call(
            "rank_up", rank, held, ttl_ms, blocks, len(identity), *pairs, *extra
        )
        return str(reply.decode())

    async def rank_down(self, rank: int, epoch: str, *, failed: bool = False) -> None:
        """Give a rank back; its unfinished requests go to `parked`.

        Args:
            rank: the rank.
            epoch: the epoch it is held under.
            failed: the worker broke down, and one of its requests may be the reason.
        """
        left, how = 1, "failed" if failed else "left"
        while left > 0:
            left = int(await self.call("rank_down", rank, epoch, 100, how))

    async def drain(self, rank: int, *, draining: bool) -> None:
        """Send no new requests to a rank, or send them again."""
        await self.call("drain", rank, "drain" if draining else "up")

    async def admit(self, rank: int, epoch: str, taken: Iterable[tuple[str, int]]) -> list[str]:
        """Say which dispatched requests a worker has queued; returns ids it must drop."""
        args = [str(part) for pair in taken for part in pair]
        return [line.decode() for line in await self.call("admit", rank, epoch, *args)]

    async def delta(
        self,
        rank: int,
        epoch: str,
        base: int,
        new: int,
        counts: Counts,
        *,
        admitted: Sequence[str] = (),
        puts: Mapping[PrefixHash, PageEntry],
        dels: Sequence[PrefixHash] = (),
    ) -> int:
        """Report what changed since version `base`; returns the version the pool now holds.

        Anything but `new` means a gap: the caller sends a full snapshot (`swap`) above it.

        Raises: Stale: the rank was fenced; join again.
        """
        args = delta_args(rank, epoch, base, new, counts, admitted, puts, dels)
        reply = await self.call("delta", *args)
        return int(reply.split()[1])

    async def swap(
        self,
        rank: int,
        epoch: str,
        new: int,
        counts: Counts,
        pages: Mapping[PrefixHash, PageEntry],
    ) -> None:
        """Replace a rank's page table by a full snapshot, staged in chunks and then renamed.

        Ranks take turns, `snapshots_at_once` at a time; what is one chunk anyway waits for nobody.

        Raises: Stale: the rank was fenced.
        """
        stage = self.keys.stage(rank, epoch, new)
        turn = Turn() if len(pages) > FIRST_PAGES else None
        if turn is not None:
            await self._take(turn, rank, epoch)
        await self.redis.unlink(stage)
        # A long value first: the hash is a table from the start, not a list that grows into one.
        note = "block:generation:depth:parent of each published block, keyed by its prefix hash"
        await self._stage(stage, "_", note)
        size = ChunkSize()
        # Flattened by loops that are not Python's: there are many.
        texts = map(PAGE_TEXT.__mod__, pages.values())
        words = chain.from_iterable(zip(pages, texts, strict=True))
        chunk = list(islice(words, 2 * size.pages))
        while chunk:
            count = len(chunk) // 2
            sending = asyncio.create_task(self._stage(stage, *chunk), name="snapshot chunk")
            await asyncio.sleep(0)  # it is written; the next one is made while the server is at it
            chunk = list(islice(words, 2 * size.pages))
            size.learn(count, await sending)
            if turn is not None and turn.ends_soon:
                await self._take(turn, rank, epoch)
        await self.call("swap", rank, epoch, new, str(counts), len(pages))

    async def _take(self, turn: Turn, rank: int, epoch: str) -> None:
        """Wait until the rank may send pages, or may go on doing so."""
        turn.ask()
        while await self.call("stage", rank, epoch) == b"WAIT":
            await asyncio.sleep(turn.pause_s())
            turn.ask()

    async def _stage(self, stage: str, *words: str) -> float:
        """Write a chunk; a stage without a time to live never exists, whoever dies when.

        Returns: seconds from before it to behind it, by the server's clock.
        """
        chunk = ("HSET", stage, *words), ("EXPIRE", stage, STAGE_TTL_S)
        return await self._lane.timed(*chunk)

    async def emit(
        self,
        rank: int,
        epoch: str,
        step: int,
        outputs: Mapping[str, Sequence[Output]],
        ended: Sequence[Ended] = (),
    ) -> None:
        """Publish one step: answers by client, the journal of tokens, and ends. One atomic call.

        Args:
            rank: the worker's rank.
            epoch: the epoch it holds.
            step: grows with each call of an epoch; repeating the last one writes nothing again.
            outputs: rows by client.
            ended: requests whose last output is among them.
        Raises: nothing was written then:
            Stale: the rank was fenced.
            RequestsOver: the pool has ended some of the requests.
        """
        await self.call("emit", *emit_args(rank, epoch, step, outputs, ended))

    async def step(self, said: Sequence[str | int], changed: Sequence[str | int]) -> int:
        """Call `emit` and `delta` as one; returns the version as `delta` does.

        Args:
            said: from `emit_args`.
            changed: from `delta_args`.
        Raises: nothing was written then:
            Stale: the rank was fenced.
            RequestsOver: the pool has ended some of the requests.
        """
        reply = await self.call("step", len(said), *said, *changed)
        return int(reply.split()[1])

    async def heartbeat(
        self, rank: int, epoch: str, ttl_ms: int, version: int = 0, stuck_ms: int = 0
    ) -> float:
        """Stay alive for another `ttl_ms`; returns `w_decode` as it is now.

        Args:
            rank: the rank.
            epoch: the epoch it is held under.
            ttl_ms: how long the claim lives from now.
            version: the last report that the server acknowledged.
            stuck_ms: for how long the worker has had work and finished no step of it.
        Raises: Stale: the rank was fenced.
        """
        return float(await self.call("heartbeat", rank, epoch, ttl_ms, version, stuck_ms))

    async def page(self, name: str) -> list[str]:
        """Return a line a rank that holds the block named `name`."""
        return [line.decode() for line in await self.call("page", name)]

    async def ranks(self) -> list[RankRow]:
        """Return every rank that ever joined, by number."""
        return [read_rank_row(line.decode()) for line in await self.call("ranks")]

    async def explain(self, request_id: str) -> list[str]:
        """Return what is known of a request; Conflict if nothing is."""
        return [line.decode() for line in await self.call("explain", request_id)]
