"""From measured transfers to a profile: percentiles by pair and size. Pure."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lmpoold.protocol.profile import Curve, Pair, Profile, bucket

TAIL = 0.95
LEAST_US = 1.0
"""A clock that saw nothing pass: a curve has no place for zero."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured plan.

    Attributes:
        pair: source and destination.
        blocks: that travelled, > 0.
        travel_us: what their bytes took.
        total_us: from the plan's begin to its publish.
        serving: whether both ranks computed meanwhile.
    """

    pair: Pair
    blocks: int
    travel_us: float
    total_us: float
    serving: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """Samples of one size on an idle pair, as percentiles in microseconds.

    Attributes:
        residual_us: by what the whole's P95 exceeds the travel's: orders, handovers, the call that
            publishes. Both tails seldom meet: their P95s added up would cover all but 1 %.
    """

    blocks: int
    samples: int
    travel_p50_us: float
    travel_p95_us: float
    residual_us: float
    total_p50_us: float
    total_p95_us: float


def percentile(values: Iterable[float], share: float) -> float:
    """Return the least value that `share` of the values do not exceed; ValueError for none."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values have no percentile")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def points_of(samples: Iterable[Sample], pair: Pair) -> list[Point]:
    """Return the sizes that were measured on an idle pair, smallest first."""
    sizes: defaultdict[int, list[Sample]] = defaultdict(list)
    for one in samples:
        if one.pair == pair and not one.serving:
            sizes[one.blocks].append(one)
    return [_point(blocks, group) for blocks, group in sorted(sizes.items())]


def _point(blocks: int, group: Sequence[Sample]) -> Point:
    travels, totals = [one.travel_us for one in group], [one.total_us for one in group]
    travel_p95_us, total_p95_us = percentile(travels, TAIL), percentile(totals, TAIL)
    return Point(
        blocks=blocks,
        samples=len(group),
        travel_p50_us=percentile(travels, 0.5),
        travel_p95_us=travel_p95_us,
        residual_us=max(0.0, total_p95_us - travel_p95_us),
        total_p50_us=percentile(totals, 0.5),
        total_p95_us=total_p95_us,
    )


def slowing_of(samples: Sequence[Sample], pair: Pair) -> float | None:
    """Return how much longer bytes travel while both ranks compute, >= 1; None if not measured.

    Sizes are compared by their medians, and the median size speaks for the pair.
    """
    idle = {point.blocks: point.travel_p50_us for point in points_of(samples, pair)}
    busy: defaultdict[int, list[float]] = defaultdict(list)
    for one in samples:
        if one.pair == pair and one.serving and one.blocks in idle:
            busy[one.blocks].append(one.travel_us)
    ratios = [
        percentile(group, 0.5) / max(LEAST_US, idle[blocks]) for blocks, group in busy.items()
    ]
    return max(1.0, statistics.median(ratios)) if ratios else None


def fit(samples: Sequence[Sample], block_bytes: int) -> Profile:
    """Return the profile that the samples of idle and of serving pairs make.

    Args:
        samples: in any order, of any pairs.
        block_bytes: of the K/V they were measured with.
    """
    curves, residuals, slowing = {}, {}, {}
    for pair in sorted({one.pair for one in samples}):
        points = points_of(samples, pair)
        if not points:
            continue
        curves[pair] = Curve(
            tuple(
                (point.blocks * block_bytes, max(LEAST_US, point.travel_p95_us)) for point in points
            )
        )
        by_bucket: dict[int, float] = {}
        for point in points:
            size = bucket(point.blocks)
            by_bucket[size] = max(by_bucket.get(size, 0.0), point.residual_us)
        residuals[pair] = by_bucket
        if (factor := slowing_of(samples, pair)) is not None:
            slowing[pair] = factor
    return Profile(block_bytes=block_bytes, curves=curves, residuals=residuals, slowing=slowing)


def merged(new: Profile, old: Profile | None) -> Profile:
    """Return `new`, and of `old` the pairs that `new` lacks, if both are of the same blocks."""
    if old is None or old.block_bytes != new.block_bytes:
        return new
    return Profile(
        block_bytes=new.block_bytes,
        curves={**old.curves, **new.curves},
        residuals={**old.residuals, **new.residuals},
        slowing={pair: factor for pair, factor in old.slowing.items() if pair not in new.curves}
        | dict(new.slowing),
    )
