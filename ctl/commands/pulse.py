"""`lmpoolctl pulse`: whether this host's part of the pool is alive, for health checks."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any

import click

from ctl.target import Target, open_store, target_options
from ctl.terminal import run
from lmpoold.protocol.errors import LMPoolError
from lmpoold.protocol.keys import INGRESS_GROUP
from lmpoold.protocol.views import RankRow

WITHIN_MS = 10_000


@click.command(short_help="Say whether this host's lmpoold or worker is alive.")
@target_options
@click.argument("what", type=click.Choice(["lmpoold", "worker"]))
@click.option("--host", default=socket.gethostname, show_default="this one", help="Its name.")
@click.option(
    "--within-ms",
    type=click.IntRange(1),
    default=WITHIN_MS,
    show_default=True,
    help="How long an lmpoold may have been silent.",
)
def pulse(target: Target, what: str, host: str, within_ms: int) -> None:
    """Exit with 0 if an lmpoold or a worker of this host is alive, with 1 if none is.

    An lmpoold lives if it read ingress lately, a worker if its rank is up or drains. Made for
    containers, where each has a host name of its own.

    \b
    Example:  lmpoolctl pulse worker
    """

    async def ask() -> str:
        async with open_store(target) as store:
            if what == "worker":
                return rank_of(await store.ranks(), host)
            consumers = await store.redis.xinfo_consumers(store.keys.ingress, INGRESS_GROUP)
            return consumer_of(consumers, host, within_ms)

    found = run(ask())
    if not found:
        raise LMPoolError(f"no {what} of host {host} is alive in pool {target.pool}")
    print(found)


def rank_of(rows: Sequence[RankRow], host: str) -> str:
    """Return a line on a host's live rank, "" if it has none."""
    alive = (row for row in rows if row.host == host and row.state in ("up", "drain"))
    return next((f"rank {row.rank} is {row.state}" for row in alive), "")


def consumer_of(consumers: Sequence[Mapping[Any, Any]], host: str, within_ms: int) -> str:
    """Return a line on a host's lmpoold that read lately, "" if none did.

    Servers before version 7.2 say only when a consumer last got something, which is no sign of
    life: there, one that is in the group counts.
    """
    for row in consumers:
        name = row["name"].decode()
        silent_ms = int(row["idle"]) if "inactive" in row else 0
        # a consumer is called <host>-<pid>-<random>
        if name.rsplit("-", 2)[0] == host and silent_ms <= within_ms:
            return f"lmpoold {name} read {silent_ms} ms ago"
    return ""
