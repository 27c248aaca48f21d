"""PlanStore: the functions of transfer plans as typed coroutines, beside `PoolStore`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from lmpoold.protocol.errors import PoolMismatch
from lmpoold.protocol.hashing import PrefixHash
from lmpoold.protocol.messages import encode_tokens
from lmpoold.protocol.profile import Pair, Profile, read_pair
from lmpoold.protocol.transfer import (
    BlockRef,
    Mode,
    Phase,
    PlanRow,
    Why,
    encode_refs,
    read_plan_row,
    split_hashes,
)
from lmpoold.protocol.views import parse_words
from lmpoold.store.scripts import PoolStore
from lmpoold.store.streams import as_text

LOG_CHUNK = 1000


class PlanStore:
    """Transfer plans of one pool.

    What a participant says is refused with Stale when its epoch is over, and with Conflict when
    nobody knows the plan (any more). Everything may be said twice.
    """

    def __init__(self, store: PoolStore) -> None:
        """Call through `store`."""
        self.store = store

    async def prepare(
        self,
        plan: str,
        *,
        token: str,
        rank: int | None = None,
        mode: Mode,
        why: Why,
        source: int,
        destination: int,
        hashes: Sequence[PrefixHash],
        first: int,
        cost_us: float = 0.0,
        keep: int = 0,
    ) -> Phase | str:
        """Begin a plan.

        Args:
            plan: its id, never used before.
            token: the leader's fencing token, or the source's epoch.
            rank: the source when it asks for itself, None for the leader.
            mode: copy or move.
            why: who wants it.
            source: rank that has the chain.
            destination: rank that gets it.
            hashes: the chain, root first.
            first: depth of the first block that the destination lacks.
            cost_us: what it is predicted to take.
            keep: of a move, the depth up to which the source keeps its blocks.
        Returns: the plan's phase, or the word that says why it was not begun.
        """
        who = "lead" if rank is None else rank
        reply = await self.store.call(
            "plan_prepare",
            *(who, token, plan, mode, why, source, destination, "".join(hashes), first),
            round(cost_us),
            keep,
        )
        return _begun(reply)

    async def probe(
        self, plan: str, source: int, destination: int, blocks: int, *, serving: bool | None
    ) -> Phase | str:
        """Begin a plan that moves scratch blocks, to measure a link or to make one.

        Args:
            plan: its id, never used before.
            source: rank that sends.
            destination: rank that receives.
            blocks: how many, > 0.
            serving: begin only while both ranks compute, or only while neither does; None: whatever
                they do.
        Returns: the plan's phase, or the word that says why it was not begun: `down`, `plans`,
            `serving`, `idle` or `no_room`.
        """
        state = {True: "serving", False: "idle", None: "any"}[serving]
        reply = await self.store.call("plan_probe", plan, source, destination, blocks, state)
        return _begun(reply)

    async def pinned(
        self,
        plan: str,
        rank: int,
        epoch: str,
        *,
        first: int,
        count: int,
        root: PrefixHash,
        refs: tuple[BlockRef, ...],
        tokens: Sequence[int],
        opened: bool = False,
    ) -> Phase:
        """Say, as the source, what is pinned; `opened` if the two had to connect for this plan."""
        words = (first, encode_refs(refs), int(opened), count, root, encode_tokens(tokens))
        return await self._say("plan_prepared", plan, rank, epoch, *words)

    async def reserved(
        self,
        plan: str,
        rank: int,
        epoch: str,
        *,
        first: int,
        refs: tuple[BlockRef, ...],
        opened: bool = False,
    ) -> Phase:
        """Say, as the destination, what is reserved; `opened` as for `pinned`."""
        words = (first, encode_refs(refs), int(opened))
        return await self._say("plan_prepared", plan, rank, epoch, *words)

    async def executed(self, plan: str, rank: int, epoch: str, took_us: int) -> Phase:
        """Say, as the source, that sending is over."""
        return await self._say("plan_executed", plan, rank, epoch, took_us)

    async def publish(self, plan: str, rank: int, epoch: str, took_us: int) -> Phase:
        """Make the received blocks visible; they are if `publish` or `finalize` comes back."""
        return await self._say("plan_publish", plan, rank, epoch, took_us)

    async def finalize(self, plan: str, rank: int, epoch: str, freed: int) -> Phase:
        """Say that this side holds nothing for a published plan any more."""
        return await self._say("plan_finalize", plan, rank, epoch, freed)

    async def abort(self, plan: str, rank: int, epoch: str, reason: str, *, stopped: bool) -> Phase:
        """Ask to give a plan up; `stopped` says that this side touches no block of it any more."""
        return await self._say("plan_abort", plan, rank, epoch, reason, int(stopped))

    async def _say(self, function: str, plan: str, rank: int, epoch: str, *words: Any) -> Phase:
        reply = await self.store.call(function, plan, rank, epoch, *words)
        return Phase(reply.decode())

    async def chain(self, rank: int, name: PrefixHash, most: int) -> tuple[PrefixHash, ...]:
        """Return a block's chain as a rank shows it, root first; empty if it is torn or longer."""
        return split_hashes((await self.store.call("chain", rank, name, most)).decode())

    async def reap(self, token: str, most: int) -> list[str]:
        """Settle what is over its time or has lost a side; returns a line a deed."""
        return [line.decode() for line in await self.store.call("plan_reap", token, most)]

    async def live(self, most: int = 1000) -> list[PlanRow]:
        """Return the plans that are not settled, the nearest deadline first."""
        lines = await self.store.call("plans", most)
        return [read_plan_row(parse_words(line.decode())) for line in lines]

    async def log(self, most: int = 20) -> list[dict[str, str]]:
        """Return the last settled plans with their figures, newest first."""
        rows: Any = await self.store.redis.xrevrange(self.store.keys.plan_log, count=most)
        return [as_text(values) for _, values in rows]

    async def refusals(self, most: int = 20) -> list[dict[str, str]]:
        """Return the last plans that were weighed and not begun, newest first."""
        rows: Any = await self.store.redis.xrevrange(self.store.keys.plan_refusals, count=most)
        return [as_text(values) for _, values in rows]

    async def probed(self, after: str, block_ms: int) -> list[tuple[str, dict[str, str]]]:
        """Return settled plans that measured a link: (entry, figures), waiting for the first.

        Args:
            after: entry behind which to read.
            block_ms: how long to wait.
        """
        key = self.store.keys.probe_log
        reply: Any = await self.store.redis.xread({key: after}, block=block_ms)
        return [(entry.decode(), as_text(values)) for _, rows in reply for entry, values in rows]

    async def last_probed(self) -> str:
        """Return the entry of the last plan that measured a link, "0-0" if there is none."""
        return await self._last(self.store.keys.probe_log)

    async def settled(self, after: str) -> AsyncIterator[tuple[str, dict[str, str]]]:
        """Yield the settled plans behind an entry of the log, oldest first: (entry, figures)."""
        while True:
            rows: Any = await self.store.redis.xrange(
                self.store.keys.plan_log, f"({after}", count=LOG_CHUNK
            )
            for entry, values in rows:
                after = entry.decode()
                yield after, as_text(values)
            if len(rows) < LOG_CHUNK:
                return

    async def last_settled(self) -> str:
        """Return the entry of the last plan that settled, "0-0" if there is none."""
        return await self._last(self.store.keys.plan_log)

    async def _last(self, key: str) -> str:
        rows: Any = await self.store.redis.xrevrange(key, count=1)
        return rows[0][0].decode() if rows else "0-0"

    async def linked(self) -> list[Pair]:
        """Return the ordered pairs that can move blocks, as the leader last wrote them."""
        raw: Any = await self.store.redis.hkeys(self.store.keys.links)
        return sorted(read_pair(name.decode()) for name in raw)

    async def not_linked(self) -> dict[Pair, str]:
        """Return the pairs of living ranks without a link, lower rank first, and why."""
        raw: Any = await self.store.redis.hgetall(self.store.keys.no_links)
        return {read_pair(name): reason for name, reason in as_text(raw).items()}

    async def profile(self) -> Profile | None:
        """Return what calibration stored, None if nothing; DecodeError if it cannot be read."""
        raw: Any = await self.store.redis.get(self.store.keys.profile)
        return None if raw is None else Profile.decode(raw)

    async def keep_profile(self, profile: Profile) -> None:
        """Store what calibration measured; the leader takes it up within a second or two.

        Raises: PoolMismatch: the pool's blocks are others by now.
        """
        held = int((await self.store.cfg()).get("kv_block_bytes", "0"))
        if held != profile.block_bytes:
            raise PoolMismatch(
                f"measured with blocks of {profile.block_bytes} bytes, the pool's have {held}: "
                "run lmpoolctl calibrate again"
            )
        await self.store.redis.set(self.store.keys.profile, profile.encode())

    async def refuse(self, why: Why, what: str, said: str) -> None:
        """Keep that a plan was weighed and not begun, with its numbers."""
        row: Any = {"why": why.value, "for": what, "said": said}
        key = self.store.keys.plan_refusals
        await self.store.redis.xadd(key, row, maxlen=200, approximate=True)

    async def phase(self, plan: str) -> Phase | None:
        """Return a plan's phase; None if nobody knows it."""
        raw: Any = await self.store.redis.hget(self.store.keys.plan(plan), "phase")
        return None if raw is None else Phase(raw.decode())

    async def rank_facts(self, rank: int) -> dict[str, str]:
        """Return what a rank's worker says of itself, empty for a rank that never joined."""
        raw: Any = await self.store.redis.hgetall(self.store.keys.rank_facts(rank))
        return as_text(raw)


def _begun(reply: bytes) -> Phase | str:
    text = reply.decode()
    return text.removeprefix("refused ") if text.startswith("refused ") else Phase(text)
