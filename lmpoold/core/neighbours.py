"""Which ranks can move blocks between them, and by which way, from what their workers say."""

from __future__ import annotations

from collections.abc import Mapping

from lmpoold.protocol.profile import Pair

ANY_WAY = "auto"


def choose_way(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Return the way that two workers will use between them, "" if there is none.

    Two that leave it to each pair are judged by their devices: on GPUs the slower of the two ways
    that may come of it is assumed, so that a prediction errs on the side of computing.

    Args:
        one: what a rank's worker says of itself: `way`, `device`, `host`.
        other: the same of another.
    """
    ways = {one.get("way", ""), other.get("way", "")}
    if "" in ways or one.get("host") != other.get("host"):
        return ""
    named = ways - {ANY_WAY}
    if len(named) > 1:
        return ""
    if named:
        return named.pop()
    devices = (one.get("device", ""), other.get("device", ""))
    return "nccl" if all(device.startswith("cuda") for device in devices) else "gloo"


def linked(facts: Mapping[int, Mapping[str, str]], pairs: str) -> dict[Pair, str]:
    """Return every ordered pair of ranks that can move blocks, with its way.

    Args:
        facts: what each rank that lives says of itself.
        pairs: the pool's constant: "0-1,2-3" leaves out whoever has no direct link, "" nobody.
    """
    named = {frozenset(map(int, word.split("-"))) for word in pairs.split(",") if word}
    found: dict[Pair, str] = {}
    for source, one in facts.items():
        for destination, other in facts.items():
            near = not named or frozenset((source, destination)) in named
            if source != destination and near and (way := choose_way(one, other)):
                found[source, destination] = way
    return found
