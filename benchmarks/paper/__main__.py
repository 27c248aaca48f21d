"""`python -m benchmarks.paper`: the matrix, latency by load, and the transfer sweep."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import uvloop

from benchmarks.micro.transfer import main as transfer_sweep
from benchmarks.paper.load import Rhythm, at_rate, measure_load, one_phase, rhythm_of
from benchmarks.paper.matrix import Matrix, Settings, result_name
from benchmarks.paper.modes import MODES
from benchmarks.paper.plots import plot_load, plot_matrix
from benchmarks.paper.replay import trace_workload
from benchmarks.paper.result import ResultError
from benchmarks.paper.table import gains, table
from benchmarks.paper.workloads import WORKLOADS, Workload, workload
from benchmarks.traces import TraceError, read_trace
from lmpoold.protocol.config import read_constants

ROUTING = tuple(name for name in WORKLOADS if name.startswith("routing"))
GPU = {
    "device": "cuda",
    "block_size": 256,
    "chars": 117,
    "slas_ms": (3000.0, 2000.0, 5000.0, 10000.0),
}
"""The sizes of a run on GPUs; a run on a CPU has a fifth of the prompt."""


def _constant(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def common(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that every run of the matrix has."""
    options = (
        click.option("--model", default="random:tiny-qwen3", show_default=True),
        click.option("--gpu/--cpu", default=False, help="Sizes and device.  [default: cpu]"),
        click.option("--workers", default=2, show_default=True),
        click.option("--lmpoolds", default=1, show_default=True, help="That read and route."),
        click.option("--threads", default=1, show_default=True, help="Of a worker on a CPU."),
        click.option("--repetitions", default=5, show_default=True),
        click.option("--requests", default=0, help="Of each workload; 0 for all."),
        click.option(
            "--chars", type=click.IntRange(1, 117), help="Of a paragraph; 23, on GPUs 117."
        ),
        click.option("--seed", default=0, show_default=True),
        click.option("--fresh", is_flag=True, help="Do not take up an interrupted run."),
        click.option("--set", "constants", multiple=True, help="name=value of `cfg`."),
        click.option(
            "--out",
            type=click.Path(path_type=Path),
            default=Path("benchmarks/out"),
            show_default=True,
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def settings_of(
    *,
    gpu: bool,
    chars: int | None,
    constants: tuple[str, ...],
    modes: tuple[str, ...],
    **options: Any,
) -> Settings:
    """Return the settings that a command line asks for."""
    chosen = dict(map(_constant, constants))
    read_constants(chosen)
    sizes: dict[str, Any] = dict(GPU) if gpu else {}
    if chars is not None:
        sizes["chars"] = chars
    return Settings(constants=chosen, modes=modes or tuple(MODES), **sizes, **options)


def measure(names: tuple[str, ...], settings: Settings, out: Path, *, fresh: bool) -> None:
    """Run the matrix, print its tables, and write files and pictures."""
    try:
        results = uvloop.run(Matrix(names, settings, out, fresh=fresh).run(click.echo))
    except ResultError as error:
        raise click.ClickException(str(error)) from None
    for name, result in results.items():
        click.echo(f"\n{name}")
        click.echo(table(result))
        click.echo(gains(result))
    files = [out / result_name(name, settings) for name in results]
    drawn = [
        plot_matrix(results[name], file.with_suffix(".png"))
        for name, file in zip(results, files, strict=True)
    ]
    if not all(drawn):
        click.echo("no pictures: install matplotlib (the `bench` extra)")


@click.group(context_settings={"show_default": True})
def main() -> None:
    """Serve seeded workloads in several ways, and say with intervals what each way gave."""


@main.command()
@click.argument("names", metavar="WORKLOAD...", nargs=-1, type=click.Choice(tuple(WORKLOADS)))
@click.option("--mode", "modes", multiple=True, type=click.Choice(tuple(MODES)))
@click.option("--oracle", is_flag=True, help="Between phases, tell the pool what is coming.")
@common
def e2e(names: tuple[str, ...], out: Path, fresh: bool, **options: Any) -> None:
    """Run workloads (default: all) in all five modes."""
    measure(names or tuple(WORKLOADS), settings_of(**options), out, fresh=fresh)


@main.command()
@common
def kv_routing(out: Path, fresh: bool, **options: Any) -> None:
    """Run the three routing workloads without moving a block: one rank, round robin, routed."""
    measure(
        ROUTING,
        settings_of(modes=("single-gpu", "multi-gpu", "kv-routing"), **options),
        out,
        fresh=fresh,
    )


def measure_and_draw(work: Workload, settings: Settings, rates: tuple[float, ...], path: Path,
                     rhythm: Rhythm, about: dict[str, Any], *, fresh: bool) -> None:  # fmt: skip
    """Run an open loop, print its table and draw its curve."""
    measuring = measure_load(
        work, settings, rates, path, rhythm, about, fresh=fresh, say=click.echo
    )
    try:
        result = uvloop.run(measuring)
    except ResultError as error:
        raise click.ClickException(str(error)) from None
    click.echo(table(result))
    plot_load(result, path.with_suffix(".png"))


RATES = click.option("--rate", "rates", multiple=True, type=float, required=True, help="A second.")
IN_MODES = click.option("--mode", "modes", multiple=True, type=click.Choice(tuple(MODES)))
FILE = click.Path(path_type=Path, exists=True)


@main.command()
@click.argument("name", metavar="WORKLOAD", type=click.Choice(tuple(WORKLOADS)))
@RATES
@IN_MODES
@click.option("--times", "trace", type=FILE, help="Arrivals of this trace, not Poisson's.")
@common
def load(
    name: str, rates: tuple[float, ...], trace: Path | None, out: Path, fresh: bool, **options: Any
) -> None:
    """Send a workload in an open loop, at growing rates, and draw latency by load."""
    settings = settings_of(**options)
    work = one_phase(
        workload(name, seed=settings.seed, chars=settings.chars, requests=settings.requests)
    )
    arrivals = trace.stem if trace else "poisson"
    path = out / f"load-{name}-{settings.label()}-{arrivals}.json"
    rhythm = rhythm_of(len(work.prompts), trace)
    measure_and_draw(work, settings, rates, path, rhythm, {"arrivals": arrivals}, fresh=fresh)


@main.command()
@click.argument("trace", metavar="TRACE", type=FILE)
@RATES
@IN_MODES
@click.option("--shrink", default=16, show_default=True, help="Lengths are divided by this.")
@click.option("--cache-tokens", default=16_384 * 64, show_default=True, help="A rank, unshrunk.")
@click.option("--longest", default=2000, show_default=True, help="Prompt and answer, shrunk.")
@common
def replay(trace: Path, rates: tuple[float, ...], shrink: int, cache_tokens: int, longest: int,
           out: Path, fresh: bool, **options: Any) -> None:  # fmt: skip
    """Send the requests of a trace to a live pool, in the trace's rhythm, at growing rates."""
    settings = settings_of(**options)
    try:
        work, times_s, left_out = trace_workload(
            read_trace(trace).head(settings.requests),
            shrink=shrink,
            longest=longest,
            cache_tokens=cache_tokens,
        )
    except (TraceError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{len(times_s)} requests; {left_out} left out, longer than {longest} tokens")
    path = out / f"replay-{trace.stem}-{settings.label()}.json"
    about = {"arrivals": trace.stem, "shrink": shrink, "left_out": left_out}
    measure_and_draw(
        work, settings, rates, path, lambda rate, _: at_rate(times_s, rate), about, fresh=fresh
    )


@main.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=FILE)
def show(files: tuple[Path, ...]) -> None:
    """Print the tables of results that are there, and draw them again."""
    for file in files:
        result = json.loads(file.read_text(encoding="utf-8"))
        facts = result["metadata"]
        click.echo(f"{file.stem}: {facts['revision'][:7]}, {facts['command']}")
        click.echo(table(result))
        click.echo(gains(result))
        draw = plot_load if "rates" in facts["arguments"] else plot_matrix
        draw(result, file.with_suffix(".png"))


main.add_command(transfer_sweep, "kv-transfer")


if __name__ == "__main__":
    main()
