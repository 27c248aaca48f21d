"""A worker's part in transfer plans: orders in, a task a plan, requests that wait for one.

An order to abort does not wait in line: it closes the pair, so that what the plan's task is
waiting for fails at once, and the task comes to the order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from lmpoold.protocol.errors import Conflict
from lmpoold.protocol.messages import Dispatch
from lmpoold.protocol.transfer import Phase, PlanOrder
from lmpoold.store.plans import PlanStore
from workers.daemon.commands import Add, Command, Handover
from workers.daemon.holding import Holding
from workers.daemon.participant import EpochOver, Participant, Site
from workers.transport.port import Transport

REMEMBERED = 4096
"""Plans whose first order is known when it comes again."""


class Transfers:
    """The plans of one worker."""

    def __init__(
        self,
        plans: PlanStore,
        transport: Transport,
        *,
        rank: int,
        block_size: int,
        tell: Callable[[Command], None],
    ) -> None:
        """Take orders for `rank`.

        Args:
            plans: where this worker's words go.
            transport: started by the caller.
            rank: this worker's.
            block_size: tokens a block.
            tell: the engine's queue.
        """
        self._holding = Holding(lambda dispatch: tell(Add(dispatch)))
        self._site = Site(
            plans=plans,
            transport=transport,
            rank=rank,
            block_size=block_size,
            tell=tell,
            over=self._holding.release_plan,
        )
        self._epoch = ""
        self._live: dict[str, Participant] = {}
        self._met: dict[str, None] = {}  # plans that began here, the last ones
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self, epoch: str) -> None:
        """Take part under a new epoch."""
        self._epoch = epoch

    async def end(self) -> None:
        """Stop whatever moves and let go of every block: the epoch is over."""
        self._epoch = ""
        self._holding.forget()
        for peer in {one.peer for one in self._live.values() if one.moving}:
            await self._site.transport.close(peer)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._live.clear()
        self._site.tell(Handover(lambda handoff, _: handoff.drop(), lambda _: None))

    async def run(self) -> None:
        """Wait until a task fails by a mistake of ours, and raise what it raised."""
        await asyncio.shield(self._failed)

    def hold(self, dispatch: Dispatch) -> bool:
        """Keep a request back until its plan is over; False if there is nothing to wait for."""
        live = self._live.get(dispatch.plan)
        if live is None or live.settled:
            return False
        self._holding.hold(dispatch)
        return True

    def recall(self, request_id: str) -> Dispatch | None:
        """Return a request that is held back, and let go of it."""
        return self._holding.recall(request_id)

    def take(self, order: PlanOrder) -> None:
        """Take an order in; one of another epoch is void, a repeated one harmless."""
        if order.epoch != self._epoch:
            return
        live = self._live.get(order.id)
        match order.kind:
            case "plan_prepare":
                if order.id not in self._met:  # else delivered twice after a lost connection
                    self._begin(order)
            case _ if live is None:
                self._spawn(self._repeat(order), f"late order for {order.id}")
            case "plan_abort":
                live.end_wait()
                if live.moving:
                    self._spawn(self._site.transport.close(order.peer), "close pair")
                live.give(order)
            case _:
                live.give(order)

    def _begin(self, order: PlanOrder) -> None:
        self._met[order.id] = None
        if len(self._met) > REMEMBERED:
            del self._met[next(iter(self._met))]
        live = self._live[order.id] = Participant(self._site, order)
        task = self._spawn(live.run(), f"plan {order.id}")
        task.add_done_callback(lambda _: self._live.pop(order.id, None))

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, EpochOver) and not self._failed.done():
            self._failed.set_exception(error)

    async def _repeat(self, order: PlanOrder) -> None:
        """Say again, of a plan that is over here, what the pool seems not to have heard."""
        site = self._site
        say: Callable[[], Awaitable[Phase]]
        if order.kind == "plan_abort":
            say = lambda: site.plans.abort(  # noqa: E731
                order.id, site.rank, order.epoch, "stopped", stopped=True
            )
        elif order.kind == "plan_finalize":
            say = lambda: site.plans.finalize(order.id, site.rank, order.epoch, 0)  # noqa: E731
        else:
            return
        try:
            await site.say(say)
        except Conflict:
            return  # settled and forgotten since
