"""The pool's side of a simulation: the function library on a server, under a virtual clock.

All that the pool decides is decided by the functions of `lmpoold.store`, called as lmpoold and
workers call them. One line of the library is replaced wherever it stands, the one that asks the
server for the time: it reads a key that the simulator sets. So deadlines pass in virtual time, and
draws among equal ranks, which go by the clock's microseconds, go by the simulator's seed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from redis.asyncio import Redis

from benchmarks.sim.worker import SimRequest, SimWorker
from lmpoold.protocol.config import PoolConstants, PoolIdentity
from lmpoold.protocol.hashing import PrefixHash, chain_hashes, domain_root
from lmpoold.protocol.keys import INGRESS_GROUP, Keyspace
from lmpoold.protocol.messages import PROTOCOL
from lmpoold.protocol.views import Ended, RouteCall, Routed, read_routed
from lmpoold.store.lane import Lane
from lmpoold.store.library import source
from lmpoold.store.said import delta_args, emit_args
from lmpoold.store.scripts import PoolStore

CLOCK_LINE = "local t = call('TIME')"
VIRTUAL_CLOCK_LINE = "local t = {match(call('GET', P .. 'sim:clock'), '(%d+) (%d+)')}"
RESERVE_LINE = "c.resv, c.resv_tok, c.weighed = c.resv + c.need, c.resv_tok + work, nil"
"""What an ablation without reservations leaves out."""
START_S = 1_700_000_000
"""Unix time at which every simulation begins."""
LONG_MS = 7 * 24 * 3_600_000
"""What must outlive a simulation whose clock is faster than the server's."""
ROUTE_BATCH = 64
LONGEST_QUEUE = 256
"""Calls that wait to be sent together: a message a moment, not one a call."""


def virtual_library(*, reserve: bool = True) -> str:
    """Return the library with its looks at the server's clock turned to the simulator's.

    Args:
        reserve: whether a routed request counts as load before its worker reports it.
    Raises: ValueError: the library asks for the time, or reserves, in other words.
    """
    text = source()
    if not reserve:
        if text.count(RESERVE_LINE) != 1:
            raise ValueError("the library reserves in other words: adapt RESERVE_LINE")
        text = text.replace(RESERVE_LINE, "")
    if not 1 <= text.count(CLOCK_LINE) == text.count("'TIME'"):
        raise ValueError("the library asks for the time in other words: adapt CLOCK_LINE")
    return text.replace(CLOCK_LINE, VIRTUAL_CLOCK_LINE)


def _is_stream(reply: Any, kind: bytes) -> bool:
    """Tell whether a reply is what XREADGROUP found in a stream whose name ends in `kind` and a
    number.
    """
    if not isinstance(reply, list) or len(reply) != 1 or not isinstance(reply[0], list):
        return False
    return bool(reply[0][0].rpartition(b"}:")[2].startswith(kind))


