"""How long a worker has been at one thing: what its heartbeat says beside that it lives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Progress:
    """Watches the engine's thread and the event loop from the thread that beats."""

    def __init__(self, engine_stuck_s: Callable[[float], float]) -> None:
        """Watch the running event loop, and an engine by its `stuck_s`."""
        self._engine_stuck_s = engine_stuck_s
        self._loop = asyncio.get_running_loop()
        self._asked_s: float | None = None

    def stuck_ms(self) -> int:
        """Return for how long one of the two has had something to do and finished nothing.

        The loop is asked for a sign; until it gives one, it is stuck since it was asked.
        """
        now_s = time.monotonic()
        asked_s = self._asked_s
        if asked_s is None:
            self._asked_s = asked_s = now_s
            self._loop.call_soon_threadsafe(self._answer)
        return int(1000 * max(now_s - asked_s, self._engine_stuck_s(now_s)))

    def _answer(self) -> None:
        self._asked_s = None
