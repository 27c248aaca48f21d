"""Pairs with every peer, over the first way that is proved to work.

Of two ranks the higher one knocks at the lower one's door, and the lower one names the session.
Which way they take, `agree` finds out.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from lmpoold.protocol.errors import TransferFailed, TransferTimeout
from workers.transport.agree import agree
from workers.transport.link import Door, Link, LinkLost, dial
from workers.transport.memory import PoolMemory
from workers.transport.offer import Facts, Offer, read_offer
from workers.transport.pair import Pair
from workers.transport.port import Move, Moved
from workers.transport.wire import Wire

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Standing:
    epoch: str
    key: str
    pair: Pair


class PairTransport:
    """Implements `port.Transport` with one way or several."""

    def __init__(
        self, rank: int, memory: PoolMemory, wires: Sequence[Wire], *, host: str = "127.0.0.1"
    ) -> None:
        """Bind a door and light the beacon.

        Args:
            rank: ours.
            memory: our pool.
            wires: the ways, best first; those that this machine does not have are left out.
            host: an address of ours that peers reach.
        Raises: TransferFailed: none of the ways works here.
        """
        self._rank = rank
        self._memory = memory
        self._host = host
        self._wires: dict[str, Wire] = {}
        ways: dict[str, Facts] = {}
        refusals = []
        for wire in wires:
            try:
                ways[wire.kind] = wire.facts()
                self._wires[wire.kind] = wire
            except TransferFailed as error:
                refusals.append(f"{wire.kind}: {error}")
        if not ways:
            raise TransferFailed("no way to move blocks: " + "; ".join(refusals))
        if refusals:
            log.info("ways left out", extra={"why": "; ".join(refusals)})
        self.kind = wires[0].kind if len(wires) == 1 else "auto"
        self._key = secrets.token_hex(16)
        self._door = Door(host, self._key, self._on_hello)
        nonce = secrets.randbits(62)
        memory.light(nonce)
        self._offer = Offer(
            rank=rank,
            key=self._key,
            host=host,
            port=self._door.port,
            geometry=memory.geometry,
            beacon=memory.beacon,
            nonce=nonce,
            ways=ways,
        )
        self._standing: dict[int, _Standing] = {}
        self._opening: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._callers: dict[int, tuple[str, Link]] = {}
        self._called: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)

    async def start(self) -> None:
        """See `port.Transport`."""
        await self._door.open()

    async def stop(self) -> None:
        """See `port.Transport`."""
        await self._door.close()
        for _, link in self._callers.values():
            link.close()
        await asyncio.gather(*(self.close(peer) for peer in list(self._standing)))
        await asyncio.sleep(0)  # connections that were closed end in the loop's next turn

    def offer(self) -> str:
        """See `port.Transport`."""
        return self._offer.text()

    async def open(self, peer: int, epoch: str, offer: str, *, deadline_s: float) -> None:
        """See `port.Transport`."""
        theirs = read_offer(offer, peer)
        if theirs.geometry != self._offer.geometry:
            raise TransferFailed(
                f"rank {peer}'s blocks are {theirs.geometry}, ours {self._offer.geometry}"
            )
        until_s = time.monotonic() + deadline_s
        try:
            async with asyncio.timeout(deadline_s), self._opening[peer]:
                standing = self._standing.get(peer)
                if standing is not None:
                    same = (standing.epoch, standing.key) == (epoch, theirs.key)
                    if same and not standing.pair.lost:
                        return
                    await standing.pair.end("it is made anew")
                    del self._standing[peer]
                self._standing[peer] = _Standing(
                    epoch, theirs.key, await self._make(theirs, until_s)
                )
        except TimeoutError:
            raise TransferTimeout(f"rank {peer} did not open the pair with us in time") from None

    def stands(self, peer: int, epoch: str) -> bool:
        """See `port.Transport`."""
        standing = self._standing.get(peer)
        return standing is not None and standing.epoch == epoch and not standing.pair.lost

    def way(self, peer: int) -> str:
        """See `port.Transport`."""
        standing = self._standing.get(peer)
        return "" if standing is None or standing.pair.lost else standing.pair.kind

    async def send(self, move: Move, *, deadline_s: float) -> Moved:
        """See `port.Transport`."""
        until_s = time.monotonic() + deadline_s
        self._memory.check(move.src_blocks)
        return await self._pair(move.src, move.dst).send(move, until_s)

    async def receive(self, move: Move, *, deadline_s: float) -> Moved:
        """See `port.Transport`."""
        until_s = time.monotonic() + deadline_s
        self._memory.check(move.dst_blocks)
        return await self._pair(move.dst, move.src).receive(move, until_s)

    async def close(self, peer: int) -> None:
        """See `port.Transport`."""
        standing = self._standing.pop(peer, None)
        if standing is not None:
            await standing.pair.end("closed here")

    def _pair(self, ours: int, peer: int) -> Pair:
        if ours != self._rank:
            raise ValueError(f"rank {self._rank} was asked for rank {ours}'s half of a move")
        standing = self._standing.get(peer)
        if standing is None:
            raise TransferFailed(f"there is no pair with rank {peer}; open it first")
        return standing.pair

    def _on_hello(self, rank: int, key: str, link: Link) -> None:
        _, earlier = self._callers.pop(rank, ("", None))
        if earlier is not None:
            earlier.close()
        standing = self._standing.get(rank)
        if standing is not None:  # it would not call if it still had that pair
            standing.pair.give_up("the peer began anew")
        self._callers[rank] = (key, link)
        self._called[rank].set()

    async def _caller(self, theirs: Offer) -> Link:
        """Wait until that process of the peer knocks."""
        while True:
            key, link = self._callers.pop(theirs.rank, ("", None))
            if link is not None:
                if key == theirs.key and not link.gone:
                    return link
                link.close()
            self._called[theirs.rank].clear()
            await self._called[theirs.rank].wait()

    async def _make(self, theirs: Offer, until_s: float) -> Pair:
        low = self._rank < theirs.rank
        link, session = await (self._answer(theirs) if low else self._call(theirs))
        try:
            kind, channel = await agree(
                link, session, self._wires, self._memory, self._offer, theirs, until_s
            )
        except BaseException:
            link.close()
            raise
        return Pair(theirs.rank, kind, link, channel, self._memory, pulls=self._wires[kind].pulls)

    async def _answer(self, theirs: Offer) -> tuple[Link, str]:
        """Wait for a caller who is still there; returns the link and the session's name."""
        while True:
            link = await self._caller(theirs)
            session = f"{self._rank}-{theirs.rank}-{secrets.token_hex(8)}"
            try:
                link.say("welcome", session=session)
                await link.expect("here")
            except LinkLost:
                link.close()  # it had given up before we came
            except BaseException:
                link.close()
                raise
            else:
                return link, session

    async def _call(self, theirs: Offer) -> tuple[Link, str]:
        """Knock, and wait to be let in; returns the link and the session's name."""
        link = await dial(theirs.host, theirs.port, rank=self._rank, key=self._key, to=theirs.key)
        try:
            session = str((await link.expect("welcome"))["session"])
            link.say("here")
        except BaseException:
            link.close()
            raise
        return link, session
