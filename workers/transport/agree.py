"""How two sides find the first way that works between them.

The lower rank leads: it proposes the ways that both offer, its own favourite first. On each, both
connect and then move each side's beacon to the other. A way is taken when each side got what the
other's offer promised, byte for byte; otherwise both note why and go on to the next.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from lmpoold.protocol.errors import TransferFailed
from workers.transport.executor import start
from workers.transport.link import Link
from workers.transport.memory import PoolMemory
from workers.transport.offer import Offer
from workers.transport.wire import Channel, Joint, Wire

log = logging.getLogger(__name__)


async def agree(
    link: Link,
    session: str,
    wires: Mapping[str, Wire],
    memory: PoolMemory,
    mine: Offer,
    theirs: Offer,
    until_s: float,
) -> tuple[str, Channel]:
    """Return the kind of the first way that works on both sides, and its channel.

    Args:
        link: to the peer, which does the same now.
        session: a name that only this attempt has.
        wires: our ways by kind, best first.
        memory: our pool, its beacon lit.
        mine: what we offered.
        theirs: what the peer offered.
        until_s: monotonic; ways are told to give up then.
    Raises:
        TransferFailed: none works; the message says why not.
        LinkLost: the peer is gone.
    """
    low = mine.rank < theirs.rank
    common = iter([kind for kind in wires if kind in theirs.ways])
    refusals: list[str] = []
    while True:
        if low:
            kind = next(common, "")
            link.say("try", kind=kind)
        else:
            kind = str((await link.expect("try"))["kind"])
        if kind not in wires:
            why = "; ".join(refusals) or "they have no way in common"
            raise TransferFailed(f"no way to move blocks with rank {theirs.rank}: {why}")
        joint = Joint(
            session=f"{session}-{kind}",
            low=low,
            mine=mine.ways[kind],
            theirs=theirs.ways[kind],
            timeout_s=until_s - time.monotonic(),
        )
        channel, why = await _attempt(link, wires[kind], joint, memory, theirs)
        if channel is not None:
            return kind, channel
        refusals.append(f"{kind}: {why}")
        log.warning("a way failed", extra={"peer": theirs.rank, "way": kind, "why": why})


async def _attempt(
    link: Link, wire: Wire, joint: Joint, memory: PoolMemory, theirs: Offer
) -> tuple[Channel | None, str]:
    """Try one way; each side says one verdict and hears one, whatever happens."""
    made: list[Channel] = []
    proving = start(f"open {wire.kind}", partial(_prove, wire, joint, memory, theirs, made))
    verdict = asyncio.create_task(link.expect("verdict"), name="verdict")
    taken = False
    try:
        both: set[asyncio.Future[Any]] = {proving, verdict}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if verdict.done() and verdict.result()["why"]:
            link.say("verdict", why="the other side failed")
            return None, str(verdict.result()["why"])
        await asyncio.wait({proving})
        error = proving.exception()
        why = "" if error is None else str(error) or type(error).__name__
        link.say("verdict", why=why)
        theirs_why = str((await verdict)["why"])  # heard in any case: the next way has its own
        why = why or theirs_why
        taken = not why
        return (made[0], "") if taken else (None, why)
    finally:
        verdict.cancel()
        if not taken:  # nobody waits: it holds no block, and may take its time
            start("drop", partial(_abort, made))
            proving.add_done_callback(lambda _: start("drop", partial(_abort, made)))


def _abort(made: list[Channel]) -> None:
    while made:
        made.pop().abort()


def _prove(
    wire: Wire, joint: Joint, memory: PoolMemory, theirs: Offer, made: list[Channel]
) -> None:
    """Connect, then move each side's beacon to the other; raise if it is not what it should be."""
    until_s = time.monotonic() + joint.timeout_s
    channel = wire.connect(joint)
    made.append(channel)
    got = torch.zeros((1, memory.words.shape[1]), dtype=torch.int64, device=memory.device)
    memory.settle()

    def left_s() -> float:
        return until_s - time.monotonic()

    if joint.low:
        channel.send((memory.beacon,), left_s())
    channel.receive((theirs.beacon,), (0,), got, left_s())
    if not joint.low:
        channel.send((memory.beacon,), left_s())
    if not torch.equal(got[0], memory.pattern(theirs.nonce)):
        raise TransferFailed("the bytes that arrived are not those that were sent")
