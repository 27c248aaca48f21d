"""A whole worker through Redis, beside what its bare steps permit and beside `transformers`.

Server, lmpoold, worker and producers are real processes. One run gives, on the same machine:

- the bare step: the runner alone, given the very steps that the work takes;
- the pool: all requests at once, output tokens a second from the first XADD to the last token read;
- an open loop at half of that rate, Poisson arrivals: time per output token against the bare step;
- what the GPU waits between steps when a batch of 64 decodes, from a profiler's trace;
- processor time a token of server, lmpoold, worker and producers;
- `generate_batch` on the same work.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from benchmarks.processes import running_pool
from benchmarks.producer import Ask, Told, ask_all
from benchmarks.work import Work, as_options

PRODUCERS = 4
PATIENCE_S = 240.0
REPEATS = 3


def at_once(work: Work, name: str, count: int, output_tokens: int, seed: int) -> list[Ask]:
    """Return requests that are all sent at the start."""
    return [
        Ask(id=f"{name}-{n}", tokens=tokens, output_tokens=output_tokens, at_s=0.0)
        for n, tokens in enumerate(work.prompts(count, seed))
    ]


def arriving(work: Work, rate: float, seconds: float, seed: int) -> list[Ask]:
    """Return requests at random times, `rate` a second on average."""
    draw, at_s, asks = random.Random(seed), 0.0, []
    for n, tokens in enumerate(work.prompts(int(rate * seconds), seed)):
        at_s += draw.expovariate(rate)
        asks.append(Ask(id=f"open-{n}", tokens=tokens, output_tokens=work.output_tokens, at_s=at_s))
    return asks


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def per_output_ms(told: Sequence[Told]) -> list[float]:
    """Return each request's time per output token after the first."""
    return [(one.last_s - one.first_s) / (one.tokens - 1) * 1000 for one in told if one.tokens > 1]


async def pool_figures(work: Work, half_load_s: float) -> dict[str, Any]:
    """Measure the pool: all at once, then open loop at half the rate."""
    async with running_pool(
        work.model, [work.worker_argv()], daemon_options=work.daemon_options()
    ) as pool:

        def run(asks: list[Ask]) -> tuple[list[Told], float]:
            return ask_all(pool.url, asks, producers=PRODUCERS, patience_s=PATIENCE_S)

        await asyncio.to_thread(run, at_once(work, "warm", min(64, work.requests), 16, 99))
        rates, first_ms, cost_us = [], [], {}
        for repeat in range(REPEATS):
            asks = at_once(work, f"r{repeat}", work.requests, work.output_tokens, repeat)
            before = pool.cpu_s()
            told, producers_s = await asyncio.to_thread(run, asks)
            after = pool.cpu_s()
            tokens = sum(one.tokens for one in told)
            if tokens != work.requests * work.output_tokens:
                raise SystemExit(f"{tokens} tokens came, {[t.code for t in told if t.code][:3]}")
            rates.append(tokens / max(one.last_s for one in told))
            first_ms += [(one.first_s - one.sent_s) * 1000 for one in told]
            cost_us = {
                name: (took - before[name]) / tokens * 1e6 for name, took in after.items()
            } | {"producers": producers_s / tokens * 1e6}
        rate = quantile(rates, 0.5)
        load = rate / work.output_tokens / 2
        asks = arriving(work, load, half_load_s, 7)
        told, _ = await asyncio.to_thread(run, asks)
    each_ms = per_output_ms(told)
    busy_s = sum(one.last_s - one.sent_s for one in told)
    return {
        "pool_tok_s": rate,
        "pool_tok_s_runs": rates,
        "ttft_ms": {"p50": quantile(first_ms, 0.5), "p99": quantile(first_ms, 0.99)},
        "cpu_us_per_token": cost_us,
        "half_load": {
            "requests_s": load,
            "requests": len(told),
            "mean_running": busy_s / max(one.last_s for one in told),
            "tpot_ms": {p: quantile(each_ms, float(p)) for p in ("0.5", "0.9", "0.99")},
            "ttft_ms": {
                p: quantile([(one.first_s - one.sent_s) * 1000 for one in told], float(p))
                for p in ("0.5", "0.99")
            },
        },
    }


