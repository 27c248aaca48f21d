"""What the event loop tells the engine's thread, and the queue that it goes by."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lmpoold.protocol.messages import Dispatch
from workers.core.handoff import Handoff


@dataclass(frozen=True, slots=True)
class Add:
    """Take a request in."""

    dispatch: Dispatch


@dataclass(frozen=True, slots=True)
class Abort:
    """End a request with an error, or drop it without a word (`code` empty).

    Attributes:
        held: the request itself, if it was not handed over yet: it is taken in to be ended.
    """

    id: str
    code: str = ""
    message: str = ""
    held: Dispatch | None = None


@dataclass(frozen=True, slots=True)
class Reset:
    """Report the whole page table, under `epoch` from now on.

    With `forget` every request is dropped without a word: the rank was fenced, they run elsewhere.
    """

    epoch: str
    forget: bool


@dataclass(frozen=True, slots=True)
class Handover:
    """Do something to the blocks held for transfer plans, while no step is chosen or taken in.

    Attributes:
        act: gets the handoff and the pool's clock.
        done: called with its result, on the engine's thread.
        after_steps: wait for the steps under way first, so that what they compute is in the pool.
            Giving blocks out does not need it: a block is free only when no step under way can
            touch it any more (`UnderWay`). Such a handover may go before other commands.
    """

    act: Callable[[Handoff, float], Any]
    done: Callable[[Any], None]
    after_steps: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """End the thread."""


Command = Add | Abort | Reset | Handover | Stop


class Commands:
    """Commands in their order, but for handovers, which may go before."""

    def __init__(self) -> None:
        """Start empty."""
        self._queue: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._passed: deque[Command] = deque()

    def put(self, command: Command) -> None:
        """Put a command in, from any thread."""
        self._queue.put(command)
        time.sleep(0)  # lets the engine have the interpreter now, not when this thread next waits

    def get(self, wait_s: float | None) -> Command | None:
        """Return the next one; None if none comes in time.

        Args:
            wait_s: None waits for ever.
        """
        if self._passed:
            return self._passed.popleft()
        try:
            return self._queue.get(block=wait_s != 0.0, timeout=wait_s)
        except queue.Empty:
            return None

    def handover(self, wait_s: float) -> Handover | None:
        """Return the next handover that may go before; None if the next one to come may not.

        Whatever it goes before waits for `get`.
        """
        try:
            command = self._queue.get(timeout=wait_s)
        except queue.Empty:
            return None
        if isinstance(command, Handover) and not command.after_steps:
            return command
        self._passed.append(command)
        return None
