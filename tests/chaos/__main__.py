"""`make chaos`: ten minutes of faults over a real pool, and a table of what came of it."""

from __future__ import annotations

import random
import statistics
import sys
import time
from pathlib import Path

import click
import uvloop

from tests.chaos.run import WORKERS, Outcome, Plan, run
from tests.chaos.schedule import HANGS, KILLS, STOPS


def table(outcome: Outcome) -> str:
    """Return the outcome as lines."""
    plan, verdict = outcome.plan, outcome.verdict
    kinds: dict[str, int] = {}
    for one in outcome.done:
        kinds[one.fault.kind] = kinds.get(one.fault.kind, 0) + 1
    hurting = (*KILLS, *STOPS, *HANGS)
    hurt = sum(kinds.get(kind, 0) for kind in hurting)
    lines = [
        f"worker {plan.worker}, seed {plan.seed}, {plan.seconds:.0f} s, "
        f"{plan.lmpoolds} lmpoold, {plan.workers} workers, {plan.clients} clients",
        f"  requests            {verdict.asked}",
        f"    answered whole    {verdict.answered}",
        f"    cancelled         {verdict.cancelled}",
        f"    past deadline     {verdict.late}",
        f"    overloaded        {verdict.overloaded}",
        f"  kills, stops, hangs {hurt}",
    ]
    lines += [f"    {kind:<18}{kinds[kind]}" for kind in hurting if kind in kinds]
    others = {kind: kinds[kind] for kind in kinds if kind not in hurting}
    lines.append(f"  other faults        {sum(others.values())}")
    lines += [f"    {kind:<18}{count}" for kind, count in sorted(others.items())]
    lines += [f"    messages {kind:<9}{count}" for kind, count in outcome.messages.items()]
    lines += [f"  {name.replace('_', ' '):<20}{n}" for name, n in verdict.faults.items()]
    lines.append(f"  wrong by the library {sum(outcome.told.faults.values())}")
    lines.append(f"  died by themselves  {sum(map(len, outcome.deaths.values()))}")
    stray = sum(line.startswith("stray key") for line in outcome.idle)
    lines.append(f"  stray keys          {stray}")
    lines.append(f"  left when idle      {len(outcome.idle) - stray}")
    lines.append("  seconds from a fault to the first answer of a later request (p50, max)")
    for kind, times in sorted(outcome.recovery_s.items()):
        lines.append(f"    {kind:<18}{statistics.median(times):6.2f} {max(times):6.2f}")
    cases = [*verdict.cases, *(f"library: {case}" for case in outcome.told.cases)]
    cases += [f"library raised {case}" for case in outcome.broken] + outcome.idle
    cases += [f"{name} died: {codes}" for name, codes in outcome.deaths.items() if codes]
    lines += [f"  WRONG {case}" for case in cases[:60]]
    lines += [f"  LAST WORDS {words}" for words in outcome.last_words[:10]]
    lines.append(f"  {'good' if outcome.good else 'NOT GOOD'}")
    return "\n".join(lines)


@click.command()
@click.option("--seconds", default=600.0, show_default=True, help="Over all kinds of worker.")
@click.option("--seed", default=None, type=int, help="Drawn and printed by default.")
@click.option("--worker", type=click.Choice(["both", *WORKERS]), default="both", show_default=True)
@click.option("--per-s", default=None, type=float, help="Requests a second.")
@click.option("--every-s", default=3.0, show_default=True, help="Mean seconds between faults.")
@click.option("--logs", type=click.Path(path_type=Path), help="Keep the processes' logs here.")
def main(
    seconds: float,
    seed: int | None,
    worker: str,
    per_s: float | None,
    every_s: float,
    logs: Path | None,
) -> None:
    """Break a pool of real processes in every way known and check that nobody notices."""
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    kinds = list(WORKERS) if worker == "both" else [worker]
    click.echo(f"seed {seed}")
    good = True
    for leg, kind in enumerate(kinds):
        began_s = time.monotonic()

        def say(text: str, kind: str = kind, began_s: float = began_s) -> None:
            click.echo(f"[{kind} {time.monotonic() - began_s:4.0f} s] {text}")

        keep = None if logs is None else logs / kind
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
        plan = Plan(
            worker=kind,
            seed=seed + leg,
            seconds=seconds / len(kinds),
            per_s=per_s or {"paper": 8.0, "tiny": 4.0}[kind],
            every_s=every_s,
        )
        outcome = uvloop.run(run(plan, say, keep))
        click.echo(table(outcome))
        good = good and outcome.good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
