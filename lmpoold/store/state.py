"""Reads the pool at one moment: three round trips, whatever its size."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.exceptions import ResponseError

from lmpoold.protocol.keys import INGRESS_GROUP
from lmpoold.protocol.state import PoolState, read_lease, read_link
from lmpoold.store.plans import PlanStore
from lmpoold.store.scripts import PoolStore
from lmpoold.store.streams import as_text

MOST_PLANS = 256


async def read_state(store: PoolStore) -> PoolState:
    """Return the pool as it is now.

    Raises: redis-py's errors; ResponseError where no lmpoold has loaded the library and this caller
    may not.
    """
    keys = store.keys
    async with store.redis.pipeline(transaction=False) as pipe:
        for ask, key in (
            (pipe.xlen, keys.ingress),
            (pipe.zcard, keys.parked),
            (pipe.xlen, keys.dead),
            (pipe.hgetall, keys.cfg),
            (pipe.hgetall, keys.leases),
            (pipe.hgetall, keys.links),
            (pipe.get, keys.lead),
            (pipe.get, keys.fence),
        ):
            ask(key)
        pipe.xinfo_consumers(keys.ingress, INGRESS_GROUP)
        replies: list[Any] = await pipe.execute(raise_on_error=False)
    for reply in replies[:-1]:
        if isinstance(reply, BaseException):
            raise reply
    ingress, parked, dead, cfg, leases, links, leader, token, readers = replies
    if isinstance(readers, BaseException) and not isinstance(readers, ResponseError):
        raise readers
    ranks, plans = await asyncio.gather(store.ranks(), PlanStore(store).live(MOST_PLANS))
    return PoolState(
        cfg=as_text(cfg),
        ranks=tuple(ranks),
        ingress=ingress,
        parked=parked,
        dead=dead,
        leader=leader.decode() if leader else "",
        token=token.decode() if token else "",
        # an error: no lmpoold has made the group yet
        daemons=0 if isinstance(readers, BaseException) else len(readers),
        plans=tuple(plans),
        leases=tuple(read_lease(name, text) for name, text in as_text(leases).items()),
        links=tuple(read_link(name, text) for name, text in sorted(as_text(links).items())),
    )
