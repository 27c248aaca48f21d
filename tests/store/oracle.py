"""The route rule once more, from its description in the store's README, in plain Python.

The pool is a set of ranks that the test keeps in step with what the function says it did; a
question about the next request is answered from it alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any


@dataclass(frozen=True)
class Weights:
    """Constants of `cfg`. Sums of halves and quarters are exact, so order of adding is moot."""

    w_wait: float = 1.0
    w_run: float = 0.25
    w_seq: float = 32.0
    w_decode: float = 8.0
    w_prefill: float = 1.0
    w_reclaim: float = 0.5
    w_flight: float = 0.25
    w_lease: float = 256.0
    w_hop: float = 64.0
    w_urgent: float = 0.25
    bypass_slack: float = 256.0
    spill_gap: float = 1024.0
    spill_slack: float = 512.0
    origin_hops: int = 2


@dataclass
class OracleRank:
    """One rank: its worker's word, what it published, and what was promised to come."""

    state: str = "up"
    alive: bool = True
    free: int = 0
    reclaimable: int = 0
    wait_tokens: int = 0
    run_tokens: int = 0
    sequences: int = 0
    pages: frozenset[str] = frozenset()
    promised: list[tuple[int, int]] = field(default_factory=list)

    @property
    def candidate(self) -> bool:
        return self.alive and self.state == "up"

    @property
    def unpromised(self) -> int:
        return self.free - sum(blocks for blocks, _ in self.promised)

    def hit(self, hashes: Sequence[str]) -> int:
        return sum(1 for _ in takewhile(self.pages.__contains__, hashes))


@dataclass(frozen=True)
class Asked:
    """One request, as the rule sees it."""

    prompt_tokens: int
    max_tokens: int
    hashes: Sequence[str]
    priority: int = 0
    origin: int | None = None


@dataclass
class Hints:
    """What the rule knows beside the ranks: links, leases, and who is about to compute what."""

    links: frozenset[frozenset[int]] = frozenset()
    leases: dict[str, tuple[int, dict[int, int]]] = field(default_factory=dict)
    in_flight: dict[str, set[int]] = field(default_factory=dict)

    def linked(self, one: int, other: int) -> bool:
        return frozenset((one, other)) in self.links

    def lease(self, hashes: Sequence[str]) -> tuple[str, int, dict[int, int]] | None:
        """The deepest lease on a beginning of a prompt: (hash, depth, quota left by rank)."""
        for depth in range(len(hashes), 0, -1):
            deep, sides = self.leases.get(hashes[depth - 1], (0, {}))
            if deep == depth:
                return hashes[depth - 1], depth, sides
        return None

    def flight(self, rank: int, hashes: Sequence[str]) -> int:
        """How much of a prompt a rank is about to compute, as far as marked depths tell."""
        if not hashes or hashes[0] not in self.in_flight:
            return 0
        marked = [d for d in marks(len(hashes)) if rank in self.in_flight.get(hashes[d - 1], ())]
        return max(marked, default=0)