class VirtualPool:
    """A pool of simulated workers on a server of its own."""

    def __init__(
        self, redis: Redis, lane: Lane, *, block_tokens: int, max_model_len: int, seed: int
    ) -> None:
        """Use an empty server.

        Args:
            redis: for what is no function call.
            lane: for function calls.
            block_tokens: tokens a block.
            max_model_len: of the longest request.
            seed: of the draws among equal ranks.
        """
        self.redis = redis
        self.store = PoolStore(redis, Keyspace("sim"), lane)
        self.root = domain_root("simulated", block_tokens)
        self._lane = lane
        self._queued: list[Coroutine[Any, Any, Any]] = []
        self._fetched: list[tuple[int, Sequence[SimRequest]]] = []
        self._asked = 0
        self._draw = random.Random(f"draws {seed}")
        self._epochs: dict[int, str] = {}
        self._versions: dict[int, int] = {}
        self._steps: dict[int, int] = {}
        self._identity = PoolIdentity(
            protocol=PROTOCOL,
            model="simulated",
            fingerprint="simulated",
            dtype="bfloat16",
            block_size=block_tokens,
            kv_block_bytes=1,
            domain=self.root,
            max_model_len=max_model_len,
        )

    async def open(
        self, ranks: int, blocks: int, constants: Mapping[str, float | str], *, reserve: bool = True
    ) -> None:
        """Describe the pool and let `ranks` workers of `blocks` blocks join.

        Args:
            ranks: how many.
            blocks: of each.
            constants: fields of `cfg` that differ from their defaults.
            reserve: as in `virtual_library`.
        """
        await self.redis.flushall()
        await self.redis.function_load(virtual_library(reserve=reserve), replace=True)
        self.set_clock(0.0)
        await self.flush()
        settings = PoolConstants(
            **{"resv_ttl_ms": LONG_MS, "default_deadline_ms": LONG_MS, **constants}  # type: ignore[arg-type]
        )
        await self.store.configure(self._identity, settings)
        identity = self._identity.to_fields() | {"weights": "w"}
        del identity["model"]
        for rank in range(ranks):
            self._versions[rank] = self._steps[rank] = 0
            self._epochs[rank] = await self.store.rank_up(
                rank,
                held="",
                ttl_ms=LONG_MS,
                blocks=blocks,
                identity=identity,
                facts={"device": "none", "host": "sim", "pid": "0"},
            )

    def _later(self, *words: str | int) -> None:
        self._queued.append(self._lane.execute(*words))

    async def flush(self) -> list[Any]:
        """Send all that is queued, in its order and as one message; returns the replies.

        Raises: RuntimeError: the pool did not take a worker's report.
        """
        queued, self._queued = self._queued, []
        replies = await asyncio.gather(*queued)
        for reply in replies:
            if isinstance(reply, bytes) and reply.startswith((b"GAP", b"DUP")):
                raise RuntimeError(f"a report was not taken: {reply.decode()}")
        fetched, self._fetched = self._fetched, []
        places = [place for place, reply in enumerate(replies) if _is_stream(reply, b"w:")]
        for (rank, asked), place in zip(fetched, places, strict=True):
            self._match(rank, asked, replies[place][0][1])
        return replies

    def _match(self, rank: int, asked: Sequence[SimRequest], entries: Sequence[Any]) -> None:
        for request, (entry, flat) in zip(asked, entries, strict=True):
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            if fields[b"id"].decode() != request.id:
                raise RuntimeError(f"rank {rank} was sent {fields[b'id']!r}, not {request.id}")
            request.entry = entry.decode()

    def set_clock(self, now_s: float) -> None:
        """Let the functions see virtual time, with microseconds drawn by the seed."""
        ms = int(now_s * 1000)
        micros = ms % 1000 * 1000 + self._draw.randrange(1000)
        key = self.store.keys.prefix + "sim:clock"
        self._later("SET", key, f"{START_S + ms // 1000} {micros}")

    def ask(self, requests: Sequence[SimRequest]) -> None:
        """Let requests arrive in ingress and be read, as lmpoold reads them."""
        keys = self.store.keys
        for request in requests:
            self._asked += 1
            request.entry = f"{self._asked}-0"
            self._later("XADD", keys.ingress, request.entry, "id", request.id)
        group = ("XREADGROUP", "GROUP", INGRESS_GROUP, "sim", "COUNT", len(requests))
        self._later(*group, "STREAMS", keys.ingress, ">")

    async def route(
        self,
        requests: Sequence[SimRequest],
        candidates: Sequence[tuple[int, ...]],
        *,
        parked: bool,
        blind: bool = False,
    ) -> list[Routed]:
        """Route up to `ROUTE_BATCH` requests in one call, each among its candidates.

        A blind route is not told what the prompt's blocks are called, so it goes by load alone.
        Candidates are always named: `*` lists ranks in the order of a hash table, which is not the
        same in two runs.
        """
        calls = [
            RouteCall(
                id=request.id,
                source="parked" if parked else request.entry,
                prompt_tokens=request.input_tokens,
                max_tokens=request.output_tokens,
                hashes=() if blind else request.hashes,
                client="sim",
                payload="{}",
                tokens=b"",
                candidates=ranks,
            )
            for request, ranks in zip(requests, candidates, strict=True)
        ]
        # In the same message as what is queued, and behind it.
        self._queued.append(self.store.call("route", *(arg for c in calls for arg in c.to_args())))
        replies = await self.flush()
        return [read_routed(line.decode()) for line in replies[-1]]

    def fetch(self, rank: int, requests: Sequence[SimRequest]) -> None:
        """Let a worker read its stream, in which these requests must lie, in this order."""
        for request in requests:
            request.entry, request.rank = "", rank
        self._fetched.append((rank, requests))
        group = ("XREADGROUP", "GROUP", self._epochs[rank], "sim", "COUNT", ROUTE_BATCH)
        self._later(*group, "STREAMS", self.store.keys.worker(rank), ">")

    async def report(self, worker: SimWorker, decode_weight: float) -> None:
        """Send, with the next message, what a worker sends after a step.

        Its ends, its loads, the pages that came and went, as they are now.
        """
        rank = worker.rank
        if len(self._queued) > LONGEST_QUEUE or not all(r.entry for r in worker.ended):
            await self.flush()
        ended = [
            Ended(
                id=request.id,
                attempt=0,
                entry=request.entry,
                state="done",
                finish_reason="length",
                prompt_tokens=request.input_tokens,
                cached_tokens=request.cached_tokens,
                output_tokens=request.output_tokens,
            )
            for request in worker.ended
        ]
        admitted, worker.admitted, worker.ended = worker.admitted, [], []
        changes = worker.pool.drain_changes()
        version = self._versions[rank]
        changed = delta_args(
            *(rank, self._epochs[rank], version, version + 1),
            worker.counts(decode_weight),
            *(admitted, changes.puts, changes.dels),
        )
        self._versions[rank] = version + 1
        if not ended:
            self._queued.append(self.store.call("delta", *changed))
            return
        self._steps[rank] += 1
        said = emit_args(rank, self._epochs[rank], self._steps[rank], {}, ended)
        self._queued.append(self.store.call("step", len(said), *said, *changed))

    def names(self, ids: Sequence[int]) -> tuple[PrefixHash, ...]:
        """Name the blocks of a prompt, each by its id and all before it."""
        return chain_hashes(ids, 1, self.root)
