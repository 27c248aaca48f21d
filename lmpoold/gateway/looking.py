"""What the web page shows, as JSON: the pool, a rank's page table, a block, a request's route."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from dataclasses import asdict
from typing import Any, TypeVar

from redis.exceptions import RedisError

from lmpoold.gateway.faults import Fault, invalid, unreachable
from lmpoold.protocol.errors import Conflict
from lmpoold.protocol.explanation import read_explanation
from lmpoold.protocol.hashing import HASH_DIGITS, PrefixHash
from lmpoold.protocol.state import PoolState
from lmpoold.protocol.views import RankRow, parse_words
from lmpoold.store.plans import PlanStore
from lmpoold.store.scripts import PoolStore
from lmpoold.store.state import read_state

T = TypeVar("T")
ASK_TIMEOUT_S = 2.0
LOG_ROWS = 40
CHAIN_MOST = 256
SCAN_COUNT = 200
_NAME = re.compile(f"[0-9a-f]{{{HASH_DIGITS}}}")
_CFG_SHOWN = ("model", "block_size", "kv_block_bytes", "max_model_len", "dtype", "protocol")


class Looking:
    """Reads the pool for people; writes nothing."""

    def __init__(self, store: PoolStore) -> None:
        """Read through `store`."""
        self._store = store
        self._plans = PlanStore(store)

    async def pool(self) -> dict[str, Any]:
        """Return the pool at this moment, with the plans that ended last."""
        state, log, refused = await _asked(
            asyncio.gather(
                read_state(self._store), self._plans.log(LOG_ROWS), self._plans.refusals(LOG_ROWS)
            )
        )
        return {**state_json(state), "log": log, "refused": refused}

    async def pages(self, rank: str, cursor: str) -> dict[str, Any]:
        """Return some of a rank's page table, and the cursor to go on from, 0 at its end."""
        if not (rank.isdecimal() and cursor.isdecimal() and len(rank + cursor) < 40):
            raise invalid("`rank` and `cursor` must be whole numbers")
        key = self._store.keys.pages(int(rank))
        scanned: Any = await _asked(self._store.redis.hscan(key, int(cursor), count=SCAN_COUNT))
        following, found = scanned
        rows = [_page(name.decode(), value.decode()) for name, value in found.items()]
        shown = [row for row in rows if row is not None]
        return {"rank": int(rank), "cursor": str(following), "blocks": shown}

    async def block(self, name: str) -> dict[str, Any]:
        """Return who holds a block, and the names from its prompt's first block to it."""
        if not _NAME.fullmatch(name):
            raise invalid(f"`hash` must be {HASH_DIGITS} hexadecimal digits", "hash")
        holders = [parse_words(line) for line in await _asked(self._store.page(name))]
        chain: tuple[PrefixHash, ...] = ()
        if holders:
            rank = int(holders[0]["rank"])
            chain = await _asked(self._plans.chain(rank, PrefixHash(name), CHAIN_MOST))
        return {"hash": name, "holders": holders, "chain": list(chain)}

    async def request(self, request_id: str) -> dict[str, Any]:
        """Return why a request went where it went; Fault 404 if nothing is known of it."""
        try:
            found = read_explanation(await _asked(self._store.explain(request_id)))
        except Conflict as error:
            raise Fault(404, "invalid_request_error", "not_found", str(error)) from None
        return {
            "id": request_id,
            "rank": found.rank,
            "reason": found.reason,
            "sentence": found.sentence,
            "facts": found.facts,
            "candidates": [asdict(candidate) for candidate in found.candidates],
        }


async def _asked(asking: Awaitable[T]) -> T:
    """Await a reading; Fault 503 if the server is away or too slow."""
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            return await asking
    except (RedisError, OSError):
        raise unreachable() from None


def _page(name: str, text: str) -> dict[str, Any] | None:
    """Return a row of a page table; None for the field that describes the format."""
    if name == "_":
        return None
    block, generation, depth, parent = text.split(":")
    row = {"hash": name, "block": int(block), "generation": int(generation)}
    return {**row, "depth": int(depth), "parent": parent}


def rank_json(row: RankRow) -> dict[str, Any]:
    """Return a rank's row with what follows from it."""
    return {**asdict(row), "used": row.used_blocks, "hit_rate": row.hit_rate}


def state_json(state: PoolState) -> dict[str, Any]:
    """Return a reading of the pool; of `cfg` what says what is served."""
    return {
        "cfg": {name: state.cfg[name] for name in _CFG_SHOWN if name in state.cfg},
        "ranks": [rank_json(row) for row in state.ranks],
        "up": state.up,
        "totals": state.totals,
        "ingress": state.ingress,
        "parked": state.parked,
        "dead": state.dead,
        "daemons": state.daemons,
        "leader": state.leader,
        "plans": [asdict(plan) for plan in state.plans],
        "leases": [asdict(lease) for lease in state.leases],
        "links": [asdict(link) for link in state.links],
    }
