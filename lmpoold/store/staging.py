"""A snapshot in chunks so small that no other client waits long for them, on whatever machine.

The server's clock is read before and behind each chunk. What passes between is what another client
may have to wait: the chunk, and those of other workers that came with it. All workers have a
snapshot to send after a restart; they take turns, so that few chunks come at once.
"""

from __future__ import annotations

import random
import time
from collections import deque

FIRST_PAGES = 250
LEAST_PAGES = 50
MOST_PAGES = 500
BUDGET_S = 0.0008
"""How long a chunk may take, and what comes with it; another client is to wait 5 ms at most."""
LAST_CHUNKS = 2
"""So many are looked at, and the slower one is believed. While the server's table grows, a page
takes several times as long: a size that is right in the mean would keep others waiting then."""


class ChunkSize:
    """How many pages the next chunk may have.

    Attributes:
        pages: of the next chunk.
    """

    def __init__(self) -> None:
        """Begin with a chunk that is small on any machine."""
        self.pages = FIRST_PAGES
        self._page_s: deque[float] = deque(maxlen=LAST_CHUNKS)

    def learn(self, pages: int, took_s: float) -> None:
        """Take in a chunk: its pages, and how long the server was at it."""
        self._page_s.append(took_s / pages)
        page_s = max(*self._page_s, 1e-9)
        # Doubled at most: what is right after one short chunk may not be after a longer one.
        self.pages = max(LEAST_PAGES, min(MOST_PAGES, 2 * pages, int(BUDGET_S / page_s)))


RENEW_S = 0.5
"""How long a turn goes unasked for; the server gives it for four times as long."""
PAUSE_S = 0.02
"""How long a worker waits before it asks for a turn again, about."""


class Turn:
    """A rank's turn to send pages."""

    def __init__(self) -> None:
        """Begin before it was asked for."""
        self._asked_s = 0.0

    def ask(self) -> None:
        """Note that the server is asked now."""
        self._asked_s = time.monotonic()

    @property
    def ends_soon(self) -> bool:
        """Whether to ask again before more is sent."""
        return time.monotonic() - self._asked_s > RENEW_S

    def pause_s(self) -> float:
        """Return how long to wait for one's turn: ranks that came together ask apart."""
        return PAUSE_S * random.uniform(0.5, 1.5)
