"""What `explain` knows of a request, read, and the route's reason in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from lmpoold.protocol.errors import DecodeError
from lmpoold.protocol.views import parse_words

SENTENCES = {
    "prefix_hit": "it holds the longest cached prefix of the prompt, and was the cheapest for it",
    "shorter_prefix_cheaper": "another rank holds a longer prefix, but this one holds part of it "
    "and its shorter queue more than makes up for the rest",
    "load_outweighs_prefix": "another rank holds a prefix, but computing it anew here costs less "
    "than waiting there",
    "prefix_in_flight": "a request before it is about to compute the longest prefix there, so it "
    "follows and shares it",
    "prefix_fetched": "another rank holds a longer prefix, but bringing it here costs less than "
    "waiting there",
    "placement_lease": "it holds the prefix under a placement lease, which made it the cheapest",
    "pair_spill": "the owner of the prefix is much busier, so its neighbour took it over at a "
    "bounded extra cost",
    "no_prefix_hit": "no rank holds the first block of the prompt, so the least loaded took it",
    "no_complete_block": "the prompt is shorter than one block, so nothing of it can be cached: "
    "the least loaded took it",
    "no_capacity": "no rank has room for it now: it waits until one has, or until its deadline",
}
"""The reasons that `route` gives."""

NO_ROUTE = "it was not routed"


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one rank offered when a request was routed.

    Attributes:
        hit: leading blocks of the prompt that it held.
        deep: those, and what a request before it was about to compute.
        need: blocks it would have to find.
        free: blocks it had left, reservations taken off; below zero when over-committed.
        reclaimable: cached blocks it could forget.
        queue: cost of the work before the request, in tokens of prefill.
        prefill: cost of computing what it lacks.
        reclaim: cost of forgetting cache to make room.
        hop: cost of the way from the request's origin.
        lease: what a placement lease took off.
        cost: cost in all, the same unit.
        verdict: `ok`, `full`, `down`, `drain`, or `worse`: not searched to the end, for even with
            `hit` blocks (at most) it would cost `cost` (at least).
    """

    rank: int
    hit: int
    deep: int
    need: int
    free: int
    reclaimable: int
    queue: int
    prefill: int
    reclaim: int
    hop: int
    lease: int
    cost: int
    verdict: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """A request's record.

    Attributes:
        facts: name -> value as recorded: state, rank, attempt, finish, prompt_tokens, ...
        reason: one of `SENTENCES`, "" if it was not routed.
    """

    facts: dict[str, str]
    reason: str
    candidates: tuple[Candidate, ...]

    @property
    def rank(self) -> int | None:
        """The rank it was last sent to, None before."""
        rank = self.facts.get("rank")
        return None if rank is None else int(rank)

    @property
    def sentence(self) -> str:
        """The reason in words."""
        return SENTENCES.get(self.reason, self.reason) if self.reason else NO_ROUTE


def read_explanation(lines: Sequence[str]) -> Explanation:
    """Read the lines of `explain`; DecodeError if they are something else."""
    facts: dict[str, str] = {}
    candidates = []
    reason = ""
    for line in lines:
        name, _, value = line.partition("=")
        if name == "candidate":
            candidates.append(_candidate(line))
        elif name == "reason":
            reason = value
        else:
            facts[name] = value
    return Explanation(facts, reason, tuple(candidates))


def _candidate(line: str) -> Candidate:
    words = parse_words(line)
    try:
        numbers = {field.name: words[field.name] for field in fields(Candidate)[1:-1]}
        return Candidate(
            rank=int(words["candidate"]),
            verdict=words["verdict"],
            **{name: int(text) for name, text in numbers.items()},
        )
    except (KeyError, ValueError) as error:
        raise DecodeError(f"not a candidate: {error}") from None
