"""What a process may know of the pool: rows as the functions print them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from lmpoold.protocol.errors import DecodeError
from lmpoold.protocol.hashing import PrefixHash


@dataclass(frozen=True, slots=True)
class Counts:
    """A worker's load, reported with each delta.

    Attributes:
        free: blocks nobody holds and nobody waits for.
        reclaimable: cached blocks that could be had by forgetting them.
        wait_tokens: weighted tokens of sequences not running yet.
        run_tokens: weighted tokens of running ones.
        sequences: both together.
    """

    free: int
    reclaimable: int
    wait_tokens: int
    run_tokens: int
    sequences: int

    def __str__(self) -> str:
        """Return the counts as `delta` and `swap` take them."""
        return (
            f"{self.free} {self.reclaimable} {self.wait_tokens} {self.run_tokens} {self.sequences}"
        )


PAGE_TEXT = "%d:%d:%d:%s"
"""A `PageEntry` in the page table: `PAGE_TEXT % entry`."""


class PageEntry(NamedTuple):  # a snapshot has one a block, and a tuple is made in half the time
    """Where a rank holds one block; `parent` is the hash before it, or the domain root."""

    block: int
    generation: int
    depth: int
    parent: PrefixHash

    def __str__(self) -> str:
        """Return the entry as it stands in the page table."""
        return PAGE_TEXT % self


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank as `ranks` prints it; blocks, weighted tokens, and counters since the pool began."""

    rank: int
    state: str
    blocks: int
    free: int
    reclaimable: int
    reserved: int
    pages: int
    sequences: int
    wait_tokens: int
    run_tokens: int
    reserved_tokens: int
    version: int
    epoch: int
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    device: str
    host: str
    pid: str

    @property
    def used_blocks(self) -> int:
        """Blocks that sequences hold; a rank that is down holds none."""
        down = self.state in ("down", "lost")
        return 0 if down else max(0, self.blocks - self.free - self.reclaimable)

    @property
    def hit_rate(self) -> float | None:
        """Cached over asked prompt tokens, a ratio of sums; None before the first request."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


def parse_words(line: str) -> dict[str, str]:
    """Return the `name=value` words of a line that a function printed."""
    return dict(word.partition("=")[::2] for word in line.split())


def read_rank_row(line: str) -> RankRow:
    """Read a line of `ranks`; DecodeError if it is none."""
    words = parse_words(line)
    values: dict[str, Any] = {}
    try:
        for field in fields(RankRow):
            word = words[field.name]
            values[field.name] = word if field.type == "str" else int(word)
        return RankRow(**values)
    except (KeyError, ValueError) as error:
        raise DecodeError(f"not a rank row: {error}") from None


@dataclass(frozen=True, slots=True)
class Routed:
    """What `route` did with one request.

    Attributes:
        outcome: `routed`, `parked`, `dup`, or `refused`.
        detail: the code of a refusal.
    """

    id: str
    outcome: str
    rank: int = -1
    hit: int = 0
    need: int = 0
    detail: str = ""


def read_routed(line: str) -> Routed:
    """Read one text of `route`'s reply; DecodeError if it is none."""
    match line.split():
        case [request_id, rank, hit, need] if rank.isdigit():
            return Routed(request_id, "routed", int(rank), int(hit), int(need))
        case [request_id, "refused", code]:
            return Routed(request_id, "refused", detail=code)
        case [request_id, ("parked" | "dup") as outcome]:
            return Routed(request_id, outcome)
    raise DecodeError(f"not a route reply: {line[:80]!r}")


@dataclass(frozen=True, slots=True)
class RouteCall:
    """One request as `route` takes it.

    Attributes:
        source: ingress entry id, or `parked`.
        deadline_ms: unix milliseconds, 0 for the pool's default.
        candidates: ranks to choose from; empty for every rank.
        priority: above 0, it goes before what waits on a rank.
        origin: the rank where the asker is, -1 for none.
        payload: handed to the worker unread.
        tokens: prompt token ids, as `hashing.token_bytes` packs them.
    """

    id: str
    source: str
    prompt_tokens: int
    max_tokens: int
    hashes: Sequence[PrefixHash]
    client: str
    payload: str
    tokens: bytes
    deadline_ms: int = 0
    attempt: int = 0
    candidates: tuple[int, ...] = ()
    priority: int = 0
    origin: int = -1

    def to_args(self) -> tuple[str | bytes, ...]:
        """Return the 8 arguments of `route`."""
        return (
            self.id,
            self.source,
            f"{self.prompt_tokens} {self.max_tokens} {self.deadline_ms} {self.attempt}"
            + (f" {self.priority}" if self.priority else ""),
            "".join(self.hashes),
            (",".join(map(str, self.candidates)) or "*")
            + (f"@{self.origin}" if self.origin >= 0 else ""),
            self.client,
            self.payload,
            self.tokens,
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a request, as a worker reports it with its last output.

    Attributes:
        entry: the worker stream entry that brought the request.
        state: `done`, `cancelled` or `failed`.
    """

    id: str
    attempt: int
    entry: str
    state: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
