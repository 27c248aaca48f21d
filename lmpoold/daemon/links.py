"""What moving blocks costs on each link: learnt from settled plans, written where `route` reads it.

The leader does this. What it learnt lies in memory and in the log of plans: the next leader reads
the log from its beginning, so it knows what the last one knew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from lmpoold.core.cost import CostModel
from lmpoold.core.neighbours import NoLink, linked
from lmpoold.protocol.errors import DecodeError
from lmpoold.protocol.profile import Pair, Profile, write_pair
from lmpoold.store.plans import PlanStore

log = logging.getLogger(__name__)

EVERY_S = 1.0


class LinkKeeper:
    """Keeps the cost model, and `links` after it.

    Attributes:
        model: as it is now; None before the first turn.
        ways: of every ordered pair that can move blocks, as last seen.
    """

    def __init__(self, plans: PlanStore) -> None:
        """Know nothing yet."""
        self._plans = plans
        self._read_up_to = "0-0"
        self._profile_text: bytes | None = None
        self._written: dict[str, str] = {}
        self._refused: dict[str, str] | None = None
        self._turned_s = 0.0
        self.model: CostModel | None = None
        self.ways: dict[Pair, str] = {}

    def forget(self) -> None:
        """Begin anew: another process has led meanwhile."""
        self.__init__(self._plans)  # type: ignore[misc]

    async def turn(self, token: str) -> None:
        """Learn and write, if it is time."""
        del token  # links are measurements: an old leader's are no worse than a new one's
        if (now_s := time.monotonic()) - self._turned_s < EVERY_S:
            return
        self._turned_s = now_s
        cfg = await self._plans.store.cfg()
        if "kv_block_bytes" not in cfg:
            return
        await self._read_profile(int(cfg["kv_block_bytes"]))
        # A link joins two workers that live; whether one takes requests just now is for each plan.
        rows = await self._plans.store.ranks()
        ranks = [row.rank for row in rows if row.state in ("up", "drain")]
        facts = {rank: await self._plans.rank_facts(rank) for rank in ranks}
        links = linked(facts, cfg.get("pairs", ""))
        self.ways = dict(links.ways)
        await self._learn(now_s)
        await self._write(now_s)
        await self._refuse(links.refused)

    async def _read_profile(self, block_bytes: int) -> None:
        """Take the calibrated profile if it is new; one of other blocks is refused, aloud."""
        redis, keys = self._plans.store.redis, self._plans.store.keys
        raw: Any = await redis.get(keys.profile)
        if self.model is not None and raw == self._profile_text:
            return
        self._profile_text = raw
        profile = Profile(block_bytes=block_bytes)
        if raw is not None:
            try:
                read = Profile.decode(raw)
            except DecodeError as error:
                log.warning("profile not used", extra={"why": str(error)})
            else:
                if read.block_bytes == block_bytes:
                    profile = read
                else:
                    why = f"measured with blocks of {read.block_bytes} bytes, not {block_bytes}"
                    log.warning("profile not used; run lmpoolctl calibrate", extra={"why": why})
        # What was learnt of sizes still holds; how it compared with the old profile does not.
        observed = {} if self.model is None else self.model.observed
        self.model = CostModel(profile=profile, observed=observed)

    async def _learn(self, now_s: float) -> None:
        assert self.model is not None, "read before"
        async for entry, row in self._plans.settled(self._read_up_to):
            self._read_up_to = entry
            blocks = int(row.get("blocks", 0))
            if row.get("outcome") != "finalize" or not blocks or row.get("opened") == "1":
                continue
            pair = (int(row["src"]), int(row["dst"]))
            way, took_us = self.ways.get(pair, ""), float(row["publish_us"])
            self.model = self.model.learn(pair, blocks, way, took_us, now_s)

    async def _write(self, now_s: float) -> None:
        assert self.model is not None, "read before"
        lines = {
            write_pair(pair): str(self.model.line(pair, way, now_s))
            for pair, way in self.ways.items()
        }
        if lines == self._written:
            return
        await self._replace(self._plans.store.keys.links, lines)
        self._written = lines

    async def _refuse(self, refused: Mapping[Pair, NoLink]) -> None:
        """Let people know which ranks have no link, and why."""
        lines = {write_pair(pair): no_link.reason for pair, no_link in refused.items()}
        if lines == self._refused:
            return
        for name, reason in lines.items():
            if self._refused is None or self._refused.get(name) != reason:
                log.info("no link", extra={"ranks": name, "why": reason})
        await self._replace(self._plans.store.keys.no_links, lines)
        self._refused = lines

    async def _replace(self, key: str, lines: Mapping[str, str]) -> None:
        """Make a hash hold these fields and no others."""
        redis = self._plans.store.redis
        stored: Any = await redis.hkeys(key)
        gone = [name for name in stored if name.decode() not in lines]
        written: Any = dict(lines)
        if written:
            await redis.hset(key, mapping=written)
        if gone:
            await redis.hdel(key, *gone)
