"""All that needs GPUs, or cores of its own, in one call: check, measure, say which bars are met.

For a machine that is there for a short time only. Stages of a round run side by side, each on
devices of its own; what must not be disturbed has a round for itself. A stage that fails or runs
out of time leaves its log, and the others go on. Many stages start Python again and again: where it
cannot write beside the packages, PYTHONPYCACHEPREFIX is to name a folder for what it compiles.

    python -m benchmarks.device --out results            # about 15 minutes on two GPUs
    python -m benchmarks.device --out results --only step --only transfer
    python -m benchmarks.device --judge results          # only the table, of files that are there
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.bars import table

TESTS = ("pytest", "-p", "no:benchmark", "-p", "no:randomly", "-q")
MODES = ("--mode", "multi-gpu", "--mode", "kv-routing", "--mode", "lmpool")


@dataclass(frozen=True, slots=True)
class Stage:
    """One program.

    Attributes:
        name: of its log and JSON.
        argv: behind `python -m`; {json} is its file, {out} the folder.
        gpus: how many it needs.
        limit_s: how long it may take; it is ended then.
    """

    name: str
    argv: tuple[str, ...]
    gpus: int
    limit_s: float


def _micro(name: str, gpus: int, limit_s: float, *more: str, to: str = "--json") -> Stage:
    return Stage(name, (f"benchmarks.micro.{name}", to, "{json}", *more), gpus, limit_s)


Lane = tuple[Stage, ...]
"""Stages one behind the other."""

_ALONE = ("--ignore", "tests/gpu/transport")
_SKEW: tuple[str, ...] = (
    "benchmarks.paper",
    "e2e",
    "load-skew",
    *MODES,
    "--repetitions",
    "10",
    "--gpu",
)
_SKEW += ("--workers", "2", "--out", "{out}", "--model", "random:qwen3-0.6b")
_RESTART = ("benchmarks.scale.restart", "--ranks", "8", "--pages", "100000", "--json", "{json}")
ROUNDS: tuple[tuple[Lane, ...], ...] = (
    ((_micro("step", 1, 120),),),
    ((Stage("restart", _RESTART, 0, 60),),),
    (
        (_micro("engine", 1, 240),),
        (
            _micro("route", 0, 90, "--rounds", "600"),
            _micro("ingress", 0, 90),
            _micro("gateway", 0, 90, "--requests", "600", "--at-once", "1", "--at-once", "8"),
        ),
    ),
    (
        (_micro("parity", 1, 120),),
        (Stage("tests", (*TESTS, "-n", "8", "tests/gpu", *_ALONE), 1, 300),),
    ),
    (
        (
            _micro("transfer", 2, 300, to="--out"),
            _micro("dispatch", 2, 80, "--device", "cuda", "--block-tokens", "256", to="--out"),
            _micro("cost", 2, 80, "--device", "cuda", "--block-tokens", "256", to="--out"),
            _micro("admit", 2, 120, "--device", "cuda", "--block-tokens", "256", to="--out"),
            Stage("tests-pair", (*TESTS, "tests/gpu/transport"), 2, 240),
        ),
    ),
    ((Stage("skew-0.6b", _SKEW, 2, 240),),),
)
"""Rounds one behind the other, lanes of a round side by side."""


def chosen(only: Sequence[str], gpus: int) -> list[list[list[Stage]]]:
    """Return the rounds with what was asked for (all, if nothing was) and can run on `gpus`."""
    rounds = []
    for lanes in ROUNDS:
        kept = [
            [stage for stage in lane if stage.gpus <= gpus and (not only or stage.name in only)]
            for lane in lanes
        ]
        rounds.append([lane for lane in kept if lane])
    return [lanes for lanes in rounds if lanes]


def places(lanes: Sequence[Sequence[Stage]], gpus: int) -> list[str] | None:
    """Return the GPUs of each lane as CUDA_VISIBLE_DEVICES; None: they cannot run side by side."""
    found, free = [], 0
    for lane in lanes:
        need = max(stage.gpus for stage in lane)
        found.append(",".join(str(number) for number in range(free, free + need)))
        free += need
    return found if free <= gpus else None


class Run:
    """Stages under one clock, with a folder for what they write."""

    def __init__(self, out: Path, limit_s: float) -> None:
        """All ends `limit_s` from now."""
        self._out = out
        self._began_s = time.monotonic()
        self._limit_s = limit_s
        out.mkdir(parents=True, exist_ok=True)

    def round(self, lanes: Sequence[Sequence[Stage]], gpus: int) -> None:
        """Run lanes side by side, or one behind the other if there are too few GPUs."""
        where = places(lanes, gpus)
        if where is None:
            for lane in lanes:
                self.round([lane], gpus)
            return
        threads = [
            threading.Thread(target=self._lane, args=pair)
            for pair in zip(lanes, where, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _lane(self, lane: Sequence[Stage], visible: str) -> None:
        for stage in lane:
            left_s = self._limit_s - (time.monotonic() - self._began_s)
            if left_s < 1:
                self._say(f"{stage.name}: no time left")
                continue
            began_s = time.monotonic()
            end = self._stage(stage, visible, min(stage.limit_s, left_s))
            self._say(f"{stage.name}: {end} after {time.monotonic() - began_s:.0f} s")

    def _stage(self, stage: Stage, visible: str, limit_s: float) -> str:
        known = {"json": str(self._out / f"{stage.name}.json"), "out": str(self._out)}
        argv = [sys.executable, "-m", *(word.format_map(known) for word in stage.argv)]
        log = self._out / f"{stage.name}.txt"
        with log.open("wb") as text:
            try:
                done = subprocess.run(
                    argv,
                    stdout=text,
                    stderr=subprocess.STDOUT,
                    timeout=limit_s,
                    env={**os.environ, "CUDA_VISIBLE_DEVICES": visible},
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return f"out of time; its log is {log}"
        if done.returncode:
            tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:]
            return "\n    ".join([f"FAILED with {done.returncode}; the end of {log}:", *tail])
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
        return f"done ({last[0].strip() if last else ''})" if "pytest" in stage.argv else "done"

    def _say(self, text: str) -> None:
        click.echo(f"[{time.monotonic() - self._began_s:4.0f} s] {text}")


def _gpus() -> int:
    import torch

    return int(torch.cuda.device_count())


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="Logs and JSON go there.")
@click.option("--only", multiple=True, help="A stage; again for more.")
@click.option("--limit-s", default=3600.0, show_default=True, help="All ends by then.")
@click.option("--judge", type=click.Path(path_type=Path, exists=True), help="Only print the bars.")
def main(out: Path | None, only: tuple[str, ...], limit_s: float, judge: Path | None) -> None:
    """Run every stage that this machine can, and print which bars its figures meet."""
    if judge is not None:
        click.echo(table(judge))
        return
    if out is None:
        raise click.UsageError("say where the figures go with --out, or what to --judge")
    names = {stage.name for lanes in ROUNDS for lane in lanes for stage in lane}
    if unknown := set(only) - names:
        raise click.UsageError(
            f"no stage {sorted(unknown)[0]}; there are {', '.join(sorted(names))}"
        )
    gpus = _gpus()
    run = Run(out, limit_s)
    for lanes in chosen(only, gpus):
        run.round(lanes, gpus)
    click.echo(table(out))


if __name__ == "__main__":
    main()
