"""`lmpoolctl top`: the pool, live."""

from __future__ import annotations

import asyncio
import time

import click
from rich.console import Group
from rich.live import Live

from ctl.render import terminal
from ctl.target import Target, open_store, target_options
from ctl.terminal import console, run, show
from ctl.top import top_sheets
from lmpoold.store.state import read_state

PIPE_WIDTH = 200
"""What does not go to a terminal may be as wide as it is."""


@click.command(short_help="Show the pool, live: rates, ranks, plans, leases.")
@target_options
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(0.1, 60),
    default=1.0,
    show_default=True,
    help="Seconds between two readings.",
)
@click.option("--once", is_flag=True, help="Two readings, one frame, and out; so does a pipe.")
def top(target: Target, every_s: float, once: bool) -> None:
    """Show what the pool does now, again and again, until Ctrl-C.

    wait and run are weighted tokens of work; used, cached and free count KV blocks; hits is cached
    over asked prompt tokens since the pool began. A wide terminal shows more.

    \b
    Example:  lmpoolctl top
              lmpoolctl top --once --every 5
    """
    run(_top(target, every_s, once=once))


async def _top(target: Target, every_s: float, *, once: bool) -> None:
    out = console()
    async with open_store(target) as store:
        before, read_s = await read_state(store), time.monotonic()
        if once or not out.is_terminal:
            await asyncio.sleep(every_s)
            now = await read_state(store)
            width = out.width if out.is_terminal else PIPE_WIDTH
            show(top_sheets(before, now, time.monotonic() - read_s, width))
            return
        with Live(console=out, screen=True, auto_refresh=False) as live:
            now = before
            while True:
                now_s = time.monotonic()
                sheets = top_sheets(before, now, now_s - read_s, out.width)
                drawn = [part for each in sheets for part in (terminal(each, out.width), "")]
                live.update(Group(*drawn), refresh=True)
                before, read_s = now, now_s
                await asyncio.sleep(every_s)
                now = await read_state(store)
