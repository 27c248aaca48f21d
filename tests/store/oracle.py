"""The route rule once more, from its description in the store's README, in plain Python.

The pool is a set of ranks that the test keeps in step with what the function says it did; a
question about the next request is answered from it alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile


@dataclass(frozen=True)
class Weights:
    """Constants of `cfg`. Sums of halves and quarters are exact, so order of adding is moot."""

    w_wait: float = 1.0
    w_run: float = 0.25
    w_seq: float = 32.0
    w_decode: float = 8.0
    w_prefill: float = 1.0
    w_reclaim: float = 0.5


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
class Offer:
    """What one candidate would mean for one request."""

    hit: int
    need: int
    free: int
    reclaimable: int
    queue: float
    cost: float
    fits: bool

    def text(self) -> str:
        verdict = "ok" if self.fits else "full"
        numbers = (self.hit, self.need, self.free, self.reclaimable)
        return " ".join(map(str, (*numbers, int(self.queue), int(self.cost), verdict)))


@dataclass(frozen=True)
class Verdict:
    """Every rank the rule may choose, and what it must say about each candidate."""

    choices: frozenset[int]
    offers: Mapping[int, Offer]
    terms: Mapping[int, str]
    has_blocks: bool

    def agrees(self, number: int, text: str) -> bool:
        """Whether what the function says of a candidate is so; of a `worse` one it gives bounds."""
        if not text.endswith(" worse"):
            return text == self.terms[number]
        hit, need, free, reclaimable, queue, cost = map(int, text.split()[:-1])
        made = self.offers[number]
        least = min(other.cost for other in self.offers.values() if other.fits)
        longest = max(other.hit for other in self.offers.values())
        exact = (free, reclaimable, queue) == (made.free, made.reclaimable, int(made.queue))
        bounded = made.hit <= hit <= longest and made.need >= need and least <= cost <= made.cost
        return exact and bounded and made.cost > least

    def reason(self, chosen: int | None) -> str:
        if chosen is None:
            return "no_capacity"
        hit = self.offers[chosen].hit
        longest = max(offer.hit for offer in self.offers.values())
        if not self.has_blocks:
            return "no_complete_block"
        if longest == 0:
            return "no_prefix_hit"
        if hit == 0:
            return "load_outweighs_prefix"
        return "prefix_hit" if hit == longest else "shorter_prefix_cheaper"


def offer(
    rank: OracleRank, prompt_tokens: int, hashes: Sequence[str], block: int, w: Weights
) -> Offer:
    hit = rank.hit(hashes)
    blocks_of_request = prompt_tokens // block + 1  # the prompt and one token more
    need = blocks_of_request - hit
    waiting = rank.wait_tokens + sum(tokens for _, tokens in rank.promised)
    queue = waiting * w.w_wait + rank.run_tokens * w.w_run + rank.sequences * w.w_seq
    computed = max(prompt_tokens - block * hit, 1)
    forgotten = max(0, need - max(rank.unpromised, 0))
    return Offer(
        hit=hit,
        need=need,
        free=rank.unpromised,
        reclaimable=rank.reclaimable,
        queue=queue,
        cost=queue + computed * w.w_prefill + forgotten * block * w.w_reclaim,
        fits=rank.unpromised + rank.reclaimable >= need,
    )


def decide(
    ranks: Mapping[int, OracleRank],
    prompt_tokens: int,
    hashes: Sequence[str],
    block: int,
    w: Weights,
) -> Verdict:
    offers = {
        number: offer(rank, prompt_tokens, hashes, block, w)
        for number, rank in ranks.items()
        if rank.candidate
    }
    fitting = {number: made.cost for number, made in offers.items() if made.fits}
    least = min(fitting.values(), default=None)
    terms = {}
    for number, rank in ranks.items():
        if number in offers:
            terms[number] = offers[number].text()
        else:
            word = "drain" if rank.state == "drain" else "down"
            terms[number] = f"0 0 0 0 0 0 {word}"
    return Verdict(
        choices=frozenset(number for number, cost in fitting.items() if cost == least),
        offers=offers,
        terms=terms,
        has_blocks=bool(hashes),
    )


def promise(
    rank: OracleRank, made: Offer, prompt_tokens: int, max_tokens: int, block: int, w: Weights
) -> None:
    """The request goes there: its blocks and its work count from now on."""
    work = max(prompt_tokens - block * made.hit, 1) + max_tokens * w.w_decode
    rank.promised.append((made.need, int(work)))
