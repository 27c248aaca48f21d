"""Short of blocks: move a cold chain to a neighbour with room instead of forgetting it.

Room is what is free there, and what the neighbour keeps though nothing ever found it again: what
that may still be worth is taken off what the move saves.

Asks for its shortage only and waits for nothing: sequences that need the blocks before the plan
has freed them take others by reclaiming, as they would anyway.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import Any

from lmpoold.protocol.hashing import PrefixHash
from lmpoold.protocol.profile import write_pair
from lmpoold.protocol.transfer import Mode, Phase, Why
from lmpoold.store.plans import PlanStore
from workers.core.cold import Cold, Room, coldest_worth_moving
from workers.daemon.engine import Engine
from workers.daemon.participant import handed_over

log = logging.getLogger(__name__)

EVERY_S = 0.05
COOLDOWN_S = 1.0
"""How long a chain is left alone after a plan or a refusal."""


class Foreground:
    """Watches one worker's shortage during one epoch."""

    def __init__(self, plans: PlanStore, engine: Engine, rank: int, epoch: str) -> None:
        """Move blocks of `rank` away under `epoch`."""
        self._plans = plans
        self._engine = engine
        self._rank = rank
        self._epoch = epoch
        self._tried: dict[PrefixHash, float] = {}

    async def turn(self) -> None:
        """Look once, a while after the last time.

        Raises: Stale: the rank was fenced.
        """
        await asyncio.sleep(EVERY_S)
        shortage, us = self._engine.shortage_blocks, self._engine.pace.prefill_us
        if shortage <= 0 or us is None:
            return
        cold = await handed_over(
            self._engine.tell, lambda handoff, _: coldest_worth_moving(handoff.pool, shortage)
        )
        now_s = time.monotonic()
        self._tried = {leaf: at for leaf, at in self._tried.items() if now_s - at < COOLDOWN_S}
        if cold is None or not cold.freed or cold.hashes[-1] in self._tried:
            return
        self._tried[cold.hashes[-1]] = now_s
        cfg = await self._plans.store.cfg()
        if not float(cfg.get("foreground", "0")):
            return
        await self._move(cold, int(cfg["block_size"]) * us, float(cfg["foreground_ratio"]))

    async def _move(self, cold: Cold, block_saves_us: float, ratio: float) -> None:
        leaf, numbers = cold.hashes[-1], f"blocks={cold.freed}"
        offers = [room.offer(cold, block_saves_us) for room in await self._rooms(len(cold.hashes))]
        if not offers:
            await self._plans.refuse(Why.FOREGROUND, leaf, f"refused no_target_space {numbers}")
            return
        best = max(offers, key=lambda offer: offer.saved_us - ratio * offer.cost_us)
        numbers = (
            f"from={self._rank} to={best.rank} {numbers} saved_us={best.saved_us:.0f} "
            f"cost_us={best.cost_us:.0f}"
        )
        if best.saved_us < ratio * best.cost_us:
            await self._plans.refuse(Why.FOREGROUND, leaf, f"refused low_benefit {numbers}")
            return
        plan = uuid.uuid4().hex
        phase = await self._plans.prepare(
            plan,
            rank=self._rank,
            token=self._epoch,
            mode=Mode.MOVE,
            why=Why.FOREGROUND,
            source=self._rank,
            destination=best.rank,
            hashes=cold.hashes,
            first=0,
            keep=cold.keep,
            cost_us=best.cost_us,
        )
        if phase is Phase.PREPARE:
            log.info("moving a cold chain", extra={"plan": plan, "to": best.rank})
        else:
            await self._plans.refuse(Why.FOREGROUND, leaf, f"refused {phase} {numbers}")

    async def _rooms(self, blocks: int) -> list[Room]:
        """Return the neighbours that have room for so many blocks."""
        raw: Any = await self._plans.store.redis.hgetall(self._plans.store.keys.links)
        lines = {name.decode(): value.decode().split() for name, value in raw.items()}
        rooms = []
        for row in await self._plans.store.ranks():
            line = lines.get(write_pair((self._rank, row.rank)))
            if row.state != "up" or line is None or row.free + row.reclaimable < blocks:
                continue
            facts = await self._plans.rank_facts(row.rank)
            room = Room(
                rank=row.rank,
                free=row.free - row.reserved,
                once_used=min(row.reclaimable, int(float(facts.get("once_used", 0)))),
                reuse_share=float(facts.get("reuse_share", 0)),
                fixed_us=float(line[0]),
                block_us=float(line[1]),
            )
            if room.blocks >= blocks:
                rooms.append(room)
        return rooms
