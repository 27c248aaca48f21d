"""`lmpoolctl plans`: transfers of K/V that run, that ended, that were refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click

from ctl.render import Column, Sheet, sheet, to_json
from ctl.target import Target, json_option, open_store, target_options
from ctl.terminal import run, show
from lmpoold.protocol.transfer import SETTLED, Phase, PlanRow
from lmpoold.store.plans import PlanStore

PHASES = (Column("phase"), Column("plans", number=True), Column("oldest ms", number=True))
LIVE = (
    Column("plan", flexible=True),
    Column("phase"),
    Column("why"),
    Column("mode"),
    Column("way"),
    Column("blocks", number=True),
    Column("age ms", number=True),
    Column("left ms", number=True),
    Column("reason", flexible=True),
)
ENDED = (
    Column("plan", flexible=True),
    Column("end"),
    Column("why"),
    Column("mode"),
    Column("way"),
    Column("blocks", number=True),
    Column("ms", number=True),
    Column("predicted", number=True),
    Column("reason", flexible=True),
)
REFUSED = (Column("why"), Column("for", flexible=True), Column("said", flexible=True))


@dataclass(frozen=True, slots=True)
class Plans:
    """What the pool says of its plans: live ones, the last that ended, the last refusals."""

    live: Sequence[PlanRow]
    ended: Sequence[Mapping[str, str]]
    refused: Sequence[Mapping[str, str]]


@click.command(short_help="Show transfers of K/V between ranks.")
@target_options
@click.option("--limit", type=click.IntRange(1), default=10, show_default=True)
@json_option
def plans(target: Target, limit: int, as_json: bool) -> None:
    """Show transfer plans: live ones by phase and age, the last that ended, the last refusals.

    ms is from a plan's begin to the moment its blocks could be found, beside what was predicted.

    \b
    Example:  lmpoolctl plans
              lmpoolctl plans --limit 50 --json
    """

    async def ask() -> Plans:
        async with open_store(target) as store:
            known = PlanStore(store)
            return Plans(await known.live(), await known.log(limit), await known.refusals(limit))

    found = run(ask())
    if as_json:
        print(to_json(plans_json(found)))
    else:
        show(plan_sheets(found))


def phase_rows(live: Sequence[PlanRow]) -> list[tuple[str, int, int | None]]:
    """Return (phase, plans in it, age of the oldest in ms) for each phase that a plan can be in."""
    ages: dict[str, list[int]] = defaultdict(list)
    for row in live:
        ages[row.phase].append(row.age_ms)
    return [
        (phase, len(ages[phase]), max(ages[phase], default=None))
        for phase in Phase
        if phase not in SETTLED
    ]


def plans_json(found: Plans) -> dict[str, Any]:
    """Return everything for programs."""
    return {
        "phases": {
            phase: {"plans": count, "oldest_ms": oldest}
            for phase, count, oldest in phase_rows(found.live)
        },
        "live": [asdict(row) for row in found.live],
        "ended": list(found.ended),
        "refused": list(found.refused),
    }


def plan_sheets(found: Plans) -> list[Sheet]:
    """Return the tables; those about nothing are left out, the phases stay."""
    live = [
        (
            row.id,
            row.phase,
            row.why,
            row.mode,
            f"{row.source}>{row.destination}",
            row.blocks,
            row.age_ms,
            row.left_ms,
            row.reason,
        )
        for row in found.live
    ]
    ended = [
        (
            row["id"],
            row["outcome"],
            row["why"],
            row["mode"],
            f"{row['src']}>{row['dst']}",
            row["blocks"],
            _ms(row["publish_us"]),
            _ms(row["cost_us"]),
            row["reason"],
        )
        for row in found.ended
    ]
    refused = [(row["why"], row["for"], row["said"]) for row in found.refused]
    sheets = [sheet(PHASES, phase_rows(found.live), "live plans by phase")]
    for columns, rows, title in (
        (LIVE, live, "live plans"),
        (ENDED, ended, "plans that ended, newest first"),
        (REFUSED, refused, "refused, newest first"),
    ):
        if rows:
            sheets.append(sheet(columns, rows, title))
    return sheets


def _ms(us: str) -> str | None:
    return f"{float(us) / 1000:.1f}" if float(us) else None
