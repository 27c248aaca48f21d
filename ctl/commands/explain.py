"""`lmpoolctl explain`: why a request went where it went."""

from __future__ import annotations

from dataclasses import asdict

import click

from ctl.render import Column, Sheet, compact, sheet, to_json
from ctl.target import Target, json_option, open_store, target_options
from ctl.terminal import run, show
from lmpoold.protocol.explanation import Explanation, read_explanation

CANDIDATES = (
    Column("", False),
    Column("rank", number=True),
    Column("hit", number=True),
    Column("need", number=True),
    Column("free", number=True),
    Column("cached", number=True),
    Column("queue", number=True),
    Column("cost", number=True),
    Column("verdict"),
)

TERMS = (
    Column("rank", number=True),
    *(Column(name, number=True) for name in ("in flight", "queue", "prefill", "reclaim", "hop")),
    *(Column(name, number=True) for name in ("lease", "cost")),
)


@click.command(short_help="Show why a request went where it went.")
@target_options
@click.argument("request")
@json_option
def explain(target: Target, request: str, as_json: bool) -> None:
    """Show a request's state, what each rank offered when it was routed, and the reason.

    hit, in flight, need, free and cached count blocks; the rest counts tokens of prefill:
    cost = queue + prefill + reclaim + hop - lease.

    \b
    Example:  lmpoolctl submit --id sky "Why is the sky blue?"
              lmpoolctl explain sky
    """

    async def ask() -> list[str]:
        async with open_store(target) as store:
            return await store.explain(request)

    found = read_explanation(run(ask()))
    if as_json:
        rows = [asdict(candidate) for candidate in found.candidates]
        reason = {"reason": found.reason, "sentence": found.sentence}
        print(to_json({**found.facts, **reason, "candidates": rows}))
        return
    for line in summary(found):
        print(line)
    if found.candidates:
        print()
        show([candidates_sheet(found), terms_sheet(found)])


def summary(found: Explanation) -> list[str]:
    """Return what is known of the request, a line each."""
    facts = dict(found.facts)
    where = "" if found.rank is None else f" on rank {found.rank}"
    lines = [f"request  {facts.pop('id', '')}", f"state    {facts.pop('state', 'unknown')}{where}"]
    facts.pop("rank", None)
    shown = (f"{name}={value}" for name, value in facts.items())
    lines += [f"         {fact}" for fact in shown]
    verdict = f"{found.reason}: {found.sentence}" if found.reason else found.sentence
    lines.append(f"reason   {verdict}")
    return lines


def candidates_sheet(found: Explanation) -> Sheet:
    """Return what each rank offered; an arrow marks the one that was taken."""
    rows = [
        (
            ">" if each.rank == found.rank else "",
            each.rank,
            compact(each.hit),
            compact(each.need),
            compact(each.free),
            compact(each.reclaimable),
            compact(each.queue),
            compact(each.cost),
            each.verdict,
        )
        for each in found.candidates
    ]
    return sheet(CANDIDATES, rows)


def terms_sheet(found: Explanation) -> Sheet:
    """Return what each rank's cost is made of."""
    names = ("queue", "prefill", "reclaim", "hop", "lease", "cost")
    rows = [
        (
            each.rank,
            compact(max(0, each.deep - each.hit)),
            *(compact(getattr(each, name)) for name in names),
        )
        for each in found.candidates
    ]
    return sheet(TERMS, rows)
