"""The phases of a plan, and what participants of one are told: the only table of phase order.

A plan copies or moves the K/V of one chain of blocks from a source rank to a destination rank.

    prepare   the source pins the chain, the destination reserves blocks; both say so
    execute   the blocks travel; the source says when it has stopped, the destination publishes
    publish   the pages stand in the destination's table; both clear up and say so
    finalize  over: done
    abort     failed before publish; both stop what they do and say so, nothing is freed yet
    aborted   over: the source unpins, the destination frees

A phase goes on by itself: the function that takes the last missing word of a phase opens the next
one and tells the participants. Each phase has a deadline, which one reaper watches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from lmpoold.protocol.errors import DecodeError
from lmpoold.protocol.hashing import HASH_DIGITS, PrefixHash


class Phase(StrEnum):
    """Where a plan stands."""

    PREPARE = "prepare"
    EXECUTE = "execute"
    PUBLISH = "publish"
    FINALIZE = "finalize"
    ABORT = "abort"
    ABORTED = "aborted"


SUCCESSORS: Mapping[Phase, frozenset[Phase]] = {
    Phase.PREPARE: frozenset({Phase.EXECUTE, Phase.ABORT}),
    Phase.EXECUTE: frozenset({Phase.PUBLISH, Phase.ABORT}),
    Phase.PUBLISH: frozenset({Phase.FINALIZE}),
    Phase.FINALIZE: frozenset(),
    Phase.ABORT: frozenset({Phase.ABORTED}),
    Phase.ABORTED: frozenset(),
}
"""Every legal step; visible blocks only go forward."""

SETTLED = frozenset(phase for phase, after in SUCCESSORS.items() if not after)
"""Phases in which nobody holds anything for the plan."""


class Mode(StrEnum):
    """Whether the source keeps its blocks."""

    COPY = "copy"
    MOVE = "move"


class Why(StrEnum):
    """Which of the three uses asked for a plan, or that it only measures the link.

    A plan that measures has no chain: both sides take scratch blocks, and nothing becomes visible.
    """

    FETCH = "fetch"
    FOREGROUND = "foreground"
    BACKGROUND = "background"
    CALIBRATE = "calibrate"


class Role(StrEnum):
    """A participant's side."""

    SOURCE = "source"
    DESTINATION = "destination"


@dataclass(frozen=True, slots=True)
class BlockRef:
    """A block of one rank's tensor, and which of its lives is meant."""

    block: int
    generation: int

    def __str__(self) -> str:
        """Return the reference as plans hold it."""
        return f"{self.block}:{self.generation}"


def encode_refs(refs: tuple[BlockRef, ...]) -> str:
    """Return references parted by blanks."""
    return " ".join(map(str, refs))


def decode_refs(text: str) -> tuple[BlockRef, ...]:
    """Read what `encode_refs` wrote; DecodeError otherwise."""
    try:
        pairs = [word.split(":") for word in text.split()]
        return tuple(BlockRef(int(block), int(generation)) for block, generation in pairs)
    except ValueError:
        raise DecodeError(f"not block references: {text[:80]!r}") from None


def split_hashes(text: str) -> tuple[PrefixHash, ...]:
    """Part a blob of names, 32 digits each; DecodeError if it is ragged."""
    if len(text) % HASH_DIGITS:
        raise DecodeError(f"{len(text)} digits are not whole names")
    ends = range(0, len(text), HASH_DIGITS)
    return tuple(PrefixHash(text[start : start + HASH_DIGITS]) for start in ends)


NO_HASH = PrefixHash("")
"""Where an order has nothing to say of a domain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOrder:
    """What a participant is to do for a plan; one entry of its worker stream.

    Attributes:
        entry: id of the stream entry.
        kind: `plan_prepare`, `plan_execute`, `plan_finalize`, `plan_abort` or `plan_settle`.
        id: the plan.
        role: the participant's side.
        epoch: the participant's own epoch, under which alone the order counts.
        peer: rank of the other side.
        peer_epoch: its epoch.
        mode: whether the source keeps its blocks.
        why: which of the three uses asked for it.
        hashes: (prepare) the chain, root first.
        first: depth of the first block that travels; (prepare) as the page table has it.
        keep: (prepare, of a move) depth up to which the source keeps its blocks.
        count: depth behind the last block that travels; (prepare) as the page table has it.
        limit_ms: how long the phase may take from now on.
        refs: (execute) the peer's blocks for the depths from `first` to below `count`.
        tokens: (execute, to the destination) the token ids of those blocks, parted by blanks.
        root: (execute, to the destination) the hash domain that the chain starts from.
    """

    entry: str
    kind: str
    id: str
    role: Role
    epoch: str
    peer: int
    peer_epoch: str
    mode: Mode = Mode.COPY
    why: Why = Why.FETCH
    hashes: tuple[PrefixHash, ...] = ()
    first: int = 0
    count: int = 0
    keep: int = 0
    limit_ms: int = 0
    refs: tuple[BlockRef, ...] = ()
    tokens: str = ""
    root: PrefixHash = NO_HASH


ORDERS = frozenset({f"plan_{name}" for name in ("prepare", "execute", "finalize", "abort")}) | {
    "plan_settle"
}
"""The kinds of entries on a worker stream that are orders of a plan."""


def read_order(entry: str, values: Mapping[bytes, bytes]) -> PlanOrder:
    """Read an order; DecodeError if a field is missing or cannot be read."""
    row: dict[str, Any] = {"entry": entry}
    texts = {name.decode(): value.decode() for name, value in values.items()}
    readers = {
        "role": Role,
        "mode": Mode,
        "why": Why,
        "peer": int,
        "first": int,
        "count": int,
        "keep": int,
        "limit_ms": int,
        "hashes": split_hashes,
        "refs": decode_refs,
    }
    try:
        for field in fields(PlanOrder):
            if field.name in texts:
                row[field.name] = readers.get(field.name, str)(texts[field.name])  # type: ignore[operator]
        return PlanOrder(**row)
    except (ValueError, TypeError) as error:
        raise DecodeError(f"plan order {entry}: {error}") from None


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One plan as `plans` prints it; times in milliseconds, unset ones -1.

    Attributes:
        blocks: that travel, once both sides have prepared; before it, that were asked for.
        age_ms: since it began; for a settled plan, from its begin to its end.
        left_ms: to the deadline of its phase.
        reason: why it was aborted, "-" if it was not.
    """

    id: str
    phase: str
    mode: str
    why: str
    source: int
    destination: int
    blocks: int
    age_ms: int
    left_ms: int
    reason: str


def read_plan_row(words: Mapping[str, str]) -> PlanRow:
    """Read the words of a line of `plans`; DecodeError if it is none."""
    values: dict[str, Any] = {}
    try:
        for field in fields(PlanRow):
            word = words[field.name]
            values[field.name] = int(word) if field.type == "int" else word
        return PlanRow(**values)
    except (KeyError, ValueError) as error:
        raise DecodeError(f"not a plan row: {error}") from None
