"""The pool's side of a simulation: the function library on a server, under a virtual clock.

All that the pool decides is decided by the functions of `lmpoold.store`, called as lmpoold and
workers call them. One line of the library is replaced, the one that asks the server for the time:
it reads a key that the simulator sets. So deadlines pass in virtual time, and draws among equal
ranks, which go by the clock's microseconds, go by the simulator's seed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from redis.asyncio import Redis

from benchmarks.sim.worker import SimRequest, SimWorker
from lmpoold.protocol.config import PoolConstants, PoolIdentity
from lmpoold.protocol.hashing import PrefixHash, chain_hashes, domain_root
from lmpoold.protocol.keys import INGRESS_GROUP, Keyspace
from lmpoold.protocol.messages import PROTOCOL
from lmpoold.protocol.views import Ended, RouteCall, Routed
from lmpoold.store.lane import Lane
from lmpoold.store.library import source
from lmpoold.store.scripts import PoolStore, delta_args, emit_args

CLOCK_LINE = "local t = call('TIME')"
VIRTUAL_CLOCK_LINE = "local t = {match(call('GET', P .. 'sim:clock'), '(%d+) (%d+)')}"
START_S = 1_700_000_000
"""Unix time at which every simulation begins."""
LONG_MS = 7 * 24 * 3_600_000
"""What must outlive a simulation whose clock is faster than the server's."""
ROUTE_BATCH = 64


def virtual_library() -> str:
    """Return the library with its one look at the server's clock turned to the simulator's.

    Raises: ValueError: the library asks for the time elsewhere or in other words.
    """
    text = source()
    if text.count(CLOCK_LINE) != 1 or text.count("'TIME'") != 1:
        raise ValueError("the library's clock has moved: adapt CLOCK_LINE to lua/base.lua")
    return text.replace(CLOCK_LINE, VIRTUAL_CLOCK_LINE)


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

    async def open(self, ranks: int, blocks: int, constants: Mapping[str, float]) -> None:
        """Describe the pool and let `ranks` workers of `blocks` blocks join.

        Args:
            ranks: how many.
            blocks: of each.
            constants: fields of `cfg` that differ from their defaults.
        """
        await self.redis.flushall()
        await self.redis.function_load(virtual_library(), replace=True)
        await self.set_clock(0.0)
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

    async def set_clock(self, now_s: float) -> None:
        """Let the functions see virtual time, with microseconds drawn by the seed."""
        ms = int(now_s * 1000)
        micros = ms % 1000 * 1000 + self._draw.randrange(1000)
        key = self.store.keys.prefix + "sim:clock"
        await self._lane.execute("SET", key, f"{START_S + ms // 1000} {micros}")

    async def ask(self, requests: Sequence[SimRequest]) -> None:
        """Let requests arrive in ingress and be read, as lmpoold reads them."""
        keys = self.store.keys
        for request in requests:
            entry = await self._lane.execute("XADD", keys.ingress, "*", "id", request.id)
            request.entry = entry.decode()
        await self._lane.execute(
            *("XREADGROUP", "GROUP", INGRESS_GROUP, "sim"),
            *("COUNT", len(requests), "STREAMS", keys.ingress, ">"),
        )

    async def route(
        self, requests: Sequence[SimRequest], candidates: Sequence[tuple[int, ...]], *, parked: bool
    ) -> list[Routed]:
        """Route up to `ROUTE_BATCH` requests in one call, each among its candidates.

        Candidates are always named: `*` lists ranks in the order of a hash table, which is not the
        same in two runs.
        """
        calls = [
            RouteCall(
                id=request.id,
                source="parked" if parked else request.entry,
                prompt_tokens=request.input_tokens,
                max_tokens=request.output_tokens,
                hashes=request.hashes,
                client="sim",
                payload="{}",
                tokens="",
                candidates=ranks,
            )
            for request, ranks in zip(requests, candidates, strict=True)
        ]
        return await self.store.route(calls)

    async def fetch(self, rank: int, requests: Mapping[str, SimRequest]) -> list[SimRequest]:
        """Return what a worker finds in its stream, in that order."""
        reply = await self._lane.execute(
            *("XREADGROUP", "GROUP", self._epochs[rank], "sim"),
            *("COUNT", ROUTE_BATCH, "STREAMS", self.store.keys.worker(rank), ">"),
        )
        found = []
        for entry, flat in reply[0][1] if reply else ():
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            request = requests[fields[b"id"].decode()]
            request.entry, request.rank = entry.decode(), rank
            found.append(request)
        return found

    async def report(self, worker: SimWorker, decode_weight: float) -> None:
        """Send what a worker sends after a step: ends, loads, pages that came and went."""
        rank = worker.rank
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
            await self.store.call("delta", *changed)
            return
        self._steps[rank] += 1
        said = emit_args(rank, self._epochs[rank], self._steps[rank], {}, ended)
        await self.store.step(said, changed)

    def names(self, ids: Sequence[int]) -> tuple[PrefixHash, ...]:
        """Name the blocks of a prompt, each by its id and all before it."""
        return chain_hashes(ids, 1, self.root)
