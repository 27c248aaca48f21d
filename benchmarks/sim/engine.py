"""How long an engine step takes: a model with the constants of a measured engine.

A decode step costs what it does at a context of 1,024 tokens (by batch, between measured batches in
proportion), and the reading of the K/V beyond that. A prefill chunk costs a base, a time a token,
and a time for each pair of a token and one before it; the three are fitted to measured chunks.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

RESULT = Path(__file__).resolve().parents[1] / "results" / "nvidia-h200" / "step.json"
KV_BYTES_PER_TOKEN = 114_688
"""Of both measured shapes: 28 layers, 8 K/V heads of 128, two bytes a number."""


@dataclass(frozen=True, slots=True)
class EngineModel:
    """Durations of steps.

    Attributes:
        decode_ms: (batch, ms) by growing batch, at `context_tokens` a sequence.
        context_tokens: of each sequence when `decode_ms` was measured.
        context_token_ms: for each token of context beyond it.
        prefill_ms: of a chunk: base, a token, a pair of new tokens, a pair with a cached one.
    """

    decode_ms: tuple[tuple[int, float], ...]
    context_tokens: int
    context_token_ms: float
    prefill_ms: tuple[float, float, float, float]

    def decode_step_s(self, batch: int, context_tokens: int) -> float:
        """Return the seconds of a step of `batch` sequences with so much context together."""
        known = self.decode_ms
        place = min(max(bisect_right(known, (batch, 0.0)), 1), len(known) - 1)
        (low, low_ms), (high, high_ms) = known[place - 1], known[place]
        ms = low_ms + (high_ms - low_ms) * (batch - low) / (high - low)
        ms += self.context_token_ms * (context_tokens - batch * self.context_tokens)
        return max(ms, known[0][1] / 2) / 1000

    def prefill_s(self, tokens: int, cached: int, *, alone: bool) -> float:
        """Return the seconds of a chunk of `tokens` behind `cached` ones.

        Args:
            tokens: computed.
            cached: of the same prompt, before them.
            alone: nothing else is in the step that would read the weights anyway.
        """
        base, token, new_pair, cached_pair = self.prefill_ms
        ms = tokens * (token + new_pair * tokens / 2 + cached_pair * cached)
        return (ms + base * alone) / 1000


# 0.6B shape on one H200: what the archived run gives, for a checkout without it.
DEFAULT = EngineModel(
    decode_ms=((1, 0.943), (8, 1.411), (64, 2.931), (256, 8.321)),
    context_tokens=1024,
    context_token_ms=2.6e-5,
    prefill_ms=(1.535, 8.79e-4, 7.16e-7, 5.21e-7),
)


def fit(result: Mapping[str, Any], model: str) -> EngineModel:
    """Return the engine that a step benchmark measured.

    Args:
        result: the JSON of `benchmarks.micro.step`.
        model: a key of its `decode_ms`.
    """
    rows = [row for row in result["prefill"] if row["model"] == model]
    return EngineModel(
        decode_ms=tuple(sorted((int(b), ms) for b, ms in result["decode_ms"][model].items())),
        context_tokens=result["context_tokens"],
        context_token_ms=KV_BYTES_PER_TOKEN / (result["read_gb_s"] * 1e6),
        prefill_ms=fit_prefill(
            [(row["new_tokens"], row["tokens"] - row["new_tokens"], row["step_ms"]) for row in rows]
        ),
    )


def fit_prefill(rows: Sequence[tuple[int, int, float]]) -> tuple[float, float, float, float]:
    """Fit base, token and pair times to rows of (tokens, cached, ms) by relative least squares.

    Pairs among new tokens cost more than pairs with cached ones: tiles on the diagonal are computed
    whole and used by half.
    """
    terms = [(1.0 / ms, n / ms, n * n / 2 / ms, n * c / ms) for n, c, ms in rows]
    solution, *_ = numpy.linalg.lstsq(numpy.array(terms), numpy.ones(len(rows)), rcond=None)
    base, token, new, cached = (max(0.0, float(value)) for value in solution)
    return base, token, new, cached


def measured(model: str = "0.6b", path: Path = RESULT) -> EngineModel:
    """Return the engine of the archived run, or `DEFAULT` when there is no such file."""
    if not path.exists():
        return DEFAULT
    return fit(json.loads(path.read_text(encoding="utf-8")), model)
