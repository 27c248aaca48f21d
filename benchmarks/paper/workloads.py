"""The requests of the matrix: seeded prompts of own text, in phases.

A prompt is a header that names its group, so that two groups differ from their first block on; a
paragraph, repeated; and one of sixteen questions. With the byte tokenizer of `random:` models a
character is a token, and a prompt of n repeats has 117 n + 39 tokens.

Three workloads. **routing**: 16 groups of 12, shuffled. **load-skew**: three groups get everything,
so their owners drown while the others idle. **memory-skew**: sessions are opened, others that share
a part of two of them push them out of the caches, and then they come back word for word.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

PARAGRAPH = (
    "The tide table hangs by the door, and every boat that leaves the harbour is written down "
    "with its hour and its cargo. "
)[:117]
OTHER = (
    "Up the hill the orchard keeps its own book: which tree was grafted when, what it bore, and "
    "who came for a basket in fall. "
)[:117]
QUESTIONS = tuple(
    f"{text:<17}"
    for text in (
        "Who wrote it?", "Which hour?", "What was aboard?", "Where is it?", "Which came last?",
        "How many left?", "What came back?", "Who reads it?", "When is it open?",
        "Where do they go?",
        "What is missing?", "Who came first?", "Which was late?", "How long was it?",
        "What weighs most?", "Who shuts it?",
    )
)  # fmt: skip
WHOLE_CHARS = 117
TAIL_REPEATS = 24
ANCHOR_SHARE = 0.375
HOT_ANCHORS = 2
HOT_PRESSURE = 0.8


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request before it is sent.

    Attributes:
        group: what it shares its beginning with.
        max_tokens: of its answer; 0 for the workload's.
    """

    group: int
    text: str
    max_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Phase:
    """Requests that are sent once everything before them has been answered."""

    name: str
    prompts: tuple[Prompt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is sent, and the room it is served in.

    Attributes:
        reuse: the name of the phase that shows what was kept.
        max_tokens: of each answer, none of which ends earlier.
        window: requests in flight at once.
        budget_tokens: of K/V cache, a rank, at full length.
    """

    name: str
    phases: tuple[Phase, ...]
    reuse: str
    max_tokens: int
    window: int
    budget_tokens: int

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """All of them, in the order of sending."""
        return tuple(prompt for phase in self.phases for prompt in phase.prompts)


def _prompt(group: int, body: str, question: int) -> Prompt:
    return Prompt(group, f"[{group:03}] In this book: {body}{QUESTIONS[question % 16]}\n?")


def _shuffled(prompts: list[Prompt], seed: str) -> tuple[Prompt, ...]:
    random.Random(seed).shuffle(prompts)
    return tuple(prompts)


def routing(repeats: int, seed: int, chars: int, requests: int) -> Workload:
    """16 groups with prompts of 16 x `repeats` paragraphs, in an order drawn by `seed`."""
    body = PARAGRAPH[:chars] * (16 * repeats)
    prompts = [_prompt(i % 16, body, i // 16) for i in range(requests)]
    return Workload(
        name=f"routing-{repeats}x",
        phases=(Phase("all", _shuffled(prompts, f"routing {seed}")),),
        reuse="all",
        max_tokens=8,
        window=16,
        budget_tokens=384 * 256,
    )


def load_skew(seed: int, chars: int, requests: int) -> Workload:
    """Three hot groups: each is computed once, then asked for by everybody at once."""
    body, hot = PARAGRAPH[:chars] * 64, 3
    warm = tuple(_prompt(group, body, 0) for group in range(hot))
    prompts = [_prompt(i % hot, body, 1 + i // hot) for i in range(requests - hot)]
    return Workload(
        name="load-skew",
        phases=(Phase("warm-up", warm), Phase("reuse", _shuffled(prompts, f"load {seed}"))),
        reuse="reuse",
        max_tokens=8,
        window=96,
        budget_tokens=192 * 256,
    )


def memory_skew(seed: int, chars: int, requests: int) -> Workload:
    """Six sessions; then others on two of their anchors and elsewhere; then the six again."""
    first, second = PARAGRAPH[:chars], OTHER[:chars]
    sessions, anchor = 6, round(ANCHOR_SHARE * 64)
    pressed = requests * 5 // 12
    reused = requests - pressed - sessions
    opened = [_prompt(s, first * anchor + second * (64 - anchor), s) for s in range(sessions)]
    again = [opened[i % sessions] for i in range(reused)]
    pressing = []
    for i in range(pressed):
        hot = i < round(HOT_PRESSURE * pressed)
        group = i % HOT_ANCHORS if hot else HOT_ANCHORS + i % (sessions - HOT_ANCHORS)
        tail = f"<{i:03}> " + second * TAIL_REPEATS
        pressing.append(_prompt(group, first * anchor + tail, i))
    return Workload(
        name="memory-skew",
        phases=(
            Phase("sessions", _shuffled(list(opened), f"open {seed}")),
            Phase("pressure", _shuffled(pressing, f"press {seed}")),
            Phase("reuse", _shuffled(again, f"again {seed}")),
        ),
        reuse="reuse",
        max_tokens=16,
        window=48,
        budget_tokens=128 * 256,
    )


WORKLOADS: dict[str, tuple[int, Callable[[int, int, int], Workload]]] = {
    "routing-1x": (192, lambda seed, chars, n: routing(1, seed, chars, n)),
    "routing-3x": (192, lambda seed, chars, n: routing(3, seed, chars, n)),
    "routing-5x": (192, lambda seed, chars, n: routing(5, seed, chars, n)),
    "load-skew": (192, load_skew),
    "memory-skew": (72, memory_skew),
}
"""Name -> how many requests it has at full size, and what makes it of seed, characters, count."""


def workload(name: str, *, seed: int, chars: int, requests: int = 0) -> Workload:
    """Make a workload.

    Args:
        name: of `WORKLOADS`.
        seed: of the order.
        chars: of a paragraph, 1 to 117: the cache shrinks with it.
        requests: 0 for the full size.
    """
    full, make = WORKLOADS[name]
    made = make(seed, chars, requests or full)
    return replace(made, budget_tokens=made.budget_tokens * chars // WHOLE_CHARS)
