"""From what became of each request to the figures of a trial. Arithmetic only.

Definitions. TTFT and E2E run from just before the request is sent to when its first and last token
have been read by the asker; TPOT is the time between them a token after the first, and a request of
one token has none. Goodput counts the tokens of requests whose E2E is within the SLA. A prefix hit
is a request that found at least one complete block at its worker; token reuse is the share of
prompt tokens not computed. Route figures say what the route was promised by the page table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.paper.intervals import percentile


@dataclass(slots=True, kw_only=True)
class Sample:
    """What became of one request; times in seconds after the trial began.

    Attributes:
        digest: of its tokens, so that answers of two modes can be compared.
        blocks: complete ones of its prompt.
        hit: blocks that the page table promised on the rank it went to.
        deepest: blocks that the page table promised anywhere.
        reason: of the route.
    """

    id: str
    phase: str
    group: int
    sent_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0
    tokens: int = 0
    digest: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    blocks: int = 0
    rank: int = -1
    hit: int = 0
    deepest: int = 0
    reason: str = ""


def spread(values_s: Sequence[float]) -> dict[str, float]:
    """Return mean and percentiles, in milliseconds; nothing of nothing."""
    if not values_s:
        return {}
    values = [1000 * value for value in values_s]
    shares = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
    points = {name: percentile(values, share) for name, share in shares.items()}
    return {"mean": sum(values) / len(values), **points}


def latencies(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return TTFT, TPOT and E2E, each with mean and percentiles in ms."""
    tpot = [(s.last_s - s.first_s) / (s.tokens - 1) for s in samples if s.tokens > 1]
    return {
        "ttft_ms": spread([s.first_s - s.sent_s for s in samples]),
        "tpot_ms": spread(tpot),
        "e2e_ms": spread([s.last_s - s.sent_s for s in samples]),
    }


def reuse(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return what the workers found in their caches."""
    asked = sum(s.prompt_tokens for s in samples)
    cached = sum(s.cached_tokens for s in samples)
    return {
        "prefix_hit_rate": sum(s.cached_tokens > 0 for s in samples) / len(samples),
        "token_reuse": cached / asked,
        "prefill_uncached_tokens": asked - cached,
    }


def routes(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return what the route rule did, as it was written down with each request."""
    count = len(samples)
    held = [s for s in samples if s.deepest > 0]
    promised = [s for s in samples if s.hit > 0]
    return {
        "route_hit_rate": len(promised) / count,
        "routed_to_prefix_owner_rate": sum(s.hit == s.deepest for s in held) / max(1, len(held)),
        "route_matched_block_ratio": sum(s.hit for s in samples)
        / max(1, sum(s.blocks for s in samples)),
        "stale_route_hit_rate": sum(not s.cached_tokens for s in promised) / max(1, len(promised)),
        "reasons": dict(sorted(Counter(s.reason for s in samples).items())),
    }


def goodput(samples: Sequence[Sample], wall_s: float, sla_ms: float) -> float:
    """Return the tokens a second of requests that were answered within the SLA."""
    good = (s.tokens for s in samples if (s.last_s - s.sent_s) * 1000 <= sla_ms)
    return sum(good) / wall_s


def transfers(
    plans: Sequence[Mapping[str, str]], refused: Sequence[Mapping[str, str]] = ()
) -> dict[str, Any]:
    """Return what became of the transfer plans and why others were not begun, from the logs."""
    whys = Counter(f"{row['why']}:{' '.join(row['said'].split()[:2])}" for row in refused)
    done = [plan for plan in plans if plan["outcome"] == "finalize"]
    moved = [int(plan["blocks"]) for plan in done]
    freed = [int(plan["freed"]) for plan in done]
    publish = [int(plan["publish_us"]) / 1000 for plan in done]
    errors = [abs(int(p["publish_us"]) - float(p["cost_us"])) / 1000 for p in done]
    return {
        "plans": dict(sorted(Counter(f"{p['why']}:{p['outcome']}" for p in plans).items())),
        "refused": dict(sorted(whys.items())),
        "transfer_blocks": sum(moved),
        "copied_blocks": sum(moved) - sum(freed),
        "released_blocks": sum(freed),
        "publish_ms": {"mean": sum(publish) / len(publish)} if publish else {},
        "cost_error_ms": {"mean": sum(errors) / len(errors)} if errors else {},
    }


def trial_figures(
    samples: Sequence[Sample],
    plans: Sequence[Mapping[str, str]],
    *,
    reuse_phase: str,
    slas_ms: Sequence[float],
    ranks: int,
    refused: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """Return the figures of one trial."""
    wall_s = max(s.last_s for s in samples)
    tokens = sum(s.tokens for s in samples)
    again = [s for s in samples if s.phase == reuse_phase]
    span_s = max(s.last_s for s in again) - min(s.sent_s for s in again)
    by_rank = []
    for rank in range(ranks):
        mine = [s for s in samples if s.rank == rank]
        row = {"rank": rank, "requests": len(mine), "output_tokens": sum(s.tokens for s in mine)}
        by_rank.append(row | (reuse(mine) if mine else {}))
    return {
        "wall_s": wall_s,
        "requests": len(samples),
        "throughput_tok_s": tokens / wall_s,
        "goodput_tok_s": goodput(samples, wall_s, slas_ms[0]),
        "sla_sweep": {f"{sla:g}": goodput(samples, wall_s, sla) for sla in slas_ms},
        **latencies(samples),
        "workers": reuse(samples),
        "route": routes(samples),
        "reuse_phase": {
            "throughput_tok_s": sum(s.tokens for s in again) / span_s,
            **latencies(again),
            **reuse(again),
        },
        "transfers": transfers(plans, refused),
        "lease_routes": sum(s.reason == "placement_lease" for s in samples),
        "busiest_rank_share": max(row["requests"] for row in by_rank) / len(samples),
        "ranks": by_rank,
    }
