"""Latency by load: requests that come when they come, at growing rates, in several modes.

A closed loop asks a slow pool less and so hides its queue. Here arrivals are drawn by Poisson, or
have the rhythm of a trace of real use, stretched to the wanted rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.paper.drive import poisson
from benchmarks.paper.matrix import Matrix, Settings
from benchmarks.paper.modes import MODES
from benchmarks.paper.result import ResultFile
from benchmarks.paper.served import served
from benchmarks.paper.workloads import Phase, Workload, workload
from benchmarks.traces import read_trace


def at_rate(times_s: Sequence[float], rate: float) -> list[float]:
    """Return the same rhythm, stretched so that `rate` come a second on average."""
    span_s = times_s[-1] - times_s[0]
    factor = (len(times_s) - 1) / rate / span_s if span_s else 0.0
    return [(at_s - times_s[0]) * factor for at_s in times_s]


def arrivals(count: int, rate: float, seed: int, trace: Path | None) -> list[float]:
    """Return `count` arrival times in seconds.

    Args:
        count: of requests.
        rate: of them a second.
        seed: of the draw.
        trace: whose first `count` arrivals give the rhythm; None draws by Poisson.
    """
    if trace is None:
        return poisson(count, rate, seed)
    return at_rate([request.arrival_s for request in read_trace(trace).requests[:count]], rate)


def one_phase(work: Workload) -> Workload:
    """Return a workload without barriers: what comes does not wait for what was."""
    return replace(work, phases=(Phase("all", work.prompts),), reuse="all")


async def measure_load(
    name: str,
    settings: Settings,
    rates: Sequence[float],
    out: Path,
    *,
    trace: Path | None,
    fresh: bool,
    say: Callable[[str], None],
) -> tuple[Path, dict[str, Any]]:
    """Measure every mode at every rate; returns the file and what it says.

    A mode's figures at a rate stand under `mode@rate`.
    """
    work = one_phase(
        workload(name, seed=settings.seed, chars=settings.chars, requests=settings.requests)
    )
    matrix = Matrix((), settings, out)
    profile = matrix.profile(work)
    kind = "trace" if trace else "poisson"
    path = out / f"load-{name}-{settings.label()}-{kind}.json"
    arguments = settings.arguments() | {
        "rates": list(rates),
        "arrivals": trace.stem if trace else kind,
    }
    file = ResultFile(path, f"load-{name}", arguments, profile, fresh=fresh)
    for many in (False, True):
        modes = [MODES[mode] for mode in settings.modes if MODES[mode].many is many]
        wanted = [(mode, rate) for rate in rates for mode in modes]
        if all(file.done(f"{m.name}@{r:g}") >= settings.repetitions for m, r in wanted):
            continue
        plan = matrix.plan(work.budget_tokens)
        async with served(plan, settings.workers if many else 1) as pool:
            for turn in range(settings.repetitions):
                for mode, rate in wanted:
                    key = f"{mode.name}@{rate:g}"
                    if file.done(key) > turn:
                        continue
                    times_s = arrivals(len(work.prompts), rate, settings.seed + turn, trace)
                    figures = await pool.trial(
                        work,
                        mode,
                        slas_ms=settings.slas_ms,
                        arrivals_s=times_s,
                        constants=settings.constants,
                    )
                    file.add(key, figures | {"rate": rate})
                    ttft, e2e = figures["ttft_ms"], figures["e2e_ms"]
                    say(
                        f"{key:16} {figures['throughput_tok_s']:7.1f} tok/s, TTFT p50 "
                        f"{ttft['p50']:7.1f} p90 {ttft['p90']:8.1f}, E2E p50 {e2e['p50']:8.1f} ms"
                    )
    return path, file.finish()
