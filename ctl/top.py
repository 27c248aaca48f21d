"""The live view of a pool as tables: what it does now, from two readings. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ctl.render import DASH, Column, Sheet, compact, percent, sheet
from lmpoold.protocol.state import PoolState
from lmpoold.protocol.views import RankRow

WIDE = 120
"""Columns from which on the tables say more."""
PLANS_SHOWN = 8
BAR = 20
_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True, slots=True)
class Rates:
    """What happened between two readings, a second.

    Attributes:
        hit_rate: cached over asked prompt tokens of that time, None if none was asked.
    """

    requests: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    hit_rate: float | None = None


def rates(before: Sequence[RankRow], now: Sequence[RankRow], took_s: float) -> Rates:
    """Return the rates of some ranks together; a counter that went back counts as nothing."""
    was = {row.rank: row for row in before}
    sums = dict.fromkeys(("requests", "prompt_tokens", "cached_tokens", "output_tokens"), 0)
    for row in now:
        if row.rank in was:
            for name in sums:
                sums[name] += max(0, getattr(row, name) - getattr(was[row.rank], name))
    if took_s <= 0:
        return Rates()
    asked = sums["prompt_tokens"]
    return Rates(
        requests=sums["requests"] / took_s,
        prompt_tokens=asked / took_s,
        output_tokens=sums["output_tokens"] / took_s,
        hit_rate=sums["cached_tokens"] / asked if asked else None,
    )


def bar(share: float, width: int = BAR) -> str:
    """Return a share of 1 as a bar of exactly `width` characters."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(width, "·")


def rate_text(value: float) -> str:
    """Return a rate in at most 6 characters."""
    return f"{value:.1f}" if value < 1000 else compact(round(value))


def top_sheets(before: PoolState, now: PoolState, took_s: float, width: int) -> list[Sheet]:
    """Return the tables of one frame.

    Args:
        before: the reading before this one, itself at the first frame.
        now: this one.
        took_s: seconds between them.
        width: of the terminal, at least 80; from `WIDE` on there is more to see.
    """
    wide = width >= WIDE
    sheets = [_pool(before, now, took_s), _ranks(before, now, took_s, wide=wide)]
    if now.plans:
        sheets.append(_plans(now, wide=wide))
    if now.leases:
        sheets.append(_leases(now))
    if wide and now.links:
        sheets.append(_links(now))
    return sheets


def _pool(before: PoolState, now: PoolState, took_s: float) -> Sheet:
    speed, totals = rates(before.ranks, now.ranks, took_s), now.totals
    used = sum(row.used_blocks for row in now.ranks)
    blocks = sum(row.blocks for row in now.ranks if row.state in ("up", "drain"))
    rows = [
        ("model", now.cfg.get("model", "none yet: no lmpoold has described the pool")),
        ("ranks", f"{now.up} of {len(now.ranks)} up; {now.daemons} lmpoold"),
        (
            "now",
            f"{rate_text(speed.requests)} requests/s, {rate_text(speed.output_tokens)} tokens/s, "
            f"{rate_text(speed.prompt_tokens)} of prompts, cached {percent(speed.hit_rate)}",
        ),
        (
            "so far",
            f"{compact(totals['requests'])} requests, {compact(totals['output_tokens'])} tokens, "
            f"{compact(totals['prompt_tokens'])} of prompts, cached {percent(totals['hit_rate'])}",
        ),
        ("waiting", f"{now.ingress} in ingress, {now.parked} parked; {now.dead} dead"),
        ("blocks", f"{bar(used / blocks if blocks else 0.0)} {compact(used)} of {compact(blocks)}"),
    ]
    return sheet((Column("pool"), Column("", flexible=True)), rows)


def _ranks(before: PoolState, now: PoolState, took_s: float, *, wide: bool) -> Sheet:
    numbers = ["seqs", "wait", "run", "used", "cached", "free", "hits", "req/s", "tok/s"]
    columns = [Column("rank", number=True), Column("state")]
    columns += [Column(name, number=True) for name in numbers]
    if wide:
        columns += [
            Column("blocks held"),
            *(Column(name, number=True) for name in ("resv", "pages")),
        ]
        columns += [Column("device"), Column("host", flexible=True), Column("pid", number=True)]
    rows = []
    for row in now.ranks:
        speed = rates(before.ranks, [row], took_s)
        cells: list[object] = [
            row.rank,
            row.state,
            compact(row.sequences),
            compact(row.wait_tokens),
            compact(row.run_tokens),
            compact(row.used_blocks),
            compact(row.reclaimable),
            compact(row.free),
            percent(row.hit_rate),
            rate_text(speed.requests),
            rate_text(speed.output_tokens),
        ]
        if wide:
            cells += [bar(row.used_blocks / row.blocks if row.blocks else 0.0)]
            cells += [compact(row.reserved), compact(row.pages), row.device, row.host, row.pid]
        rows.append(cells)
    return sheet(columns, rows, "ranks")


def _plans(now: PoolState, *, wide: bool) -> Sheet:
    columns = [Column("phase"), Column("why"), Column("mode"), Column("from", number=True)]
    columns += [Column("to", number=True), Column("blocks", number=True)]
    columns += [Column("age", number=True), Column("left", number=True)]
    columns += [Column("plan", flexible=not wide), Column("reason", flexible=True)]
    oldest = sorted(now.plans, key=lambda plan: -plan.age_ms)
    rows = [
        (
            plan.phase,
            plan.why,
            plan.mode,
            plan.source,
            plan.destination,
            compact(plan.blocks),
            f"{plan.age_ms / 1000:.1f}s",
            f"{plan.left_ms / 1000:.1f}s",
            plan.id if wide else plan.id[:8],
            plan.reason,
        )
        for plan in oldest[:PLANS_SHOWN]
    ]
    count = len(now.plans)
    rest = f", the oldest {PLANS_SHOWN} of them" if count > PLANS_SHOWN else ""
    return sheet(columns, rows, f"plans: {count} under way{rest}")


def _leases(now: PoolState) -> Sheet:
    deepest = sorted(now.leases, key=lambda lease: -lease.depth_blocks)[:PLANS_SHOWN]
    rows = [
        (
            lease.name[:12],
            compact(lease.depth_blocks),
            ", ".join(f"{rank}: {left}" for rank, left in sorted(lease.quota.items())) or DASH,
        )
        for lease in deepest
    ]
    columns = (Column("prefix"), Column("blocks", number=True), Column("left", flexible=True))
    return sheet(columns, rows, f"placement leases: {len(now.leases)}, and what each side may take")


def _links(now: PoolState) -> Sheet:
    columns = [Column("from", number=True), Column("to", number=True)]
    columns += [Column("fixed us", number=True), Column("us a block", number=True)]
    rows = [
        (link.source, link.destination, f"{link.fixed_us:.0f}", f"{link.block_us:.3g}")
        for link in now.links
    ]
    return sheet(columns, rows, "links")
