"""What the scheduler says: the rows of a step, and what came of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from workers.core.sequence import FinishReason, Sequence


class Chunk(NamedTuple):  # one a token: a tuple is made in half the time of a frozen dataclass
    """One row of a batch: compute `sequence.tokens[start : start + length]`.

    The row samples a token when it ends with the newest one. Tokens at positions below `write_from`
    have their K/V in a shared block already and must not write it again: a wholly cached prompt
    recomputes its last token for its logits alone.

    While the step before is still under way, `sequence.tokens` lacks the token it will draw. A row
    that computes that very token has it named by `after`: its place among the tokens which the
    batch before this one samples.
    """

    sequence: Sequence
    start: int
    length: int
    samples: bool
    write_from: int
    after: int | None = None

    @property
    def output_index(self) -> int:
        """Which output of the request a row that samples draws, counted from 0."""
        return self.start + self.length - self.sequence.prompt_tokens


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
    def prefill_tokens(self) -> int:
        """How many prompt tokens it computes."""
        return sum(chunk.length for chunk in self.prefills)

    @property
    def samples(self) -> tuple[Chunk, ...]:
        """The chunks that sample a token, in row order."""
        return self.decodes + tuple(chunk for chunk in self.prefills if chunk.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Natural logarithms of the unscaled, unfiltered probabilities.

    `top` holds (token, logprob) of the best tokens, best first, as many as were asked for.
    """

    chosen: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What a step drew: one token for each row that samples.

    Attributes:
        tokens: in row order.
        logprobs: one for each token, None for a row that asked for none.
    """

    tokens: list[int]
    logprobs: list[TokenLogprobs | None]


class StepResult(NamedTuple):
    """One emitted token.

    Attributes:
        index: counts outputs from 0 over all attempts of the request.
        at: the token's place among those its batch sampled.
    """

    sequence: Sequence
    token: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    at: int
    finish_reason: FinishReason | None


def cut(sequence: Sequence, budget: int, *, write_from: int) -> Chunk:
    """Return the next chunk of a prefill, at most `budget` tokens long."""
    missing = len(sequence.tokens) - sequence.launched
    length = min(missing, budget)
    return Chunk(
        sequence=sequence,
        start=sequence.launched,
        length=length,
        samples=length == missing,
        write_from=write_from,
    )
