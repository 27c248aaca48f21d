"""A standing pair: moves in both directions, and how they end when the peer does.

A destination says `ready`, the source answers `go` when the direction is free, and then both begin:
so nothing is ever enqueued towards a peer that is not there, and both sides take the moves of one
direction in the order of the `go`s. A way that pulls needs neither: the destination begins at once
and says `done`, which is what its source waits for.

Whatever goes wrong once bytes flow ends the pair: the channel is aborted in a thread, everyone who
waits is told, and the link is closed, which tells the peer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from lmpoold.protocol.errors import TransferFailed, TransferTimeout
from workers.transport.executor import SerialExecutor, start
from workers.transport.link import Link, LinkLost, Word
from workers.transport.memory import PoolMemory
from workers.transport.port import Move, Moved
from workers.transport.wire import Channel

log = logging.getLogger(__name__)

KEPT_WORDS = 1024
"""Words kept for moves that this side has not been asked for yet; older ones are dropped."""
SLOW_ABORT_S = 10.0

_Waiting = OrderedDict[str, "asyncio.Future[Word]"]


class Pair:
    """One peer, connected by one way.

    Attributes:
        peer: its rank.
        kind: the way's name.
        lost: why the pair is over, "" while it stands.
    """

    def __init__(
        self, peer: int, kind: str, link: Link, channel: Channel, memory: PoolMemory, *, pulls: bool
    ) -> None:
        """Own `link` and `channel`; they have been proved."""
        self.peer = peer
        self.kind = kind
        self.lost = ""
        self._link = link
        self._channel = channel
        self._memory = memory
        self._pulls = pulls
        self._words: dict[str, _Waiting] = {w: OrderedDict() for w in ("ready", "go", "done")}
        self._outward = asyncio.Lock()
        self._out = SerialExecutor(f"send to {peer}")
        self._in = SerialExecutor(f"receive from {peer}")
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ending: asyncio.Task[None] | None = None
        self._hearing = asyncio.create_task(self._hear(), name=f"words of {peer}")

    async def send(self, move: Move, until_s: float) -> Moved:
        """Do the source's half; `until_s` is monotonic."""
        size = len(move.src_blocks) * self._memory.block_bytes
        if self._pulls:
            try:
                done = await self._word("done", move.plan, until_s)
            except TransferTimeout:
                await self.end("a pull that was due did not come")
                raise
            return Moved(size, float(done["seconds"]))
        await self._word("ready", move.plan, until_s)
        try:
            async with asyncio.timeout(until_s - time.monotonic()):
                await self._outward.acquire()
        except TimeoutError:
            raise TransferTimeout(f"moves to rank {self.peer} queued past the deadline") from None
        try:
            self._stands()
            self._link.say("go", plan=move.plan)
            seconds = await self._flow(
                self._out, lambda left_s: self._channel.send(move.src_blocks, left_s), until_s
            )
        finally:
            self._outward.release()
        return Moved(size, seconds)

    async def receive(self, move: Move, until_s: float) -> Moved:
        """Do the destination's half; `until_s` is monotonic."""
        if not self._pulls:
            self._stands()
            self._link.say("ready", plan=move.plan)
            try:
                await self._word("go", move.plan, until_s)
            except (TransferTimeout, asyncio.CancelledError):
                self._link.say("withdrawn", plan=move.plan)
                raise
        seconds = await self._flow(
            self._in,
            lambda left_s: self._channel.receive(
                move.src_blocks, move.dst_blocks, self._memory.words, left_s
            ),
            until_s,
        )
        if self._pulls:
            self._link.say("done", plan=move.plan, seconds=seconds)
        return Moved(len(move.dst_blocks) * self._memory.block_bytes, seconds)

    async def end(self, why: str) -> None:
        """Give the pair up; return when nothing of it touches the pool any more."""
        await asyncio.shield(self.give_up(why))

    def give_up(self, why: str) -> asyncio.Task[None]:
        """Begin to give the pair up; the task is done when nothing touches the pool any more."""
        if self._ending is None:
            self.lost = why
            self._link.close()
            for future in (one for waiting in self._words.values() for one in waiting.values()):
                if not future.done():  # nothing of these moves flows
                    future.set_exception(self._loss())
                    future.exception()
            self._ending = asyncio.create_task(self._end(), name=f"ending {self.peer}")
        return self._ending

    def _stands(self) -> None:
        if self.lost:
            raise self._loss()

    def _loss(self) -> TransferFailed:
        return TransferFailed(f"the pair with rank {self.peer} is lost: {self.lost}")

    async def _end(self) -> None:
        aborted = start(f"abort {self.peer}", self._channel.abort)
        done, _ = await asyncio.wait({aborted}, timeout=SLOW_ABORT_S)
        if not done:
            # Its blocks are in use until it does; whoever waits has to go on waiting.
            log.error("an abort does not end", extra={"peer": self.peer, "way": self.kind})
        try:
            await aborted
        except Exception as error:  # noqa: BLE001  (torch's errors share no base; the pair is over)
            log.warning("abort failed", extra={"peer": self.peer, "why": str(error)})
        self._hearing.cancel()
        await self._link.closed()
        self._out.end()
        self._in.end()
        self._over.set_result(None)

    async def _flow(
        self, executor: SerialExecutor, job: Callable[[float], float], until_s: float
    ) -> float:
        """Run a half on its thread; whichever way that ends, nothing of it goes on afterwards."""
        self._stands()
        flowing = executor.run(lambda: job(until_s - time.monotonic()))
        try:
            either: set[asyncio.Future[Any]] = {flowing, self._over}
            await asyncio.wait(
                either,
                timeout=max(0.0, until_s - time.monotonic()),
                return_when=asyncio.FIRST_COMPLETED,
            )
        except asyncio.CancelledError:
            await self.end("a move on it was cancelled")
            raise
        if flowing.done():
            error = flowing.exception()
            if error is None:
                return flowing.result()
            await self.end(f"a move failed: {error}")
            if time.monotonic() < until_s:
                raise TransferFailed(f"moving blocks with rank {self.peer}: {error}") from error
        elif self._over.done():
            self._stands()
        await self.end("a move on it passed its deadline")
        raise TransferTimeout(f"rank {self.peer} did not move the blocks in time")

    async def _word(self, word: str, plan: str, until_s: float) -> Word:
        """Wait for what the peer has to say of a plan; it may have said it before."""
        self._stands()
        waiting = self._words[word]
        future = waiting.get(plan)
        if future is None:
            future = waiting[plan] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(until_s - time.monotonic()):
                return await asyncio.shield(future)
        except TimeoutError:
            raise TransferTimeout(
                f"rank {self.peer} did not say {word!r} of plan {plan} in time"
            ) from None
        finally:
            waiting.pop(plan, None)

    async def _hear(self) -> None:
        try:
            while True:
                self._take(await self._link.hear())
        except LinkLost as error:
            if not self.lost:
                log.info("pair lost", extra={"peer": self.peer, "why": str(error)})
            await self.end(str(error))

    def _take(self, word: dict[str, Any]) -> None:
        name, plan = word["word"], str(word.get("plan", ""))
        if name == "withdrawn":
            self._words["ready"].pop(plan, None)
            return
        waiting = self._words.get(name)
        if waiting is None:
            raise LinkLost(f"the peer said {name!r}, which is no word of ours")
        future = waiting.get(plan)
        if future is None:
            if name == "go":  # we gave this move up while the peer began it: it cannot end
                raise LinkLost(f"the peer began plan {plan}, which was withdrawn here")
            if len(waiting) >= KEPT_WORDS:
                waiting.pop(next((old for old, kept in waiting.items() if kept.done()), ""), None)
            future = waiting[plan] = asyncio.get_running_loop().create_future()
        if not future.done():
            future.set_result(word)
