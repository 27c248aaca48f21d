"""How long to wait before trying a lost connection again."""

from __future__ import annotations

FIRST_S = 0.05
LONGEST_S = 0.5


def decide_wait(failures: int, jitter: float) -> float:
    """Return the seconds to wait after `failures` (>= 1) in a row.

    Args:
        failures: attempts that failed since the last good one.
        jitter: in [0, 1); spreads processes that lost the same server at the same moment.
    """
    grown: float = FIRST_S * 2.0 ** min(failures - 1, 10)
    return min(LONGEST_S, grown) * (0.5 + 0.5 * jitter)
