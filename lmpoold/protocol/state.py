"""The pool at one moment, as whoever watches it sees it: ranks, queues, plans, leases, links."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lmpoold.protocol.errors import DecodeError
from lmpoold.protocol.hashing import PrefixHash
from lmpoold.protocol.transfer import PlanRow
from lmpoold.protocol.views import RankRow


@dataclass(frozen=True, slots=True)
class Lease:
    """A placement lease.

    Attributes:
        name: hash of the prefix's last block.
        depth_blocks: blocks of the prefix.
        deadline_ms: unix milliseconds by the server's clock.
        quota: rank -> requests it may still take under the lease.
    """

    name: PrefixHash
    depth_blocks: int
    deadline_ms: int
    quota: dict[int, int]


def read_lease(name: str, text: str) -> Lease:
    """Read a field of `leases`; DecodeError if it is none."""
    try:
        depth, deadline, *sides = text.split()
        parts = [side.split(":") for side in sides]
        quota = {int(rank): int(left) for rank, _, left in parts}
        return Lease(PrefixHash(name), int(depth), int(deadline), quota)
    except ValueError:
        raise DecodeError(f"not a lease: {text[:80]!r}") from None


@dataclass(frozen=True, slots=True)
class Link:
    """What moving blocks costs from one rank to another."""

    source: int
    destination: int
    fixed_us: float
    block_us: float


def read_link(name: str, text: str) -> Link:
    """Read a field of `links`; DecodeError if it is none."""
    try:
        source, destination = map(int, name.split(">"))
        fixed_us, block_us = map(float, text.split())
        return Link(source, destination, fixed_us, block_us)
    except ValueError:
        raise DecodeError(f"not a link: {name}={text[:80]!r}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """One reading of the pool.

    Attributes:
        cfg: what the pool serves and its constants, empty before the first lmpoold.
        ingress: requests no lmpoold has routed yet.
        parked: requests that wait for room.
        dead: entries that could not be served, the last ones.
        leader: the lmpoold that leads, "" for none.
        token: the last leader's fencing token, "" before the first.
        daemons: lmpoold that read ingress.
    """

    cfg: dict[str, str] = field(default_factory=dict)
    ranks: tuple[RankRow, ...] = ()
    ingress: int = 0
    parked: int = 0
    dead: int = 0
    leader: str = ""
    token: str = ""
    daemons: int = 0
    plans: tuple[PlanRow, ...] = ()
    leases: tuple[Lease, ...] = ()
    links: tuple[Link, ...] = ()

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