def marks(blocks: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, ... below the whole, and the whole."""
    steps = sorted({2**k for k in range(13)} | {3 * 2**k for k in range(11)})
    return [step for step in steps if step < blocks] + [blocks] * (blocks > 0)


@dataclass(frozen=True)
class Offer:
    """What one candidate would mean for one request."""

    hit: int
    deep: int
    need: int
    free: int
    reclaimable: int
    queue: float
    prefill: float
    reclaim: float
    hop: float
    credit: float
    leased: bool
    fits: bool

    @property
    def cost(self) -> float:
        return self.queue + self.prefill + self.reclaim + self.hop - self.credit

    @property
    def told(self) -> dict[str, int | str]:
        """What `explain` must say, cut to whole numbers; prefill is what the rest leaves."""
        cost, queue, reclaim = int(self.cost), int(self.queue), int(self.reclaim)
        hop, lease = int(self.hop), int(self.credit)
        return {
            "hit": self.hit,
            "deep": self.deep,
            "need": self.need,
            "free": self.free,
            "reclaimable": self.reclaimable,
            "queue": queue,
            "prefill": cost - queue - reclaim - hop + lease,
            "reclaim": reclaim,
            "hop": hop,
            "lease": lease,
            "cost": cost,
            "verdict": "ok" if self.fits else "full",
        }


def nothing(verdict: str) -> dict[str, int | str]:
    """What `explain` says of a rank that is no candidate."""
    names = ("hit", "deep", "need", "free", "reclaimable", "queue", "prefill", "reclaim", "hop")
    return dict.fromkeys((*names, "lease", "cost"), 0) | {"verdict": verdict}


@dataclass(frozen=True)
class Verdict:
    """Every rank the rule may choose, and what it must say about each candidate."""

    choices: Mapping[int, set[str]]
    """Rank -> the reasons it may give: more than one only where a draw comes before a spill."""
    offers: Mapping[int, Offer]
    terms: Mapping[int, dict[str, int | str]]

    def agrees(self, number: int, said: Mapping[str, Any]) -> bool:
        """Whether what the function says of a candidate is so; of a `worse` one it gives bounds."""
        true: Mapping[str, Any] = self.terms[number]
        if said["verdict"] != "worse":
            return said == true
        made = self.offers[number]
        least = min(other.cost for other in self.offers.values() if other.fits)
        longest = max(other.deep for other in self.offers.values())
        same = ("free", "reclaimable", "queue", "hop")
        return (
            number not in self.choices
            and all(said[name] == true[name] for name in same)
            and made.hit <= said["hit"] <= longest
            and made.deep <= said["deep"] <= longest
            and said["need"] <= made.need
            and said["reclaim"] <= made.reclaim
            and said["lease"] >= true["lease"]
            and least < said["cost"] + 1
            and said["cost"] <= true["cost"]
        )


def offer(
    number: int, rank: OracleRank, asked: Asked, block: int, w: Weights, hints: Hints
) -> Offer:
    hit = rank.hit(asked.hashes)
    deep = max(hit, hints.flight(number, asked.hashes))
    need = asked.prompt_tokens // block + 1 - hit  # the prompt and one token more
    waiting = rank.wait_tokens + sum(tokens for _, tokens in rank.promised)
    if asked.priority > 0:
        waiting = waiting * w.w_urgent
    computed = max(asked.prompt_tokens - block * deep, 1)
    forgotten = max(0, need - max(rank.unpromised, 0))
    steps = 0
    if asked.origin is not None and asked.origin != number:
        steps = 1 if hints.linked(asked.origin, number) else 2
    lease = hints.lease(asked.hashes)
    credited = (
        lease is not None and w.w_lease > 0 and hit >= lease[1] and lease[2].get(number, 0) > 0
    )
    return Offer(
        hit=hit,
        deep=deep,
        need=need,
        free=rank.unpromised,
        reclaimable=rank.reclaimable,
        queue=waiting * w.w_wait + rank.run_tokens * w.w_run + rank.sequences * w.w_seq,
        prefill=computed * w.w_prefill + (deep - hit) * block * w.w_flight,
        reclaim=forgotten * block * w.w_reclaim,
        hop=steps * w.w_hop,
        credit=w.w_lease if credited else 0,
        leased=credited,
        fits=rank.unpromised + rank.reclaimable >= need,
    )


def nearby(ranks: Mapping[int, OracleRank], asked: Asked, w: Weights, hints: Hints) -> list[int]:
    """Candidates of a request: those near its origin, or all if none of them is live."""
    if asked.origin is None or w.origin_hops >= 2:
        return list(ranks)
    origin = asked.origin
    kept = [
        number
        for number, rank in ranks.items()
        if rank.candidate
        and (number == origin or (w.origin_hops == 1 and hints.linked(origin, number)))
    ]
    return kept or list(ranks)


def cheapest(offers: Mapping[int, Offer]) -> dict[int, Offer]:
    """Those of the least cost that fit."""
    fitting = {number: made for number, made in offers.items() if made.fits}
    least = min((made.cost for made in fitting.values()), default=None)
    return {number: made for number, made in fitting.items() if made.cost == least}


def settle(
    best: int, offers: Mapping[int, Offer], block: int, w: Weights, hints: Hints
) -> dict[int, bool]:
    """Who may take a request whose cheapest candidate is `best`; True for a spill."""
    holders = {number: made for number, made in offers.items() if made.deep > 0}
    owners = {best: offers[best]} if offers[best].deep > 0 else cheapest(holders)
    taken: dict[int, bool] = {}
    for owner, made in owners.items():
        saved = w.w_prefill * made.deep * block
        slack = min(w.bypass_slack, saved)
        if owner != best and offers[best].cost + slack < made.cost:
            taken[best] = False
            continue
        neighbours = {
            number: other
            for number, other in offers.items()
            if hints.linked(owner, number)
            and number != owner
            and made.queue - other.queue >= w.spill_gap
            and other.cost <= made.cost + w.spill_slack
        }
        spills = cheapest(neighbours)
        taken |= dict.fromkeys(spills, True) if spills else {owner: False}
    return taken or {best: False}


def why(made: Offer, offers: Mapping[int, Offer], asked: Asked, *, spilled: bool) -> str:
    """The reason for a choice."""
    longest = max(each.deep for each in offers.values())
    if not asked.hashes:
        return "no_complete_block"
    if spilled:
        return "pair_spill"
    if made.leased:
        return "placement_lease"
    if made.deep == longest > made.hit:
        return "prefix_in_flight"
    if longest == 0:
        return "no_prefix_hit"
    if made.deep == 0:
        return "load_outweighs_prefix"
    return "prefix_hit" if made.deep == longest else "shorter_prefix_cheaper"


def decide(
    ranks: Mapping[int, OracleRank],
    asked: Asked,
    block: int,
    w: Weights,
    hints: Hints,
) -> Verdict:
    named = nearby(ranks, asked, w, hints)
    offers = {
        number: offer(number, ranks[number], asked, block, w, hints)
        for number in named
        if ranks[number].candidate
    }
    choices: dict[int, set[str]] = {}
    for best in cheapest(offers):
        for number, spilled in settle(best, offers, block, w, hints).items():
            reason = why(offers[number], offers, asked, spilled=spilled)
            choices.setdefault(number, set()).add(reason)
    terms = {
        number: offers[number].told
        if number in offers
        else nothing("drain" if ranks[number].state == "drain" else "down")
        for number in named
    }
    return Verdict(choices=choices, offers=offers, terms=terms)


def promise(
    number: int, rank: OracleRank, made: Offer, asked: Asked, block: int, w: Weights, hints: Hints
) -> None:
    """The request goes there: its blocks and its work count from now on."""
    work = max(asked.prompt_tokens - block * made.deep, 1) + asked.max_tokens * w.w_decode
    rank.promised.append((made.need, int(work)))
    if made.leased:
        lease = hints.lease(asked.hashes)
        assert lease is not None
        lease[2][number] -= 1
        if not any(lease[2].values()):
            del hints.leases[lease[0]]
    blocks = len(asked.hashes)
    if blocks > made.hit:
        for depth in marks(blocks):
            if depth == 1 or depth > made.hit:
                hints.in_flight.setdefault(asked.hashes[depth - 1], set()).add(number)
