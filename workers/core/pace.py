"""How fast this worker computes, learnt from its own steps.

The first step of a new shape compiles, captures or allocates, so it says nothing about the next
one: of each power-of-two bucket of tokens the first is left out. So are steps whose decode rows
outweigh their prefill. Of the rest the prompt tokens count for what they added to a step that only
decodes, by their number: what a step takes in any case is not saved by computing fewer of them, and
a short step says more of that than of them. The rate forgets, both ways. Steps that only decode are
told apart: they take much the same time as the one before.
"""

from __future__ import annotations

WEIGHT = 0.2
"""What a new sample counts for."""
LEAST_US, MOST_US = 0.05, 100_000.0
"""Microseconds a token that no sample passes, whatever a clock did."""


class Pace:
    """The prefill rate.

    Attributes:
        prefill_us: microseconds that one more computed prompt token takes, None before the first
            sample.
        samples: how many it was learnt from.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self.prefill_us: float | None = None
        self.samples = 0
        self._decode_s = 0.0
        self._tokens = self._spent_s = 0.0
        self._met: set[int] = set()

    def observe(self, prefill_tokens: int, decode_rows: int, took_s: float) -> None:
        """Learn from one step.

        Args:
            prefill_tokens: prompt tokens it computed.
            decode_rows: sequences it gave their next token.
            took_s: seconds, the model's work alone.
        """
        if not prefill_tokens:
            self._decode_s = took_s
        if prefill_tokens < 4 * max(1, decode_rows):
            return
        bucket = prefill_tokens.bit_length()
        if bucket not in self._met:
            self._met.add(bucket)
            return
        # Half of it at least: that decode step may have had many more rows.
        added_s = max(took_s - self._decode_s, took_s / 2)
        weight = WEIGHT if self.samples else 1.0
        self._tokens += weight * (prefill_tokens - self._tokens)
        self._spent_s += weight * (added_s - self._spent_s)
        self.prefill_us = min(MOST_US, max(LEAST_US, 1e6 * self._spent_s / self._tokens))
        self.samples += 1

    def expect_s(self, prefill_tokens: int) -> float:
        """Return how long a step should take, in seconds; 0.0 where nothing is known of it.

        Args:
            prefill_tokens: that it computes; 0 for one that only decodes.
        """
        if not prefill_tokens:
            return self._decode_s
        if self.prefill_us is None:
            return 0.0
        return self._decode_s + 1e-6 * prefill_tokens * self.prefill_us
