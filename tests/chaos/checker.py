"""Whether answers keep the promises: exactly once, no token lost or repeated, nothing changed.

Pure: it judges what a run has written down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lmpoold.protocol.messages import Output
from tests.chaos.asking import Asking


@dataclass(frozen=True, slots=True)
class Expected:
    """The undisturbed answer of a template."""

    tokens: tuple[int, ...]
    text: str


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What was wrong, by kind, and a few words on each case."""

    asked: int = 0
    answered: int = 0
    cancelled: int = 0
    late: int = 0
    overloaded: int = 0
    lost: int = 0
    twice: int = 0
    missing_tokens: int = 0
    repeated_tokens: int = 0
    unequal: int = 0
    unasked: int = 0
    refused: int = 0
    cases: list[str] = field(default_factory=list)

    @property
    def faults(self) -> dict[str, int]:
        """The kinds of fault, and how many of each; all zero in a good run."""
        names = ("lost", "twice", "missing_tokens", "repeated_tokens", "unequal", "unasked")
        return {name: getattr(self, name) for name in (*names, "refused")}

    @property
    def good(self) -> bool:
        """Whether nothing was wrong."""
        return not any(self.faults.values())


def judge(
    askings: Sequence[Asking],
    outputs: Mapping[str, Sequence[Output]],
    expected: Mapping[int, Expected],
    cancelled: frozenset[str] = frozenset(),
) -> Verdict:
    """Judge every answer of a run.

    Args:
        askings: what was accepted, one each id.
        outputs: by id, every output on its client's stream, in the stream's order.
        expected: by template number.
        cancelled: ids that were in fact cancelled by their asker.
    """
    verdict = Verdict(asked=len(askings))
    for asking in askings:
        rows = outputs.get(asking.id, ())
        _judge_one(verdict, asking, rows, expected[asking.template.number], cancelled)
    for stranger in outputs.keys() - {asking.id for asking in askings}:
        verdict.unasked += 1
        verdict.cases.append(f"{stranger}: answered and never asked")
    return verdict


def _judge_one(
    verdict: Verdict,
    asking: Asking,
    rows: Sequence[Output],
    expected: Expected,
    cancelled: frozenset[str],
) -> None:
    def case(text: str) -> None:
        verdict.cases.append(f"{asking.id} (template {asking.template.number}): {text}")

    ends = [row for row in rows if row.ends]
    if not ends:
        verdict.lost += 1
        case(f"no end after {len(rows)} outputs")
    if len(ends) > 1:
        verdict.twice += 1
        case(f"{len(ends)} ends: {[end.finish_reason or end.code for end in ends]}")
    indices = [row.index for row in rows if row.token is not None]
    seen = Counter(indices)
    repeated = sum(count - 1 for count in seen.values())
    if repeated:
        verdict.repeated_tokens += repeated
        case(f"{repeated} tokens repeated, indices {indices}")
    reach = max(seen, default=-1) + 1
    if ends and ends[0].code:
        reach = max(reach, ends[0].index)
    missing = reach - len(seen)
    if missing:
        verdict.missing_tokens += missing
        case(f"{missing} tokens missing, indices {indices}")
    differs: list[str] = []
    if not repeated and indices != sorted(indices):
        differs.append(f"tokens out of order, indices {indices}")
    told = {row.index: row.token for row in rows if row.token is not None}
    wrong = [i for i, token in told.items() if token != dict(enumerate(expected.tokens)).get(i)]
    if wrong:
        differs.append(f"another token than undisturbed at {wrong[0]} of {len(told)}")
    text = "".join(row.text for row in rows)
    whole = bool(ends and ends[0].finish_reason)
    if not (repeated or missing) and (
        text != expected.text if whole else not expected.text.startswith(text)
    ):
        differs.append(f"another text than undisturbed: {text[:80]!r} for {expected.text[:80]!r}")
    if whole:
        count, usage = len(expected.tokens), ends[0].usage
        if ends[0].index != count - 1:
            differs.append(f"ended by {ends[0].finish_reason} at {ends[0].index} of {count} tokens")
        elif usage is None or usage.completion_tokens != count:
            differs.append(f"{usage} for {count} tokens")
    if differs:
        verdict.unequal += 1
        case("; ".join(differs))
    if ends:
        _count_end(verdict, asking, ends[0], cancelled, case)


def _count_end(
    verdict: Verdict,
    asking: Asking,
    end: Output,
    cancelled: frozenset[str],
    case: Callable[[str], None],
) -> None:
    if end.finish_reason:
        verdict.answered += 1
    elif end.code == "cancelled" and asking.id in cancelled:
        verdict.cancelled += 1
    elif end.code == "deadline_exceeded" and asking.deadline_ms:
        verdict.late += 1
    elif end.code == "overloaded":
        verdict.overloaded += 1
    else:
        verdict.refused += 1
        case(f"refused: {end.code} {end.message}")
