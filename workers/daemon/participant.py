"""One plan's task on a worker: its orders, carried out one after another.

Nothing here waits for the step loop to be free but the handovers to the engine's thread, and
nothing in the step loop waits for anything here. Blocks are let go of only after the pool has said
that both sides have stopped (`settle`), or when a published plan is cleared up.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from redis.exceptions import ResponseError

from lmpoold.protocol.backoff import decide_wait
from lmpoold.protocol.errors import Conflict, Stale, TransferFailed
from lmpoold.protocol.messages import decode_tokens
from lmpoold.protocol.transfer import SETTLED, Mode, Phase, PlanOrder, Role, Why
from lmpoold.shell.steady import LOST, is_lost
from lmpoold.store.plans import PlanStore
from workers.core.handoff import Handoff, Pinned, Refusal, Reserved, names_agree
from workers.daemon.commands import Command, Handover
from workers.transport.port import Move, Transport

log = logging.getLogger(__name__)

T = TypeVar("T")
ASK_AFTER_S = 30.0
"""A plan that hears nothing for so long asks the pool whether it still exists."""


class EpochOver(Exception):
    """Nothing that a plan of the old epoch says counts any more."""


async def handed_over(
    tell: Callable[[Command], None],
    act: Callable[[Handoff, float], T],
) -> T:
    """Have the engine's thread do something to the pool between two steps; see `Handover`."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(value: T) -> None:
        if not result.done():
            result.set_result(value)

    def done(value: T) -> None:
        loop.call_soon_threadsafe(settle, value)

    tell(Handover(act, done))
    return await result


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What every plan of a worker stands on.

    Attributes:
        tell: the engine's queue.
        over: called with a plan's id when nobody need wait for it any more; repeats are harmless.
    """

    plans: PlanStore
    transport: Transport
    rank: int
    block_size: int
    tell: Callable[[Command], None]
    over: Callable[[str], None]

    async def pool(self, act: Callable[[Handoff, float], T]) -> T:
        """Have the engine's thread do something to the pool between two steps; see `Handover`."""
        return await handed_over(self.tell, act)

    async def say(self, call: Callable[[], Awaitable[T]]) -> T:
        """Say something until the server has heard it.

        Raises:
            Conflict: nobody knows the plan.
            EpochOver: the rank was fenced, or the plan is of another epoch.
        """
        failures = 0
        while True:
            try:
                return await call()
            except Stale:
                raise EpochOver from None
            except (*LOST, ResponseError) as error:
                if not is_lost(error):
                    raise
                failures += 1
            await asyncio.sleep(decide_wait(failures, random.random()))


