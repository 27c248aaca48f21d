"""Means with Student-t 95 % intervals, and percentiles by linear interpolation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""The 97.5 % point of Student's t by degrees of freedom, from 1 on."""
NORMAL_975 = 1.960


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of them lie, between neighbours in proportion."""
    inorder = sorted(values)
    place = share * (len(inorder) - 1)
    low = math.floor(place)
    high = min(low + 1, len(inorder) - 1)
    return inorder[low] + (inorder[high] - inorder[low]) * (place - low)


def interval(values: Sequence[float]) -> dict[str, float]:
    """Return mean, standard deviation and half the width of the 95 % interval.

    Of one value neither is known: they are left out.
    """
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return {"mean": mean}
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    t = T_975[count - 2] if count - 2 < len(T_975) else NORMAL_975
    return {"mean": mean, "std": std, "ci95": t * std / math.sqrt(count)}


def numbers(row: Mapping[str, Any], before: str = "") -> dict[str, float]:
    """Return the numbers of a nested mapping under dotted names; lists are left out."""
    found: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            found |= numbers(value, f"{before}{name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[before + name] = float(value)
    return found


def summary(trials: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the interval of every number that some trial has; where it is missing it counts as 0.

    Counts by reason are missing where the reason never came up.
    """
    rows = [numbers(trial) for trial in trials]
    names = sorted({name for row in rows for name in row})
    return {name: interval([row.get(name, 0.0) for row in rows]) for name in names}
