"""What may be left in the server when a pool is idle. Pure: it judges a picture of the keyspace."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lmpoold.protocol.views import RankRow

OWNED = (
    "cfg",
    "load",
    r"r:\d+:pages",
    r"r:\d+:info",
    r"r:\d+:stats",
    "in",
    r"w:\d+",
    "dead",
    "leases",
    "hot",
    "links",
    "links:refused",
    "plans:log",
    "plans:refused",
    "profile",
    "sched:fence",
)
"""Keys of an idle pool that live as long as it does; the data model says what bounds each."""
PASSING = (
    r"r:\d+:alive",
    r"r:\d+:boot",
    r"r:\d+:emitted",
    r"r:\d+:over",
    r"r:\d+:stage:\d+:\d+",
    "req:.+",
    "emitted:.+",
    "out:.+",
    "wake",
    "open:.+",
    "sched:lead",
    "plan:.+",
    "plans:probed",
)
"""Keys that must have a time to live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What the server holds, taken while nothing runs.

    Attributes:
        ttl_ms: every key of the server -> its PTTL (-1: none).
        prefix: of the pool's keys.
        rows: of `ranks`.
        streams: stream name -> (entries, pending entries of its groups).
        consumers: stream name -> consumers of its groups.
        parked: parked requests.
        journals: journals of emitted tokens, which go with their request's end.
        functions: libraries loaded.
        pages_before, pages_after: page tables by rank: as deltas built them, and as a fresh
            snapshot of each worker's own pool gave them.
    """

    ttl_ms: Mapping[str, int]
    prefix: str
    rows: Sequence[RankRow]
    streams: Mapping[str, tuple[int, int]]
    consumers: Mapping[str, int]
    parked: int
    journals: int
    functions: Sequence[str]
    pages_before: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    pages_after: Mapping[int, Mapping[str, str]] = field(default_factory=dict)


def stray_keys(ttl_ms: Mapping[str, int], prefix: str) -> list[str]:
    """Return keys that nobody owns and that no time to live will end."""

    def stray(key: str, ttl: int) -> bool:
        if not key.startswith(prefix):
            return True
        name = key.removeprefix(prefix)
        if _any(OWNED, name):
            return False
        return not (_any(PASSING, name) and ttl != -1)

    return sorted(key for key, ttl in ttl_ms.items() if stray(key, ttl))


def _any(patterns: Iterable[str], name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def judge_idle(picture: Picture, *, ranks: int, most_consumers: int) -> list[str]:
    """Return what is held, stale or lost although nothing runs; empty for a clean pool.

    Args:
        picture: of the server.
        ranks: how many workers are up.
        most_consumers: consumers a group may keep; more are left over from dead processes.
    """
    wrong = [f"stray key {key}" for key in stray_keys(picture.ttl_ms, picture.prefix)]
    if (up := sum(row.state == "up" for row in picture.rows)) != ranks:
        wrong.append(f"{up} of {ranks} ranks are up")
    for row in picture.rows:
        loads = (row.reserved, row.reserved_tokens, row.wait_tokens, row.run_tokens, row.sequences)
        if any(loads):
            wrong.append(f"rank {row.rank} counts load {loads}")
        if row.state == "up" and row.free + row.reclaimable != row.blocks:
            wrong.append(
                f"rank {row.rank}: {row.free} blocks free and {row.reclaimable} reclaimable "
                f"of {row.blocks}"
            )
    for name, (entries, pending) in picture.streams.items():
        if entries or pending:
            wrong.append(f"{name} holds {entries} entries, {pending} pending")
    for name, consumers in picture.consumers.items():
        if consumers > most_consumers:
            wrong.append(f"{name} has {consumers} consumers")
    if picture.parked:
        wrong.append(f"{picture.parked} requests are parked")
    if picture.journals:
        wrong.append(f"{picture.journals} journals of ended requests are left")
    if "lmpool" not in picture.functions:
        wrong.append("the function library is gone")
    for rank in sorted(picture.pages_before.keys() | picture.pages_after.keys()):
        before, after = picture.pages_before.get(rank, {}), picture.pages_after.get(rank, {})
        differ = {
            name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
        }
        if differ:
            wrong.append(
                f"rank {rank}: {len(differ)} pages are not the worker's own ({len(after)}), "
                f"say {min(differ)}: {before.get(min(differ))} for {after.get(min(differ))}"
            )
    return wrong
