"""The leader's background placement: hot prefixes copied ahead, and leases for both sides."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from lmpoold.core.placement import Copy, Gates, Hot, decide_placement
from lmpoold.daemon.links import LinkKeeper
from lmpoold.protocol.errors import Conflict, NoCapacity
from lmpoold.protocol.hashing import PrefixHash
from lmpoold.protocol.profile import Pair
from lmpoold.protocol.transfer import Mode, Phase, Why
from lmpoold.protocol.views import parse_words
from lmpoold.store.plans import PlanStore

log = logging.getLogger(__name__)

EVERY_S = 0.5
HOTTEST = 16
FADE = 0.9
"""What is left of a prefix's heat after a turn."""
LONGEST_BLOCKS = 4096


class Placer:
    """Copies hot prefixes; forgets what it began when it no longer leads: the plans go on."""

    def __init__(
        self,
        plans: PlanStore,
        links: LinkKeeper,
        *,
        granted: Callable[[int], None] = lambda quota: None,
    ) -> None:
        """Place by what `links` knows of costs; `granted` hears of each lease's quota."""
        self._granted = granted
        self._plans = plans
        self._links = links
        self._turned_s = 0.0
        self._tried: dict[tuple[PrefixHash, Pair], float] = {}
        self._begun: dict[str, tuple[PrefixHash, int, int, int]] = {}

    def forget(self) -> None:
        """Begin anew: another process has led meanwhile."""
        self._tried.clear()
        self._begun.clear()

    async def turn(self, token: str) -> None:
        """Look for hot prefixes and begin copies, if it is time.

        Raises: Stale: another lmpoold leads by now.
        """
        if (now_s := time.monotonic()) - self._turned_s < EVERY_S:
            return
        self._turned_s = now_s
        cfg = await self._plans.store.cfg()
        if not float(cfg.get("background", "0")) or self._links.model is None:
            return
        await self._lease(token, cfg)
        hot = await self._hottest()
        if not hot:
            return
        cooldown_s = float(cfg["hot_cooldown_ms"]) / 1000
        self._tried = {key: at for key, at in self._tried.items() if now_s - at < cooldown_s}
        rows = {row.rank: row for row in await self._plans.store.ranks() if row.state == "up"}
        paces = {rank: await self._pace(rank) for rank in rows}
        copies, refusals = decide_placement(
            hot,
            rows,
            {pair: self._cost(pair, way, now_s) for pair, way in self._links.ways.items()},
            lambda rank: paces[rank] or max((pace or 0.0 for pace in paces.values()), default=0.0),
            lambda leaf, pair: (leaf, pair) in self._tried,
            int(cfg["block_size"]),
            Gates(
                threshold=float(cfg["hot_threshold"]),
                skew=float(cfg["hot_skew"]),
                idle=float(cfg["hot_idle"]),
                ratio=float(cfg["hot_ratio"]),
            ),
        )
        for refusal in refusals:
            self._tried[refusal.leaf, refusal.pair] = now_s
            source, destination = refusal.pair
            said = f"refused {refusal.reason} from={source} to={destination} {refusal.said}"
            await self._plans.refuse(Why.BACKGROUND, refusal.leaf, said)
        for copy in copies:
            self._tried[copy.hot.leaf, (copy.source, copy.destination)] = now_s
            await self._begin(token, copy)

    async def _begin(self, token: str, copy: Copy) -> None:
        hashes = await self._plans.chain(copy.source, copy.hot.leaf, LONGEST_BLOCKS)
        if not hashes:
            return  # reclaimed since it was found
        plan = uuid.uuid4().hex
        phase = await self._plans.prepare(
            plan,
            token=token,
            mode=Mode.COPY,
            why=Why.BACKGROUND,
            source=copy.source,
            destination=copy.destination,
            hashes=hashes,
            first=0,
            cost_us=copy.cost_us,
        )
        if phase is Phase.PREPARE:
            self._begun[plan] = (copy.hot.leaf, len(hashes), copy.source, copy.destination)
        log.info("copy begun", extra={"plan": plan, "blocks": len(hashes), "phase": str(phase)})

    async def _lease(self, token: str, cfg: dict[str, str]) -> None:
        """Give both sides of each copy that has arrived a lease for what is to come."""
        quota, ttl_ms = int(float(cfg["lease_quota"])), int(float(cfg["lease_ttl_ms"]))
        for plan, (leaf, depth, source, destination) in list(self._begun.items()):
            phase = await self._plans.phase(plan)
            if phase in (Phase.PUBLISH, Phase.FINALIZE):
                sides = {source: quota, destination: quota}
                try:
                    await self._plans.store.lease_grant(token, leaf, depth, ttl_ms, sides)
                    self._granted(sum(sides.values()))
                except (Conflict, NoCapacity) as error:
                    log.info("no lease", extra={"plan": plan, "why": str(error)})
            elif phase not in (None, Phase.ABORT, Phase.ABORTED):
                continue
            del self._begun[plan]

    async def _hottest(self) -> list[Hot]:
        """Read the hottest prefixes and let all of them cool."""
        redis, key = self._plans.store.redis, self._plans.store.keys.hot
        raw: Any = await redis.zrevrange(key, 0, HOTTEST - 1, withscores=True)
        if not raw:
            return []
        await redis.zunionstore(key, {key: FADE})
        await redis.zremrangebyscore(key, "-inf", "(1")
        found = []
        for name, score in raw:
            leaf = PrefixHash(name.decode())
            lines = [parse_words(line) for line in await self._plans.store.page(leaf)]
            if lines:
                holders = frozenset(int(line["rank"]) for line in lines)
                found.append(Hot(leaf, int(lines[0]["depth"]) + 1, score, holders))
        return found

    async def _pace(self, rank: int) -> float | None:
        facts = await self._plans.rank_facts(rank)
        return float(facts["prefill_us"]) if "prefill_us" in facts else None

    def _cost(self, pair: Pair, way: str, now_s: float) -> Callable[[int], float]:
        assert self._links.model is not None, "looked at before"
        return partial(_predict, self._links, pair, way, now_s)


def _predict(links: LinkKeeper, pair: Pair, way: str, now_s: float, blocks: int) -> float:
    assert links.model is not None, "a model that was there stays"
    return links.model.predict(pair, blocks, way, now_s)