async def idle_figures(work: Work, size: int) -> dict[str, Any]:
    """Decode `size` rows together in a worker that is timed and traced."""
    longer = replace(work, output_tokens=work.output_tokens + 384)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "times.json"
        argv = [*longer.worker_argv("benchmarks.timed_worker"), "--size", str(size)]
        async with running_pool(
            work.model, [[*argv, "--out", str(out)]], daemon_options=work.daemon_options()
        ) as pool:
            asks = at_once(longer, "idle", size, longer.output_tokens, 5)
            await asyncio.to_thread(
                ask_all, pool.url, asks, producers=PRODUCERS, patience_s=PATIENCE_S
            )
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def apart(module: str, *arguments: str) -> dict[str, Any]:
    """Run a module in a process of its own; returns the JSON of its last line."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{module} failed:\n{done.stderr[-3000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def measure(work: Work, *, half_load_s: float, size: int, peer: bool) -> dict[str, Any]:
    """Run everything, one after another on the same device; tells as it goes."""
    text = json.dumps(as_options(work))
    bare = apart("benchmarks.bare_step", text, json.dumps(sorted({size, work.requests})))
    click.echo(f"bare step: {bare['tok_s']:,.0f} tok/s, decode ms {bare['decode_ms']}")
    pool = asyncio.run(pool_figures(work, half_load_s))
    share = pool["pool_tok_s"] / bare["tok_s"]
    click.echo(f"pool: {pool['pool_tok_s']:,.0f} tok/s, {share:.1%} of the bare step's")
    half = pool["half_load"]
    running = str(max(1, round(half["mean_running"])))
    step_ms = apart("benchmarks.bare_step", text, json.dumps([int(running)]))["decode_ms"][running]
    half["step_ms"] = step_ms
    half["p99_tpot_steps"] = half["tpot_ms"]["0.99"] / step_ms
    click.echo(
        f"half load, {half['requests_s']:.1f} req/s, {running} running: TPOT p50 "
        f"{half['tpot_ms']['0.5']:.2f} ms, p99 {half['tpot_ms']['0.99']:.2f} ms "
        f"= {half['p99_tpot_steps']:.2f} bare steps of {step_ms:.2f} ms"
    )
    click.echo(
        "processor time a token: "
        + ", ".join(f"{name} {us:.1f} us" for name, us in pool["cpu_us_per_token"].items())
    )
    idle = asyncio.run(idle_figures(work, size))
    click.echo(f"{size} rows decoding: {idle}")
    figures = {
        "pool_tok_s": pool.pop("pool_tok_s"),
        "bare_step_tok_s": bare["tok_s"],
        "generate_batch_tok_s": None,
        "idle_share": idle.get("idle_share"),
    }
    if peer:
        figures["generate_batch_tok_s"] = apart("benchmarks.generate_batch", text)["tok_s"]
        click.echo(f"generate_batch: {figures['generate_batch_tok_s']:,.0f} tok/s")
    return {**figures, "bare": bare, "pool": pool, "decoding": idle, "work": as_options(work)}


@click.command()
@click.option("--model", default="random:qwen3-0.6b", show_default=True)
@click.option("--device", default="auto", show_default=True)
@click.option("--dtype", default="bfloat16", show_default=True)
@click.option("--requests", default=256, show_default=True)
@click.option("--prompt-tokens", default=512, show_default=True)
@click.option("--output-tokens", default=128, show_default=True)
@click.option("--block-size", default=64, show_default=True)
@click.option("--max-batched-tokens", default=0, help="0 takes the device's default.")
@click.option("--half-load-seconds", "half_load_s", default=10.0, show_default=True)
@click.option("--size", default=64, show_default=True, help="Rows of the steps that are traced.")
@click.option("--peer/--no-peer", default=True, help="Run generate_batch too.")
@click.option("--revision", envvar="LMPOOL_REVISION", default="unknown", help="Of the code.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures here.")
def main(
    half_load_s: float, size: int, peer: bool, revision: str, out: Path | None, **options: Any
) -> None:
    """Print what a worker makes of its device, and what its peers make of it."""
    work = Work(**options)
    figures = {"revision": revision, **measure(work, half_load_s=half_load_s, size=size, peer=peer)}
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
