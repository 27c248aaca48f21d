"""What the demo's questions came to: figures by question, by rank and in all. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ctl.render import Column, Sheet, percent, sheet

LEAST_SAVED = 0.5
"""Share of the shared prompt that must come from the cache, from the second round on."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One answered question.

    Attributes:
        round: counted from 1.
        saved_tokens: tokens of the shared prompt that were cached.
        first_token_s: seconds from sending to the first token.
    """

    id: str
    round: int
    question: str
    answer: str
    rank: int
    reason: str
    prompt_tokens: int
    cached_tokens: int
    saved_tokens: int
    output_tokens: int
    first_token_s: float


def saved_share(asked: Sequence[Asked], shared_tokens: int) -> float:
    """Return the share of the shared prompt's tokens, over all questions, that were cached."""
    asked_tokens = shared_tokens * len(asked)
    return sum(each.saved_tokens for each in asked) / asked_tokens if asked_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Summary:
    """The demo as a whole; seconds are means, to the first token.

    Attributes:
        shared_tokens: length of the shared prompt.
        failed: questions without an answer.
        saved_tokens: prompt tokens that were cached, shared or not.
        later_share: of the shared prompt, from the second round on.
    """

    shared_tokens: int
    questions: int
    failed: int
    prompt_tokens: int
    saved_tokens: int
    later_share: float
    first_round_s: float
    later_s: float

    @property
    def well(self) -> bool:
        """Whether everything was answered and enough of it came from the cache."""
        return not self.failed and self.later_share >= LEAST_SAVED


def sum_up(asked: Sequence[Asked], *, shared_tokens: int, failed: int) -> Summary:
    """Add up all rounds."""
    later = [each for each in asked if each.round > 1]
    return Summary(
        shared_tokens=shared_tokens,
        questions=len(asked),
        failed=failed,
        prompt_tokens=sum(each.prompt_tokens for each in asked),
        saved_tokens=sum(each.cached_tokens for each in asked),
        later_share=round(saved_share(later, shared_tokens), 4),
        first_round_s=_mean([each.first_token_s for each in asked if each.round == 1]),
        later_s=_mean([each.first_token_s for each in later]),
    )


def by_rank(asked: Sequence[Asked]) -> Sheet:
    """Return the questions and tokens of each rank that answered any."""
    names = ("rank", "questions", "prompt", "cached", "hits", "output")
    rows = []
    for rank in sorted({each.rank for each in asked}):
        mine = [each for each in asked if each.rank == rank]
        prompt = sum(each.prompt_tokens for each in mine)
        cached = sum(each.cached_tokens for each in mine)
        output = sum(each.output_tokens for each in mine)
        rows.append((rank, len(mine), prompt, cached, percent(cached / prompt), output))
    return sheet([Column(name, number=True) for name in names], rows, "tokens by rank")


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4) if values else 0.0
