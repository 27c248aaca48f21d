"""How fast this worker computes, learnt from its own steps.

The first step of a new shape compiles, captures or allocates, so it says nothing about the next
one: of each power-of-two bucket of tokens the first is left out. So are steps whose decode rows
outweigh their prefill. The rate follows the rest by an average that forgets, both ways. Steps that
only decode are told apart: they take much the same time as the one before.
"""

from __future__ import annotations

WEIGHT = 0.2
"""What a new sample counts for."""
LEAST_US, MOST_US = 0.05, 100_000.0
"""Microseconds a token that no sample passes, whatever a clock did."""


class Pace:
    """The prefill rate.

    Attributes:
        prefill_us: microseconds a computed prompt token, None before the first sample.
        samples: how many it was learnt from.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self.prefill_us: float | None = None
        self.samples = 0
        self._decode_s = 0.0
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
        sample = min(MOST_US, max(LEAST_US, 1e6 * took_s / (prefill_tokens + decode_rows)))
        if self.prefill_us is None:
            self.prefill_us = sample
        else:
            self.prefill_us += WEIGHT * (sample - self.prefill_us)
        self.samples += 1

    def expect_s(self, prefill_tokens: int, decode_rows: int) -> float:
        """Return how long such a step should take, in seconds; 0.0 where nothing is known of it."""
        if not prefill_tokens:
            return self._decode_s
        return 1e-6 * (prefill_tokens + decode_rows) * (self.prefill_us or 0.0)
