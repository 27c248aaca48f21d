"""What moving blocks takes, and what it saves, in microseconds.

Theory of operation. A plan costs the time its bytes travel and the rest: orders, handovers, the
call that publishes. For a pair of ranks the first follows a curve of measured P95 times over
bytes, the second a residual a power-of-two bucket of blocks; both come from calibration, or from a
guess by the way that the pair uses. Each settled plan is one more measurement of the whole, and
says two things: how the pair compares with what is known of it, whatever the size, and what plans
of this size take. Both averages forget, so they pull the prediction towards what happens now, down
as well as up; a sample loses its say as it ages, so that a pair nobody uses drifts back to what
calibration knows. A plan for which the two had to connect is no sample: the next one need not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lmpoold.protocol.profile import Curve, Pair, Profile, bucket

EWMA_WEIGHT = 0.25
HALF_LIFE_S = 300.0
"""After so long a sample says half as much against the calibrated figure."""
TRUST = 2.0
"""Samples after which observation and calibration weigh the same."""


MOST_RATIO = 8.0
"""What a sample may say of the pair at most, up or down: one plan that stood still is no trend."""

GUESSES: Mapping[str, Curve] = {
    "peer": Curve(((1 << 20, 60.0), (1 << 30, 4000.0))),
    "nccl": Curve(((1 << 20, 200.0), (1 << 30, 6000.0))),
    "gloo": Curve(((1 << 20, 2000.0), (1 << 30, 1_500_000.0))),
}
"""For pairs without a measurement: on the slow side of what each way does."""
RESIDUAL_GUESS_US = 3000.0


@dataclass(frozen=True, slots=True)
class Observed:
    """An average that forgets: of what plans took, in microseconds, or of its ratio to a prior."""

    mean: float
    samples: int
    at_s: float

    def after(self, sample: float, now_s: float) -> Observed:
        """Return the average with one more sample."""
        weight = EWMA_WEIGHT if self.samples else 1.0
        return Observed(self.mean + weight * (sample - self.mean), self.samples + 1, now_s)

    def say(self, now_s: float) -> float:
        """Return how much it weighs against calibration, 0 to below 1."""
        fresh: float = self.samples * 0.5 ** (max(0.0, now_s - self.at_s) / HALF_LIFE_S)
        return fresh / (fresh + TRUST)

    def pull(self, known: float, now_s: float) -> float:
        """Return what is known, pulled towards the average by its say."""
        return known + self.say(now_s) * (self.mean - known)


NOTHING = Observed(0.0, 0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Predicts plans; a new one a sample.

    Attributes:
        profile: calibrated, or an empty one.
        interference: how much longer bytes travel while both ranks compute, where the profile
            does not say.
        observed: microseconds by pair and bucket.
        ratios: to the prior, by pair.
    """

    profile: Profile
    interference: float = 1.2
    observed: Mapping[tuple[Pair, int], Observed] = field(default_factory=dict)
    ratios: Mapping[Pair, Observed] = field(default_factory=dict)

    def prior(self, pair: Pair, blocks: int, way: str) -> float:
        """Return what calibration, or a guess, says a plan takes."""
        curve = self.profile.curves.get(pair) or GUESSES.get(way, GUESSES["gloo"])
        residual = self.profile.residual(pair, blocks)
        slowing = self.profile.slowing.get(pair, self.interference)
        return slowing * curve.at(blocks * self.profile.block_bytes) + (
            RESIDUAL_GUESS_US if residual is None else residual
        )

    def predict(self, pair: Pair, blocks: int, way: str, now_s: float) -> float:
        """Return what a plan is expected to take from its begin to its publish.

        Args:
            pair: source and destination.
            blocks: that travel, > 0.
            way: what the pair uses: `peer`, `nccl` or `gloo`.
            now_s: seconds of the clock that `learn` gets.
        """
        ratio = self.ratios.get(pair, NOTHING).pull(1.0, now_s)
        like_the_pair = ratio * self.prior(pair, blocks, way)
        return self.observed.get((pair, bucket(blocks)), NOTHING).pull(like_the_pair, now_s)

    def learn(self, pair: Pair, blocks: int, way: str, took_us: float, now_s: float) -> CostModel:
        """Return the model after one more plan."""
        key = (pair, bucket(blocks))
        ratio = took_us / self.prior(pair, blocks, way)
        ratio = min(MOST_RATIO, max(1 / MOST_RATIO, ratio))
        seen = self.observed.get(key, NOTHING).after(took_us, now_s)
        ratios = {**self.ratios, pair: self.ratios.get(pair, NOTHING).after(ratio, now_s)}
        return replace(self, observed={**self.observed, key: seen}, ratios=ratios)

    def line(self, pair: Pair, way: str, now_s: float, sizes: Sequence[int] = (1, 32)) -> Line:
        """Return the straight line that `route` works with, through two sizes in blocks."""
        small, large = sizes
        low, high = (self.predict(pair, size, way, now_s) for size in (small, large))
        block_us = max(0.0, (high - low) / (large - small))
        return Line(max(0.0, low - small * block_us), block_us)


@dataclass(frozen=True, slots=True)
class Line:
    """What moving n blocks takes on a link: `fixed_us + n block_us`."""

    fixed_us: float
    block_us: float

    def __str__(self) -> str:
        """Return the line as `links` holds it."""
        return f"{self.fixed_us:.0f} {self.block_us:.0f}"
