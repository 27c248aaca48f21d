"""`lmpoolctl status`: the pool on one screen."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Group
from rich.live import Live

from ctl.commands.ranks import row_json
from ctl.render import Column, Sheet, compact, percent, sheet, terminal, to_json
from ctl.target import Target, json_option, open_store, shown_url, target_options
from ctl.terminal import console, run, show
from lmpoold.protocol.state import PoolState
from lmpoold.store.connect import judge_server
from lmpoold.store.scripts import PoolStore
from lmpoold.store.state import read_state

EXIT_NO_RANK = 4
WATCH_S = 1.0

RANKS = (
    Column("rank", number=True),
    Column("state"),
    *(
        Column(name, number=True)
        for name in ("blocks", "used", "cached", "free", "resv", "seqs", "load", "hits")
    ),
)


@dataclass(frozen=True, slots=True)
class Status:
    """The pool at one moment, and where it was read."""

    server: str
    url: str
    pool: str
    state: PoolState

    def to_json(self) -> dict[str, Any]:
        """Return everything, under the names that the tables use."""
        state = self.state
        return {
            "server": self.server,
            "url": self.url,
            "pool": self.pool,
            "cfg": state.cfg,
            "ranks": [row_json(row) for row in state.ranks],
            "up": state.up,
            "totals": state.totals,
            "ingress": state.ingress,
            "parked": state.parked,
            "dead": state.dead,
            "leader": state.leader,
            "token": state.token,
            "daemons": state.daemons,
        }


@click.command(short_help="Show the pool on one screen.")
@target_options
@json_option
@click.option("--watch", is_flag=True, help="Again every second, until Ctrl-C.")
def status(target: Target, as_json: bool, watch: bool) -> int:
    """Show the server, what the pool serves, its ranks and its queues.

    blocks, used, cached, free and resv(ed) count KV blocks; load counts weighted tokens of work;
    hits is cached over asked prompt tokens. Exits 4 if no rank takes requests.

    \b
    Example:  lmpoolctl status
              lmpoolctl status --json | jq .totals.hit_rate
    """
    if watch:
        run(_watch(target, as_json))
    found = run(_once(target))
    if as_json:
        print(to_json(found.to_json()))
    else:
        show(status_sheets(found))
    return 0 if found.state.up else EXIT_NO_RANK


async def _once(target: Target) -> Status:
    async with open_store(target) as store:
        return await read_status(store, target.url())


async def _watch(target: Target, as_json: bool) -> None:
    out = console()
    async with open_store(target) as store:
        if as_json or not out.is_terminal:
            while True:
                found = await read_status(store, target.url())
                if as_json:
                    print(to_json(found.to_json()), flush=True)
                else:
                    show(status_sheets(found))
                    print(flush=True)
                await asyncio.sleep(WATCH_S)
        with Live(console=out, screen=True, auto_refresh=False) as live:
            while True:
                sheets = status_sheets(await read_status(store, target.url()))
                live.update(Group(*(terminal(each, out.width) for each in sheets)), refresh=True)
                await asyncio.sleep(WATCH_S)


async def read_status(store: PoolStore, url: str) -> Status:
    """Ask the server for everything that `status` shows."""
    return Status(
        server=judge_server(await store.redis.info("everything")),
        url=shown_url(url),
        pool=store.keys.pool,
        state=await read_state(store),
    )


def status_sheets(found: Status) -> list[Sheet]:
    """Return the tables of `status`; neither is wider than 80 columns."""
    state = found.state
    cfg, totals = state.cfg, state.totals
    context = cfg.get("max_model_len", "?")
    facts = [
        ("server", f"{found.server} at {found.url}"),
        ("model", cfg.get("model", "none yet: no lmpoold has described the pool")),
        ("blocks", f"{cfg.get('block_size', '?')} tokens each; context {context} tokens"),
        ("lmpoold", f"{state.daemons}; {state.leader or 'none'} leads"),
        ("waiting", f"{state.ingress} in ingress, {state.parked} parked; {state.dead} dead"),
        (
            "totals",
            f"{totals['requests']} requests, {totals['prompt_tokens']} prompt tokens, "
            f"{percent(totals['hit_rate'])} cached",
        ),
    ]
    rows = [
        (
            row.rank,
            row.state,
            compact(row.blocks),
            compact(row.used_blocks),
            compact(row.reclaimable),
            compact(row.free),
            compact(row.reserved),
            compact(row.sequences),
            compact(row.wait_tokens + row.run_tokens + row.reserved_tokens),
            percent(row.hit_rate),
        )
        for row in state.ranks
    ]
    about = sheet((Column("pool"), Column(found.pool, flexible=True)), facts)
    return [about, sheet(RANKS, rows)] if rows else [about]
