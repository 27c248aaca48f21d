"""Which hot prefixes are copied ahead, from where to where: gates, each with its numbers.

A prefix is hot when many requests found it lately. Copying it pays when its owner has more to do
than a neighbour, the neighbour lacks it and has room, nothing was tried there a moment ago, and
computing it once would cost clearly more than the wire does. Whatever is refused says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lmpoold.protocol.hashing import PrefixHash
from lmpoold.protocol.profile import Pair
from lmpoold.protocol.views import RankRow


@dataclass(frozen=True, slots=True)
class Hot:
    """A prefix that many requests found.

    Attributes:
        leaf: its last block.
        blocks: its length.
        found: how many requests found it lately.
        holders: ranks that have it.
    """

    leaf: PrefixHash
    blocks: int
    found: float
    holders: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """What a copy must pass; see the constants of the same names, `hot_` before them."""

    threshold: float
    skew: float
    idle: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Copy:
    """Bring a prefix from one rank to another."""

    hot: Hot
    source: int
    destination: int
    saved_us: float
    cost_us: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a hot prefix is not copied to a rank; `said` holds the numbers."""

    leaf: PrefixHash
    pair: Pair
    reason: str
    said: str


def pressure(row: RankRow) -> float:
    """Return how much a rank has to do, in sequences, promised ones included."""
    return row.sequences + (1.0 if row.reserved_tokens else 0.0)


def decide_placement(
    hot: Sequence[Hot],
    rows: Mapping[int, RankRow],
    links: Mapping[Pair, Callable[[int], float]],
    prefill_us: Callable[[int], float | None],
    cooling: Callable[[PrefixHash, Pair], bool],
    block_size: int,
    gates: Gates,
) -> tuple[list[Copy], list[Refusal]]:
    """Choose copies, the hottest first, at most one a directed link.

    Args:
        hot: prefixes, in any order.
        rows: ranks that are up.
        links: microseconds that moving so many blocks takes, by pair.
        prefill_us: a rank's microseconds a computed token, None if unknown.
        cooling: whether a prefix and pair are to be left alone yet.
        block_size: tokens a block.
        gates: the least that makes a copy worth it.
    """
    copies: list[Copy] = []
    refusals: list[Refusal] = []
    taken: set[Pair] = set()
    room = {rank: row.free - row.reserved for rank, row in rows.items()}
    for one in sorted(hot, key=lambda each: (-each.found, each.leaf)):
        if one.found < gates.threshold:
            continue
        for pair, cost in sorted(links.items()):
            source, destination = pair
            if source not in one.holders or source not in rows or destination not in rows:
                continue
            if destination in one.holders:
                continue
            gap = pressure(rows[source]) - pressure(rows[destination])
            pace = prefill_us(destination)
            saved = one.blocks * block_size * (pace or 0.0)
            spent = cost(one.blocks)
            refused = ""
            if pair in taken or cooling(one.leaf, pair):
                continue
            if gap < gates.skew:
                refused, said = "even_load", f"gap={gap:g} skew={gates.skew:g}"
            elif pressure(rows[destination]) > gates.idle:
                refused, said = "target_busy", f"sequences={pressure(rows[destination]):g}"
            elif room[destination] < one.blocks:
                refused, said = "no_room", f"free={room[destination]} blocks={one.blocks}"
            elif saved < gates.ratio * spent:
                refused, said = "low_benefit", f"saved_us={saved:.0f} cost_us={spent:.0f}"
            if refused:
                refusals.append(Refusal(one.leaf, pair, refused, said))
                continue
            taken.add(pair)
            room[destination] -= one.blocks
            copies.append(Copy(one, source, destination, saved, spent))
            break
    return copies, refusals
