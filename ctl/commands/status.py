"""`lmpoolctl status`: the pool on one screen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

import click
from redis.exceptions import ResponseError
from rich.console import Group
from rich.live import Live

from ctl.commands.ranks import row_json
from ctl.render import Column, Sheet, compact, percent, sheet, terminal, to_json
from ctl.target import Target, json_option, open_store, shown_url, target_options
from ctl.terminal import console, run, show
from lmpoold.protocol.keys import INGRESS_GROUP
from lmpoold.protocol.views import RankRow
from lmpoold.store.connect import judge_server
from lmpoold.store.scripts import PoolStore

EXIT_NO_RANK = 4
WATCH_S = 1.0

FACTS = (Column("pool"), Column("", flexible=True))
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
    """The pool at one moment.

    Attributes:
        ingress: requests no lmpoold has routed yet.
        parked: requests that wait for room.
        dead: entries that could not be served.
        leader: the lmpoold that leads, "" for none.
        token: the last leader's fencing token, "" before the first.
        daemons: lmpoold that read ingress.
    """

    server: str
    url: str
    pool: str
    cfg: dict[str, str]
    ranks: tuple[RankRow, ...]
    ingress: int
    parked: int
    dead: int
    leader: str
    token: str
    daemons: int

    @property
    def up(self) -> int:
        """How many ranks take requests."""
        return sum(row.state == "up" for row in self.ranks)

    @property
    def totals(self) -> dict[str, Any]:
        """Sums over all ranks; the hit rate is the ratio of sums, None before the first request."""
        names = ("requests", "prompt_tokens", "cached_tokens", "output_tokens", "sequences")
        sums = {name: sum(getattr(row, name) for row in self.ranks) for name in names}
        asked = sums["prompt_tokens"]
        return {**sums, "hit_rate": sums["cached_tokens"] / asked if asked else None}

    def to_json(self) -> dict[str, Any]:
        """Return everything, under the names that the tables use."""
        return {
            "server": self.server,
            "url": self.url,
            "pool": self.pool,
            "cfg": self.cfg,
            "ranks": [row_json(row) for row in self.ranks],
            "up": self.up,
            "totals": self.totals,
            "ingress": self.ingress,
            "parked": self.parked,
            "dead": self.dead,
            "leader": self.leader,
            "token": self.token,
            "daemons": self.daemons,
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
    return 0 if found.up else EXIT_NO_RANK


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
    redis, keys = store.redis, store.keys
    waiting: Awaitable[Any] = asyncio.gather(
        redis.xlen(keys.ingress), redis.zcard(keys.parked), redis.xlen(keys.dead)
    )
    ingress, parked, dead = await waiting
    leader, token = [each.decode() if each else "" for each in await _lead(store)]
    return Status(
        server=judge_server(await redis.info("everything")),
        url=shown_url(url),
        pool=keys.pool,
        cfg=await store.cfg(),
        ranks=tuple(await store.ranks()),
        ingress=ingress,
        parked=parked,
        dead=dead,
        leader=leader,
        token=token,
        daemons=await _daemons(store),
    )


async def _lead(store: PoolStore) -> list[Any]:
    found: list[Any] = await store.redis.mget([store.keys.lead, store.keys.fence])
    return found


async def _daemons(store: PoolStore) -> int:
    try:
        readers: list[Any] = await store.redis.xinfo_consumers(store.keys.ingress, INGRESS_GROUP)
    except ResponseError:
        return 0  # no lmpoold has made the group yet
    return len(readers)


def status_sheets(found: Status) -> list[Sheet]:
    """Return the tables of `status`; neither is wider than 80 columns."""
    cfg, totals = found.cfg, found.totals
    context = cfg.get("max_model_len", "?")
    facts = [
        ("server", f"{found.server} at {found.url}"),
        ("model", cfg.get("model", "none yet: no lmpoold has described the pool")),
        ("blocks", f"{cfg.get('block_size', '?')} tokens each; context {context} tokens"),
        ("lmpoold", f"{found.daemons}; {found.leader or 'none'} leads"),
        ("waiting", f"{found.ingress} in ingress, {found.parked} parked; {found.dead} dead"),
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
        for row in found.ranks
    ]
    about = sheet((Column("pool"), Column(found.pool, flexible=True)), facts)
    return [about, sheet(RANKS, rows)] if rows else [about]
