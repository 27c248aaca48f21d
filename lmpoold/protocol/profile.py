"""What calibration measured of the links, as the pool keeps it."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from lmpoold.protocol.errors import ConfigError, DecodeError

Pair = tuple[int, int]
"""(source, destination)."""


def bucket(blocks: int) -> int:
    """Return the power of two that a number of blocks falls under."""
    return 1 << max(0, blocks - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Curve:
    """P95 microseconds over bytes, piecewise linear and never falling.

    Raises: ConfigError: no points, or bytes that do not grow.
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.points]
        if not sizes or sizes != sorted(set(sizes)) or sizes[0] <= 0:
            raise ConfigError("a transfer curve needs points of growing positive bytes")
        if any(not (0 < us < math.inf) for _, us in self.points):
            raise ConfigError("a transfer curve needs positive times")

    def at(self, size_bytes: int) -> float:
        """Return the microseconds for a size.

        Below the first point its own time, for what a transfer costs there is not its bytes; above
        the last the slope of the last segment.
        """
        points = self._rising()
        if size_bytes <= points[0][0] or len(points) == 1:
            return points[0][1] * max(1.0, size_bytes / points[0][0] if len(points) == 1 else 1.0)
        for (left, low), (right, high) in itertools.pairwise(points):
            if size_bytes <= right:
                return low + (high - low) * (size_bytes - left) / (right - left)
        (left, low), (right, high) = points[-2:]
        slope = (high - low) / (right - left) or high / right
        return high + slope * (size_bytes - right)

    def _rising(self) -> list[tuple[int, float]]:
        highest, out = 0.0, []
        for size, us in self.points:
            highest = max(highest, us)
            out.append((size, highest))
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What calibration measured.

    Attributes:
        block_bytes: of the K/V it was measured with; another geometry makes it void.
        curves: by pair.
        residuals: by pair and bucket, microseconds.
        slowing: by pair, how much longer bytes travel while both ranks compute, >= 1; of pairs
            that could be measured so.
    """

    block_bytes: int
    curves: Mapping[Pair, Curve] = field(default_factory=dict)
    residuals: Mapping[Pair, Mapping[int, float]] = field(default_factory=dict)
    slowing: Mapping[Pair, float] = field(default_factory=dict)

    def residual(self, pair: Pair, blocks: int) -> float | None:
        """Return the residual of the nearest bucket measured, not below a smaller one's."""
        measured = self.residuals.get(pair)
        if not measured:
            return None
        wanted = bucket(blocks)
        below = [us for size, us in measured.items() if size <= wanted]
        return max(below) if below else measured[min(measured)]

    def encode(self) -> str:
        """Return the profile as one line of JSON."""
        row = {
            "block_bytes": self.block_bytes,
            "curves": {write_pair(pair): curve.points for pair, curve in self.curves.items()},
            "residuals": {write_pair(pair): dict(row) for pair, row in self.residuals.items()},
            "slowing": {write_pair(pair): factor for pair, factor in self.slowing.items()},
        }
        return json.dumps(row, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str | bytes) -> Profile:
        """Read what `encode` wrote; DecodeError if it is anything else."""
        try:
            row = json.loads(text)
            curves = {
                read_pair(pair): Curve(tuple((int(size), float(us)) for size, us in points))
                for pair, points in row["curves"].items()
            }
            residuals = {
                read_pair(pair): {int(size): float(us) for size, us in measured.items()}
                for pair, measured in row["residuals"].items()
            }
            slowing = {
                read_pair(pair): float(factor) for pair, factor in row.get("slowing", {}).items()
            }
            return cls(
                block_bytes=int(row["block_bytes"]),
                curves=curves,
                residuals=residuals,
                slowing=slowing,
            )
        except (ValueError, TypeError, KeyError, AttributeError, ConfigError) as error:
            raise DecodeError(f"not a transfer profile: {error}") from None


def write_pair(pair: Pair) -> str:
    """Return a pair as keys and profiles spell it."""
    return f"{pair[0]}>{pair[1]}"


def read_pair(text: str) -> Pair:
    """Read what `write_pair` wrote; ValueError otherwise."""
    source, _, destination = text.partition(">")
    return int(source), int(destination)
