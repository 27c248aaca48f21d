"""`python -m benchmarks.sim TRACE`: prefix reuse and time to first token, router beside router."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import uvloop

from benchmarks.sim.bounds import ceiling, one_cache
from benchmarks.sim.engine import measured
from benchmarks.sim.run import ROUTERS, Outcome, Setup, simulate
from benchmarks.traces import Trace, TraceError, read_trace
from lmpoold.protocol.config import PoolConstants
from workers.core.reclaim import POLICIES


def figures(outcome: Outcome) -> dict[str, Any]:
    """Return what a run showed, as it is archived."""
    ttft = outcome.ttft_s()
    last = len(ttft) - 1
    return {
        "reuse": outcome.reuse,
        "ttft_ms": {
            "mean": 1000 * sum(ttft) / len(ttft),
            "p50": 1000 * ttft[round(0.5 * last)],
            "p90": 1000 * ttft[round(0.9 * last)],
        },
        "routed": list(outcome.routed),
        "parked": outcome.parked,
        "wall_s": outcome.wall_s,
        "server_cpu_s": outcome.server_cpu_s,
        "server_bytes": outcome.server_bytes,
    }


def short_name(path: Path) -> str:
    """Return what a trace is called in the names of results."""
    for word in ("conversation", "synthetic", "toolagent", "claude_code", "azure"):
        if word in path.stem:
            return word.replace("_", "-")
    return path.stem


def show(label: str, row: dict[str, Any]) -> None:
    """Print a run's line."""
    ttft, routed = row["ttft_ms"], row["routed"]
    click.echo(
        f"  {label:12} reuse {row['reuse']:6.2%}  TTFT mean {ttft['mean']:7.1f} p50 "
        f"{ttft['p50']:7.1f} p90 {ttft['p90']:7.1f} ms  a worker got {min(routed)}..{max(routed)}"
        f"  ({row['wall_s']:.0f} s)"
    )


def constant(text: str) -> tuple[str, float]:
    """Read `name=number`; BadParameter if it is no constant of the pool."""
    name, _, value = text.partition("=")
    if name not in PoolConstants.__dataclass_fields__:
        raise click.BadParameter(f"{name} is no constant; see lmpoold/store/README.md")
    try:
        return name, float(value)
    except ValueError:
        raise click.BadParameter(f"{text}: give a number, as in w_prefill=2") from None


@click.command()
@click.argument("path", metavar="TRACE", type=click.Path(path_type=Path, exists=True))
@click.option("--workers", multiple=True, type=int, default=(4,), show_default=True)
@click.option("--cache-tokens", default=16_384 * 64, show_default=True, help="Of each worker.")
@click.option("--router", "routers", multiple=True, default=ROUTERS, type=click.Choice(ROUTERS))
@click.option(
    "--policy",
    "policies",
    multiple=True,
    default=(next(iter(POLICIES)),),
    type=click.Choice(tuple(POLICIES)),
    help="Of reclaim; those after the first are shown for kv only.",
)
@click.option("--model", default="0.6b", show_default=True, help="Whose steps were measured.")
@click.option("--speed", default=1.0, show_default=True, help="Arrivals faster than in the trace.")
@click.option("--requests", default=0, help="The first so many; 0 for all.")
@click.option("--finer", default=1, help="Cut each block of the trace into so many.")
@click.option("--coarser", default=1, help="Join so many blocks of the trace into one.")
@click.option(
    "--set", "constants", multiple=True, help="A constant of the route rule: name=number."
)
@click.option("--seed", default=0, show_default=True, help="Of draws among equal ranks.")
@click.option("--revision", envvar="LMPOOL_REVISION", default="", help="Of the code, for the file.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for sim-<trace>-<n>.json.")
def main(
    path: Path, workers: tuple[int, ...], cache_tokens: int, routers: tuple[str, ...],
    policies: tuple[str, ...], model: str, speed: float, requests: int, finer: int, coarser: int,
    constants: tuple[str, ...], seed: int, revision: str, out: Path | None,
) -> None:  # fmt: skip
    """Play TRACE through a simulated pool with each router, and write what came of it."""
    try:
        trace = read_trace(path).head(requests)
    except TraceError as error:
        raise click.ClickException(str(error)) from None
    trace = trace.finer(finer) if finer > 1 else trace
    trace = trace.coarser(coarser) if coarser > 1 else trace
    trace = trace.faster(speed) if speed != 1 else trace
    most = ceiling(trace)
    chosen = dict(map(constant, constants))
    for count in workers:
        result = {
            "revision": revision,
            "trace": trace.name,
            "requests": len(trace.requests),
            "input_tokens": trace.input_tokens,
            "workers": count,
            "cache_tokens_per_worker": cache_tokens,
            "block_tokens": trace.block_tokens,
            "policy": policies[0],
            "engine": model,
            "speed": speed,
            "seed": seed,
            "constants": chosen,
            "ceiling": most,
        }
        result |= compare(trace, count, cache_tokens, routers, policies, model, chosen, seed)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            fast = f"-{speed:g}x" if speed != 1 else ""
            file = out / f"sim-{short_name(path)}-{count}{fast}.json"
            file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def compare(
    trace: Trace, count: int, cache_tokens: int, routers: tuple[str, ...],
    policies: tuple[str, ...], model: str, constants: dict[str, float], seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Run every router, then the pool's rule under every other policy; returns the rows."""
    blocks = cache_tokens // trace.block_tokens
    bounds = {name: one_cache(trace, blocks * count, POLICIES[name]) for name in policies}
    click.echo(
        f"{trace.name}, {count} workers of {blocks} blocks of {trace.block_tokens}: ceiling "
        f"{ceiling(trace):.2%}; one cache of that size: "
        + ", ".join(f"{name} {share:.2%}" for name, share in bounds.items())
    )

    def run(router: str, policy: str) -> dict[str, Any]:
        setup = Setup(
            router=router, workers=count, blocks=blocks, policy=POLICIES[policy],
            engine=measured(model), constants=constants, seed=seed,
        )  # fmt: skip
        row = figures(uvloop.run(simulate(trace, setup)))
        show(router if policy == policies[0] else f"kv, {policy}", row)
        return row

    rows = {router: run(router, policies[0]) for router in routers}
    result: dict[str, Any] = {}
    for router, name in (("kv", "reuse"), ("round_robin", "round_robin_reuse"),
                         ("least_load", "least_load_reuse")):  # fmt: skip
        if router in rows:
            result[name] = rows[router]["reuse"]
    result |= {"one_cache_reuse": bounds, "routers": rows}
    result["policies"] = {policy: run("kv", policy) for policy in policies[1:]}
    return result


if __name__ == "__main__":
    main()
