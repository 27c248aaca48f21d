"""A pool as the store tests play it: producers, lmpoold and workers in one hand, no model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lmpoold.protocol.config import PoolConstants, PoolIdentity
from lmpoold.protocol.hashing import PrefixHash, chain_hashes, domain_root, token_bytes
from lmpoold.protocol.messages import (
    Cancel,
    Dispatch,
    Output,
    Payload,
    read_outputs,
    read_worker_message,
)
from lmpoold.protocol.request import Sampling
from lmpoold.protocol.views import Counts, Ended, PageEntry, RankRow, RouteCall, Routed
from lmpoold.store.scripts import PoolStore

BLOCK = 4
MODEL_LEN = 64
IDENTITY = PoolIdentity(
    protocol="1",
    model="toy",
    fingerprint="f0",
    dtype="float32",
    block_size=BLOCK,
    kv_block_bytes=1024,
    domain="d0",
    max_model_len=MODEL_LEN,
)
ROOT = domain_root("f0", BLOCK)
LONG_MS = 600_000


def names(tokens: Sequence[int]) -> tuple[PrefixHash, ...]:
    """The names of a prompt's complete blocks."""
    return chain_hashes(tokens, BLOCK, ROOT)


def pages_of(tokens: Sequence[int], first_block: int = 0) -> dict[PrefixHash, PageEntry]:
    """Page entries of all complete blocks of a prompt."""
    found = names(tokens)
    parents = (ROOT, *found)
    return {
        name: PageEntry(first_block + depth, 1, depth, parents[depth])
        for depth, name in enumerate(found)
    }


