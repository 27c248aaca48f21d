"""Which ranks can move blocks between them, and by which way, from what their workers say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from lmpoold.protocol.profile import Pair

ANY_WAY = "auto"
INDEX = "#"
"""What the name of a GPU begins with whose UUID its worker could not learn."""
Facts = Mapping[str, str]
"""What a rank's worker says of itself: `way`, `device`, `host`; on a GPU also `gpu` and `near`."""


@dataclass(frozen=True, slots=True)
class NoLink:
    """Why two ranks move no blocks between them, and what would change that."""

    reason: str


@dataclass(frozen=True, slots=True)
class Links:
    """What two ranks each can do.

    Attributes:
        ways: of every ordered pair that can move blocks.
        refused: every other pair, lower rank first.
    """

    ways: Mapping[Pair, str]
    refused: Mapping[Pair, NoLink]


def choose_way(one: Facts, other: Facts) -> str | NoLink:
    """Return the way that two workers will use between them, wherever their devices are.

    Two that leave it to each pair are judged by their devices: on GPUs the slower of the two ways
    that may come of it is assumed, so that a prediction errs on the side of computing.
    """
    if not (one.get("way") and other.get("way")):
        return NoLink("a worker of them moves no blocks: see its --transport and its log")
    hosts = one.get("host", ""), other.get("host", "")
    if hosts[0] != hosts[1]:
        return NoLink(f"they are on hosts {hosts[0]} and {hosts[1]}: blocks move within one host")
    kinds = {facts.get("device", "").partition(":")[0] for facts in (one, other)}
    if len(kinds) > 1:
        return NoLink("one of them is on a GPU and the other is not: they have no way in common")
    named = {one["way"], other["way"]} - {ANY_WAY}
    if len(named) > 1:
        ways = " and ".join(sorted(named))
        return NoLink(f"they were started with --transport {ways}: give both the same")
    if named:
        return named.pop()
    return "nccl" if kinds == {"cuda"} else "gloo"


def connected(one: Facts, other: Facts) -> bool:
    """Whether the GPUs of two workers have a direct link; so they do if their words cannot tell."""
    mine, theirs = one.get("gpu", ""), other.get("gpu", "")
    comparable = mine and theirs and mine.startswith(INDEX) == theirs.startswith(INDEX)
    return not comparable or mine == theirs or theirs in one.get("near", "").split(",")


def linked(facts: Mapping[int, Facts], pairs: str) -> Links:
    """Return which pairs of ranks can move blocks, both ways, and why the others cannot.

    Args:
        facts: of each rank that lives.
        pairs: the pool's constant: "0-1,2-3" names those that have a direct link, whatever their
            workers say; "" takes the workers' word.
    """
    named = {frozenset(map(int, word.split("-"))) for word in pairs.split(",") if word}
    ways: dict[Pair, str] = {}
    refused: dict[Pair, NoLink] = {}
    for low, high in combinations(sorted(facts), 2):
        way = choose_way(facts[low], facts[high])
        if isinstance(way, NoLink):
            refused[low, high] = way
        elif named and frozenset((low, high)) not in named:
            refused[low, high] = NoLink(f"the pool's `pairs` ({pairs}) leave them out")
        elif not named and not connected(facts[low], facts[high]):
            refused[low, high] = NoLink(
                f"GPUs {facts[low]['gpu']} and {facts[high]['gpu']} have no direct link; to move "
                "blocks between them all the same, name the pair: lmpoolctl config set pairs=..."
            )
        else:
            ways[low, high] = ways[high, low] = way
    return Links(ways, refused)
