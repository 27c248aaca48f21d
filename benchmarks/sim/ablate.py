"""`python -m benchmarks.sim.ablate TRACE`: the pool's rule with one thing taken away at a time.

What moves blocks is not simulated: what fetching and leases give is measured on live pools, by
`python -m benchmarks.paper e2e --set fetch=0` and `--set background=0`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import uvloop

from benchmarks.paper.result import revision
from benchmarks.sim.__main__ import figures, short_name
from benchmarks.sim.bounds import ceiling
from benchmarks.sim.engine import measured
from benchmarks.sim.run import Setup, simulate
from benchmarks.traces import Trace, read_trace
from workers.core.reclaim import POLICIES

LARGE = 1e9


@dataclass(frozen=True, slots=True)
class Variant:
    """One thing taken away.

    Attributes:
        changes: of the `Setup`.
        parts: how many the trace's blocks are cut into.
    """

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    parts: int = 1


def _constants(**values: float | str) -> dict[str, Any]:
    return {"constants": values}


def variants(workers: int) -> tuple[Variant, ...]:
    """Return what is tried with so many workers, the whole rule first."""
    pairs = ",".join(f"{rank}-{rank + 1}" for rank in range(0, workers - 1, 2))
    return (
        Variant("the whole rule"),
        Variant("owners keep nothing: the cheapest always", _constants(bypass_slack=0.0)),
        Variant("owners keep all that their prefix saves", _constants(bypass_slack=LARGE)),
        Variant("pairs of neighbours, with spill", _constants(pairs=pairs)),
        Variant("pairs of neighbours, no spill", _constants(pairs=pairs, spill_gap=LARGE)),
        Variant("no reclaim in the cost", _constants(w_reclaim=0.0)),
        Variant("no prefixes in flight", _constants(flight_ttl_ms=1.0)),
        Variant("no reservations", {"reserve": False}),
        Variant("reports 1 s old", {"stale_s": 1.0}),
        Variant("reports 1 s old, no reservations", {"stale_s": 1.0, "reserve": False}),
        Variant(
            "reports 1 s old, neither reservations nor flight",
            {"stale_s": 1.0, "reserve": False, **_constants(flight_ttl_ms=1.0)},
        ),
        *(
            Variant(f"reclaim by {name}", {"policy": policy})
            for name, policy in list(POLICIES.items())[1:]
        ),
        Variant("round robin", {"router": "round_robin"}),
        Variant("least load", {"router": "least_load"}),
    )


def block_variants(trace_block: int) -> tuple[Variant, ...]:
    """Return the block sizes of 16, 64, 256 and the trace's own, as far as they divide it."""
    sizes = [size for size in (16, 64, 256) if trace_block % size == 0]
    return tuple(
        Variant(f"blocks of {size} tokens", parts=trace_block // size)
        for size in (*sizes, trace_block)
    )


def run(
    trace: Trace, variant: Variant, workers: int, cache_tokens: int, seed: int
) -> dict[str, Any]:
    """Simulate one variant; returns its row."""
    trace = trace.finer(variant.parts) if variant.parts > 1 else trace
    settings: dict[str, Any] = {
        "router": "kv",
        "policy": next(iter(POLICIES.values())),
        **variant.changes,
    }
    setup = Setup(
        workers=workers,
        blocks=cache_tokens // trace.block_tokens,
        engine=measured(),
        seed=seed,
        **settings,
    )
    return {"name": variant.name, **figures(uvloop.run(simulate(trace, setup)))}


@click.command()
@click.argument("path", metavar="TRACE", type=click.Path(path_type=Path, exists=True))
@click.option("--workers", default=4, show_default=True)
@click.option("--cache-tokens", default=16_384 * 64, show_default=True, help="Of each worker.")
@click.option("--speed", default=1.0, show_default=True, help="Arrivals faster than in the trace.")
@click.option("--requests", default=0, help="The first so many; 0 for all.")
@click.option("--blocks/--rules", default=False, help="Block sizes, not the rule's parts.")
@click.option("--seeds", default=3, show_default=True, help="Of draws among equal ranks.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the JSON file.")
def main(
    path: Path, workers: int, cache_tokens: int, speed: float, requests: int, blocks: bool,
    seeds: int, out: Path | None,
) -> None:  # fmt: skip
    """Play TRACE through the pool's rule, whole and with parts of it taken away."""
    trace = read_trace(path).head(requests).faster(speed)
    chosen = block_variants(trace.block_tokens) if blocks else variants(workers)
    result: dict[str, Any] = {
        "revision": revision()[0], "trace": trace.name, "requests": len(trace.requests),
        "workers": workers, "cache_tokens_per_worker": cache_tokens, "speed": speed,
        "ceiling": ceiling(trace), "rows": [],
    }  # fmt: skip
    click.echo("| variant | reuse % | TTFT mean ms | p50 | p90 | busiest / idlest worker |")
    click.echo("| --- | --- | --- | --- | --- | --- |")
    for variant in chosen:
        rows = [run(trace, variant, workers, cache_tokens, seed) for seed in range(seeds)]
        result["rows"].append({"name": variant.name, "seeds": rows})
        click.echo(_line(variant.name, rows))
        if out is not None:  # after each: it takes long, and may be interrupted
            out.mkdir(parents=True, exist_ok=True)
            kind = "blocks" if blocks else "ablations"
            fast = f"-{speed:g}x" if speed != 1 else ""
            file = out / f"sim-{kind}-{short_name(path)}-{workers}{fast}.json"
            file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _line(name: str, rows: list[dict[str, Any]]) -> str:
    reuse = [100 * row["reuse"] for row in rows]
    ttft = {
        point: sum(row["ttft_ms"][point] for row in rows) / len(rows)
        for point in ("mean", "p50", "p90")
    }
    skew = sum(max(row["routed"]) / max(1, min(row["routed"])) for row in rows) / len(rows)
    spread = f"{min(reuse):.1f}..{max(reuse):.1f}" if len(rows) > 1 else ""
    mean = sum(reuse) / len(reuse)
    return (
        f"| {name} | {mean:.1f} ({spread}) | {ttft['mean']:,.0f} | {ttft['p50']:,.0f} | "
        f"{ttft['p90']:,.0f} | {skew:.2f} |"
    )


if __name__ == "__main__":
    main()