@dataclass
class Pool:
    """What the test has done so far: epochs and versions by rank."""

    store: PoolStore
    epochs: dict[int, str] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    steps: int = 0

    async def set(self, **constants: float | str) -> None:
        """Change constants in `cfg`, as an operator may, and make the functions read them now."""
        mapping = {name: str(value) for name, value in constants.items()}
        await self.store.redis.hset(self.store.keys.cfg, mapping=mapping)
        await self.store.configure(IDENTITY, PoolConstants())

    async def join(self, rank: int, *, blocks: int = 32, held: str = "") -> str:
        epoch = await self.store.rank_up(
            rank,
            held=held,
            ttl_ms=LONG_MS,
            blocks=blocks,
            identity={**IDENTITY.to_fields(), "weights": "w0"},
            facts={"device": "cpu", "host": "here", "pid": "1"},
        )
        self.epochs[rank], self.versions[rank] = epoch, 0
        return epoch

    async def report(
        self,
        rank: int,
        *,
        free: int = 32,
        reclaimable: int = 0,
        wait: int = 0,
        run: int = 0,
        sequences: int = 0,
        admitted: Sequence[str] = (),
        puts: Mapping[PrefixHash, PageEntry] | None = None,
        dels: Sequence[PrefixHash] = (),
    ) -> int:
        """Send the next delta of a rank; returns the version the pool holds then."""
        base = self.versions[rank]
        self.versions[rank] = base + 1
        counts = Counts(free, reclaimable, wait, run, sequences)
        return await self.store.delta(
            rank,
            self.epochs[rank],
            base,
            base + 1,
            counts,
            admitted=admitted,
            puts=puts or {},
            dels=dels,
        )

    async def lose(self, rank: int) -> None:
        """A worker falls silent: its alive key is gone, as if its time were over."""
        await self.store.redis.delete(self.store.keys.alive(rank))

    async def send(self, **values: str) -> str:
        """A producer's XADD, read by an lmpoold; returns the entry id."""
        redis, keys = self.store.redis, self.store.keys
        entry = await redis.xadd(keys.ingress, values or {"prompt": "x"})
        await redis.xreadgroup("sched", "d0", {keys.ingress: ">"}, count=1000)
        return entry.decode()

    def call(
        self,
        request_id: str,
        tokens: Sequence[int],
        source: str,
        *,
        client: str = "",
        max_tokens: int = 1,
        deadline_ms: int = 0,
        attempt: int = 0,
        candidates: tuple[int, ...] = (),
        priority: int = 0,
        origin: int = -1,
    ) -> RouteCall:
        client = client or request_id
        payload = Payload(
            client=client,
            prompt_tokens=len(tokens),
            sampling=Sampling(max_tokens=max_tokens),
            priority=priority,
            deadline_ms=deadline_ms,
            origin=origin,
        )
        return RouteCall(
            id=request_id,
            source=source,
            prompt_tokens=len(tokens),
            max_tokens=max_tokens,
            hashes=names(tokens),
            client=client,
            payload=payload.encode(),
            tokens=token_bytes(tokens),
            deadline_ms=deadline_ms,
            attempt=attempt,
            candidates=candidates,
            priority=priority,
            origin=origin,
        )

    async def ask(self, request_id: str, tokens: Sequence[int], **options) -> Routed:
        """Send and route one request."""
        entry = await self.send(prompt="x", id=request_id)
        (routed,) = await self.store.route([self.call(request_id, tokens, entry, **options)])
        return routed

    async def retry(self, request_id: str, tokens: Sequence[int], **options) -> Routed:
        """Route one parked request again, under the attempt it was parked with."""
        keys = self.store.keys
        attempt = await self.store.redis.hget(keys.parked_requests, f"{request_id}:a")
        options.setdefault("attempt", int(attempt or 0))
        (routed,) = await self.store.route([self.call(request_id, tokens, "parked", **options)])
        return routed

    async def inbox(self, rank: int) -> list[Dispatch | Cancel]:
        """What lies on a worker's stream."""
        entries = await self.store.redis.xrange(self.store.keys.worker(rank))
        return [read_worker_message(entry.decode(), values) for entry, values in entries]

    async def deliver(self, rank: int) -> list[Dispatch | Cancel]:
        """What a worker reads now that it had not read before."""
        stream = self.store.keys.worker(rank)
        reply = await self.store.redis.xreadgroup(
            self.epochs[rank], "w0", {stream: ">"}, count=1000
        )
        entries = reply[0][1] if reply else []
        return [read_worker_message(entry.decode(), values) for entry, values in entries]

    async def answers(self, client: str) -> list[Output]:
        entries = await self.store.redis.xrange(self.store.keys.out(client))
        return [output for _, values in entries for output in read_outputs(values)]

    async def record(self, request_id: str) -> dict[str, str]:
        raw = await self.store.redis.hgetall(self.store.keys.request(request_id))
        return {name.decode(): value.decode() for name, value in raw.items()}

    async def row(self, rank: int) -> RankRow:
        (row,) = [row for row in await self.store.ranks() if row.rank == rank]
        return row

    async def pending(self) -> int:
        """Count the ingress entries that were read and not acknowledged."""
        (group,) = await self.store.redis.xinfo_groups(self.store.keys.ingress)
        return int(group["pending"])

    async def parked_ids(self) -> list[str]:
        return [
            raw.decode() for raw in await self.store.redis.zrange(self.store.keys.parked, 0, -1)
        ]

    async def finish(self, rank: int, dispatch: Dispatch, *tokens: int) -> None:
        """The worker emits `tokens` and ends the request."""
        outputs = [Output(dispatch.id, index, token, "t") for index, token in enumerate(tokens)]
        outputs.append(Output(dispatch.id, len(tokens), finish_reason="stop"))
        await self.emit(
            rank,
            {dispatch.payload.client: outputs},
            [ended(dispatch, output_tokens=len(tokens))],
        )

    async def emit(
        self, rank: int, outputs: Mapping[str, Sequence[Output]], ended: Sequence[Ended] = ()
    ) -> None:
        """The worker publishes its next step."""
        self.steps += 1
        await self.store.emit(rank, self.epochs[rank], self.steps, outputs, ended)


def ended(dispatch: Dispatch, *, state: str = "done", output_tokens: int = 0) -> Ended:
    return Ended(
        id=dispatch.id,
        attempt=dispatch.attempt,
        entry=dispatch.entry,
        state=state,
        finish_reason="stop",
        prompt_tokens=len(dispatch.tokens),
        cached_tokens=dispatch.hit * BLOCK,
        output_tokens=output_tokens,
    )


async def everything(store: PoolStore) -> dict[bytes, object]:
    """Every key with its content: what "nothing was written" is judged by."""
    redis, found = store.redis, {}
    for key in sorted(await redis.keys("*")):
        match await redis.type(key):
            case b"string":
                found[key] = await redis.get(key)
            case b"hash":
                found[key] = await redis.hgetall(key)
            case b"zset":
                found[key] = await redis.zrange(key, 0, -1, withscores=True)
            case b"list":
                found[key] = await redis.lrange(key, 0, -1)
            case b"stream":
                groups = await redis.xinfo_groups(key)
                found[key] = (await redis.xrange(key), [group["pending"] for group in groups])
    return found


async def begin(store: PoolStore) -> Pool:
    """An empty server becomes a pool without workers."""
    await store.configure(IDENTITY, PoolConstants())
    return Pool(store)
