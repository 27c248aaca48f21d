"""`lmpoolctl ranks`: every rank in detail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from ctl.render import Column, Sheet, compact, percent, sheet, to_json
from ctl.target import Target, json_option, open_store, target_options
from ctl.terminal import run, show
from lmpoold.protocol.views import RankRow

_RANK = Column("rank", number=True)


def _numbers(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, number=True) for name in names)


BLOCKS = (
    _RANK,
    Column("state"),
    *_numbers("blocks", "used", "cached", "free", "reserved", "pages", "version"),
)
LOAD = (_RANK, *_numbers("sequences", "waiting", "running", "reserved"))
TOTALS = (_RANK, *_numbers("requests", "prompt", "cached", "hits", "output"))
PROCESS = (
    _RANK,
    Column("device", flexible=True),
    Column("host", flexible=True),
    Column("pid", number=True),
    Column("epoch", number=True),
)


@click.command(short_help="Show every rank in detail.")
@target_options
@json_option
def ranks(target: Target, as_json: bool) -> None:
    """Show every rank that ever joined: blocks, load, totals, process.

    \b
    Example:  lmpoolctl ranks
              lmpoolctl ranks --json
    """

    async def ask() -> list[RankRow]:
        async with open_store(target) as store:
            return await store.ranks()

    rows = run(ask())
    if as_json:
        print(to_json([row_json(row) for row in rows]))
    else:
        show(rank_sheets(rows))


def row_json(row: RankRow) -> dict[str, Any]:
    """Return a rank's row with what follows from it."""
    return {**asdict(row), "used": row.used_blocks, "hit_rate": row.hit_rate}


def rank_sheets(rows: Sequence[RankRow]) -> list[Sheet]:
    """Return the tables that show ranks in detail, none wider than 80 columns."""
    blocks = [
        (
            row.rank,
            row.state,
            compact(row.blocks),
            compact(row.used_blocks),
            compact(row.reclaimable),
            compact(row.free),
            compact(row.reserved),
            compact(row.pages),
            compact(row.version),
        )
        for row in rows
    ]
    load = [
        (
            row.rank,
            row.sequences,
            compact(row.wait_tokens),
            compact(row.run_tokens),
            compact(row.reserved_tokens),
        )
        for row in rows
    ]
    totals = [
        (
            row.rank,
            compact(row.requests),
            compact(row.prompt_tokens),
            compact(row.cached_tokens),
            percent(row.hit_rate),
            compact(row.output_tokens),
        )
        for row in rows
    ]
    processes = [(row.rank, row.device, row.host, row.pid, row.epoch) for row in rows]
    return [
        sheet(BLOCKS, blocks, "KV blocks"),
        sheet(LOAD, load, "load: sequences, and their weighted tokens"),
        sheet(TOTALS, totals, "totals since the pool began: requests, tokens"),
        sheet(PROCESS, processes, "processes"),
    ]
