"""`lmpoolctl drain`: take a rank out of routing, gently."""

from __future__ import annotations

import asyncio

import click

from ctl.target import Target, open_store, target_options
from ctl.terminal import run
from lmpoold.protocol.errors import LMPoolError
from lmpoold.protocol.views import RankRow
from lmpoold.store.scripts import PoolStore

POLL_S = 0.2


@click.command(short_help="Send a rank no new requests.")
@target_options
@click.argument("rank", type=click.IntRange(0))
@click.option("--undo", is_flag=True, help="Send it requests again.")
@click.option("--wait", is_flag=True, help="Return when its last sequence has ended.")
def drain(target: Target, rank: int, undo: bool, wait: bool) -> None:
    """Send a rank no new requests; those it has go on to their end.

    \b
    Example:  lmpoolctl drain 1 --wait     # then stop that worker
              lmpoolctl drain 1 --undo
    """
    if undo and wait:
        raise click.UsageError("--wait goes with draining, not with --undo")

    async def ask() -> str:
        async with open_store(target) as store:
            await store.drain(rank, draining=not undo)
            if undo:
                return f"rank {rank} takes requests again"
            return await _drained(store, rank) if wait else f"rank {rank} is draining"

    print(run(ask()))


async def _drained(store: PoolStore, rank: int) -> str:
    while True:
        row = await rank_row(store, rank)
        if row.state in ("down", "lost"):
            return f"rank {rank} is {row.state}: nothing runs there"
        if row.state == "up":
            raise LMPoolError(f"rank {rank} takes requests again: somebody undid the drain")
        if row.sequences == 0 and row.reserved_tokens == 0:
            return f"rank {rank} is drained"
        await asyncio.sleep(POLL_S)


async def rank_row(store: PoolStore, rank: int) -> RankRow:
    """Return one rank's row; LMPoolError if it never joined."""
    for row in await store.ranks():
        if row.rank == rank:
            return row
    raise LMPoolError(f"rank {rank} never joined this pool; see `lmpoolctl ranks`")
