"""The real worker, which dies or waits at one await of its part in transfer plans.

A fault is written SIDE:NUMBER:ACTION. SIDE is `source` or `destination`, NUMBER counts the awaits
of that side from 0 over the life of the process: before and after each word to the pool, each
handover to the engine and each call of the transport; plans that measure or make a pair do not
count. ACTION is `kill`, or the path of a file that is made there and waited for to go.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from lmpoold.protocol.transfer import Why
from lmpoold.store.plans import PlanStore
from workers.daemon.participant import Participant, Site
from workers.transport.transport import PairTransport


class Fault:
    """Happens once, at the await it was told of."""

    def __init__(self, side: str, number: int, action: str) -> None:
        self.side = side
        self.left = number
        self.action = action

    @classmethod
    def read(cls, text: str) -> Fault:
        side, number, action = text.split(":", 2)
        return cls(side, int(number), action)

    async def pass_by(self) -> None:
        """Count an await of the side; at the chosen one, die or wait."""
        self.left -= 1
        if self.left != -1:
            return
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        path = Path(self.action)
        path.touch()
        while path.exists():
            await asyncio.sleep(0.01)


def install(fault: Fault) -> None:
    """Put the fault around everything that a participant of that side awaits."""
    inside: set[asyncio.Task] = set()

    def around(method):
        async def passing(*args, **kwargs):
            counts = asyncio.current_task() in inside
            if counts:
                await fault.pass_by()
            result = await method(*args, **kwargs)
            if counts:
                await fault.pass_by()
            return result

        return passing

    run = Participant.run

    async def marked(self):
        if self._order.role == fault.side and self._order.why is not Why.CALIBRATE:
            inside.add(asyncio.current_task())
        await run(self)

    Participant.run = marked
    Site.pool = around(Site.pool)
    PlanStore._say = around(PlanStore._say)
    for name in ("open", "send", "receive"):
        setattr(PairTransport, name, around(getattr(PairTransport, name)))
