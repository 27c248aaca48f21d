"""What the scheduler says: the rows of a step, and what came of them."""

from __future__ import annotations

from dataclasses import dataclass

from workers.core.sequence import FinishReason, Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """One row of a batch: compute `sequence.tokens[start : start + length]`.

    The row samples a token when it ends with the newest one. Tokens at positions below `write_from`
    have their K/V in a shared block already and must not write it again: a wholly cached prompt
    recomputes its last token for its logits alone.
    """

    sequence: Sequence
    start: int
    length: int
    samples: bool
    write_from: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step computes, decode rows first; and who lost its blocks for it."""

    decodes: tuple[Chunk, ...]
    prefills: tuple[Chunk, ...]
    preempted: tuple[Sequence, ...]

    @property
    def rows(self) -> tuple[Chunk, ...]:
        """Every chunk, in row order."""
        return self.decodes + self.prefills

    @property
    def samples(self) -> tuple[Chunk, ...]:
        """The chunks that sample a token, in row order."""
        return self.decodes + tuple(chunk for chunk in self.prefills if chunk.samples)


@dataclass(frozen=True, slots=True)
class StepResult:
    """One emitted token; `index` counts outputs from 0 over all attempts of the request."""

    sequence: Sequence
    token: int
    index: int
    finish_reason: FinishReason | None