class Participant:
    """This worker's part in one plan.

    Attributes:
        moving: whether something is awaited that closing the pair would end.
        settled: whether nobody need wait for the plan any more.
        gone: whether this side holds nothing for it any more.
    """

    def __init__(self, site: Site, order: PlanOrder) -> None:
        """Take part as `order`, of kind `plan_prepare`, says."""
        self.id = order.id
        self.peer = order.peer
        self.moving = False
        self.settled = False
        self.gone = False
        self._site = site
        self._order = order
        self._orders: asyncio.Queue[PlanOrder] = asyncio.Queue()
        self._answer: Pinned | Reserved | None = None
        self._measures = order.why is Why.CALIBRATE

    def give(self, order: PlanOrder) -> None:
        """Put an order in line."""
        self._orders.put_nowait(order)

    def end_wait(self) -> None:
        """Let those who wait for the plan go on."""
        self.settled = True
        self._site.over(self.id)

    async def run(self) -> None:
        """Carry out a plan's orders until it is over here."""
        try:
            await self._prepare()
            while not self.gone:
                try:
                    async with asyncio.timeout(ASK_AFTER_S):
                        order = await self._orders.get()
                except TimeoutError:
                    await self._ask()
                    continue
                await self._carry_out(order)
        except Conflict:
            await self._settle()  # the pool knows nothing of it any more
        finally:
            self.end_wait()

    async def _carry_out(self, order: PlanOrder) -> None:
        match order.kind:
            case "plan_execute" if self.settled or self._answer is None:
                return  # an order to abort is on its way, or behind this one in line
            case "plan_execute" if order.role is Role.SOURCE:
                await self._send(order)
            case "plan_execute":
                await self._receive(order)
            case "plan_finalize":
                await self._finalize()
            case "plan_abort":
                await self._stopped("stopped")
            case "plan_settle":
                await self._settle()

    async def _prepare(self) -> None:
        order = self._order
        source = order.role is Role.SOURCE

        def act(handoff: Handoff, _: float) -> Pinned | Reserved | Refusal:
            if self._measures:
                return handoff.scratch(order.id, order.count, source=source)
            if source:
                return handoff.pin(order.id, order.hashes, order.first)
            return handoff.reserve(order.id, order.hashes)

        answer = await self._site.pool(act)
        if isinstance(answer, Refusal):
            await self._stopped(answer.reason)
            return
        try:
            opened = not self._site.transport.stands(order.peer, order.peer_epoch)
            if opened:
                await self._open_pair(order)
        except TransferFailed as error:
            await self._failed_move("no_pair", error)
            return
        self._answer = answer
        if isinstance(answer, Pinned):
            await self._site.say(
                lambda: self._site.plans.pinned(
                    order.id,
                    self._site.rank,
                    order.epoch,
                    first=answer.first,
                    count=answer.count,
                    root=answer.root,
                    refs=answer.refs,
                    tokens=answer.tokens,
                    opened=opened,
                )
            )
        else:
            await self._site.say(
                lambda: self._site.plans.reserved(
                    order.id,
                    self._site.rank,
                    order.epoch,
                    first=answer.first,
                    refs=answer.refs,
                    opened=opened,
                )
            )

    async def _open_pair(self, order: PlanOrder) -> None:
        # An epoch is of one process, and so is an offer: a pair of this epoch needs no other one.
        facts = await self._site.say(lambda: self._site.plans.rank_facts(order.peer))
        await self._moving(
            self._site.transport.open(
                order.peer,
                order.peer_epoch,
                facts.get("offer", ""),
                deadline_s=order.limit_ms / 1000,
            ),
        )

    async def _send(self, order: PlanOrder) -> None:
        assert isinstance(self._answer, Pinned), "only a source sends"
        skip, count = order.first - self._answer.first, order.count - order.first
        own = [ref.block for ref in self._answer.refs[skip : skip + count]]
        move = Move(
            order.id,
            self._site.rank,
            order.peer,
            tuple(own),
            tuple(ref.block for ref in order.refs),
        )
        try:
            moved = await self._moving(
                self._site.transport.send(move, deadline_s=order.limit_ms / 1000)
            )
        except TransferFailed as error:
            await self._failed_move("not_sent", error)
            return
        took_us = round(1e6 * moved.seconds)
        await self._site.say(
            lambda: self._site.plans.executed(self.id, self._site.rank, order.epoch, took_us)
        )

    async def _receive(self, order: PlanOrder) -> None:
        assert isinstance(self._answer, Reserved), "only a destination receives"
        tokens = decode_tokens(order.tokens)
        count = order.count - order.first
        if not self._measures and not self._named_after(tokens, order):
            await self._stopped("wrong_tokens")
            return
        own = [ref.block for ref in self._answer.refs[:count]]
        move = Move(
            order.id,
            order.peer,
            self._site.rank,
            tuple(ref.block for ref in order.refs),
            tuple(own),
        )
        try:
            moved = await self._moving(
                self._site.transport.receive(move, deadline_s=order.limit_ms / 1000)
            )
        except TransferFailed as error:
            await self._failed_move("not_received", error)
            return
        took_us = round(1e6 * moved.seconds)
        phase = await self._site.say(
            lambda: self._site.plans.publish(self.id, self._site.rank, order.epoch, took_us)
        )
        if phase not in (Phase.PUBLISH, Phase.FINALIZE):
            await self._stopped("stopped")
        elif self._measures:
            await self._finalize()
        else:
            await self._publish(order, tokens)

    def _named_after(self, tokens: Sequence[int], order: PlanOrder) -> bool:
        size, first = self._site.block_size, order.first
        return len(tokens) == (order.count - first) * size and names_agree(
            self._order.hashes, first, tokens, size, order.root
        )

    async def _publish(self, order: PlanOrder, tokens: Sequence[int]) -> None:
        """The pool shows the pages: let the engine have them, and whoever waited for them."""
        named = await self._site.pool(
            lambda handoff, now_s: handoff.publish(self.id, order.count, order.root, tokens, now_s)
        )
        self.end_wait()
        log.info(
            "plan published",
            extra={"plan": self.id, "from": order.peer, "blocks": named, "why": self._order.why},
        )
        await self._finalize()

    async def _finalize(self) -> None:
        """Let go as the plan's end wants it, and say so."""
        moved, keep = self._order.mode is Mode.MOVE, self._order.keep
        freed = await self._site.pool(
            lambda handoff, _: handoff.release(self.id, moved=moved, keep=keep)
        )
        self.gone = True
        epoch = self._order.epoch
        await self._site.say(
            lambda: self._site.plans.finalize(self.id, self._site.rank, epoch, freed)
        )

    async def _settle(self) -> None:
        await self._site.pool(lambda handoff, _: handoff.settle(self.id))
        self.gone = True

    async def _failed_move(self, reason: str, error: TransferFailed) -> None:
        log.warning("blocks not moved", extra={"plan": self.id, "at": reason, "why": str(error)})
        await self._stopped(reason)

    async def _stopped(self, reason: str) -> None:
        """Say that this side touches no block of the plan any more; it waits to settle."""
        self.end_wait()
        epoch = self._order.epoch
        await self._site.say(
            lambda: self._site.plans.abort(self.id, self._site.rank, epoch, reason, stopped=True)
        )

    async def _ask(self) -> None:
        """No order came for long: the pool may have settled the plan, or lost it with its data."""
        phase = await self._site.say(lambda: self._site.plans.phase(self.id))
        if phase is None or phase in SETTLED:
            await self._settle()

    async def _moving(self, work: Awaitable[T]) -> T:
        self.moving = True
        try:
            return await work
        finally:
            self.moving = False
