"""Latency by load: requests that come when they come, at growing rates, in several modes.

A closed loop asks a slow pool less and so hides its queue. Here arrivals are drawn by Poisson, or
have the rhythm of a trace of real use, stretched to the wanted rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.paper.drive import poisson
from benchmarks.paper.matrix import Matrix, Settings
from benchmarks.paper.modes import MODES
from benchmarks.paper.result import ResultFile
from benchmarks.paper.served import served
from benchmarks.paper.workloads import Phase, Workload
from benchmarks.traces import TraceError, read_trace

Rhythm = Callable[[float, int], Sequence[float]]
"""Rate and seed to arrival times in seconds."""


def at_rate(times_s: Sequence[float], rate: float) -> list[float]:
    """Return the same rhythm, stretched so that `rate` come a second on average."""
    span_s = times_s[-1] - times_s[0]
    factor = (len(times_s) - 1) / rate / span_s if span_s else 0.0
    return [(at_s - times_s[0]) * factor for at_s in times_s]


def rhythm_of(count: int, trace: Path | None) -> Rhythm:
    """Return what draws `count` arrivals: by Poisson, or by the first ones of a trace."""
    if trace is None:
        return lambda rate, seed: poisson(count, rate, seed)
    times_s = [request.arrival_s for request in read_trace(trace).requests[:count]]
    if len(times_s) < count:
        raise TraceError(f"{trace} has {len(times_s)} arrivals, and {count} are wanted")
    return lambda rate, seed: at_rate(times_s, rate)


def one_phase(work: Workload) -> Workload:
    """Return a workload without barriers: what comes does not wait for what was."""
    return replace(work, phases=(Phase("all", work.prompts),), reuse="all")


async def measure_load(
    work: Workload,
    settings: Settings,
    rates: Sequence[float],
    path: Path,
    rhythm: Rhythm,
    about: Mapping[str, Any],
    *,
    fresh: bool,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measure every mode at every rate; returns what the file says.

    A mode's figures at a rate stand under `mode@rate`.

    Args:
        work: what is sent.
        settings: of the pool.
        rates: requests a second.
        path: of the result.
        rhythm: when requests come.
        about: what else the figures depend on.
        fresh: do not take up an interrupted run.
        say: told of each trial.
    """
    matrix = Matrix((), settings, path.parent)
    profile = matrix.profile(work)
    arguments = settings.arguments() | {"rates": list(rates), **about}
    file = ResultFile(path, f"load-{work.name}", arguments, profile, fresh=fresh)
    for many in (False, True):
        modes = [MODES[mode] for mode in settings.modes if MODES[mode].many is many]
        wanted = [(mode, rate) for rate in rates for mode in modes]
        if all(file.done(f"{m.name}@{r:g}") >= settings.repetitions for m, r in wanted):
            continue
        async with served(matrix.plan(work.budget_tokens), settings.workers if many else 1) as pool:
            for turn in range(settings.repetitions):
                for mode, rate in wanted:
                    key = f"{mode.name}@{rate:g}"
                    if file.done(key) > turn:
                        continue
                    figures = await pool.trial(
                        work,
                        mode,
                        slas_ms=settings.slas_ms,
                        arrivals_s=rhythm(rate, settings.seed + turn),
                        constants=settings.constants,
                    )
                    file.add(key, figures | {"rate": rate})
                    ttft, e2e = figures["ttft_ms"], figures["e2e_ms"]
                    say(
                        f"{key:16} {figures['throughput_tok_s']:7.1f} tok/s, TTFT p50 "
                        f"{ttft['p50']:7.1f} p90 {ttft['p90']:8.1f}, E2E p50 {e2e['p50']:8.1f} ms"
                    )
    return file.finish()
