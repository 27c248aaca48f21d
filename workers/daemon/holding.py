"""Requests that wait for a plan to bring their prefix, before the engine gets them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lmpoold.protocol.messages import Dispatch


class Holding:
    """Keeps a request until its plan is over or its wait is; then hands it on, once."""

    def __init__(self, hand_on: Callable[[Dispatch], None]) -> None:
        """Give what was waited for to `hand_on`, on the event loop's thread."""
        self._hand_on = hand_on
        self._held: dict[str, tuple[Dispatch, asyncio.TimerHandle]] = {}

    def hold(self, dispatch: Dispatch) -> None:
        """Keep a request for at most its `wait_s`; one that is held already stays as it is."""
        if dispatch.id not in self._held:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(dispatch.wait_s, self.release, dispatch.id)
            self._held[dispatch.id] = (dispatch, timer)

    def recall(self, request_id: str) -> Dispatch | None:
        """Take a request back, if it is held: it is not handed on."""
        held = self._held.pop(request_id, None)
        if held is None:
            return None
        dispatch, timer = held
        timer.cancel()
        return dispatch

    def release(self, request_id: str) -> None:
        """Hand a request on now, if it is held."""
        if (dispatch := self.recall(request_id)) is not None:
            self._hand_on(dispatch)

    def release_plan(self, plan: str) -> None:
        """Hand on whatever waits for a plan."""
        for request_id in [key for key, (held, _) in self._held.items() if held.plan == plan]:
            self.release(request_id)

    def forget(self) -> None:
        """Drop all of them: they run elsewhere."""
        for _, timer in self._held.values():
            timer.cancel()
        self._held.clear()
