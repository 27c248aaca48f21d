"""What is asked, when, by whom: a pure function of a seed.

A run knows a small number of distinct requests (`Template`), each of which is asked undisturbed
once before the first fault; every other asking of it must give the same answer.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Template:
    """A request without its name: `tokens` are the prompt, `temperature` 0 is greedy."""

    number: int
    tokens: tuple[int, ...]
    max_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """One asking of a template.

    Attributes:
        at_s: seconds from the start.
        id: the request's id.
        client: index of the client that asks.
        template: what is asked.
        cancel_s: seconds from the asking to its cancelling; None for none.
        deadline_ms: 0 for none.
        twice: the same entry is added a second time.
        priority: of the request.
    """

    at_s: float
    id: str
    client: int
    template: Template
    cancel_s: float | None = None
    deadline_ms: int = 0
    twice: bool = False
    priority: int = 0


def plan_templates(seed: int, *, prefixes: int = 6, each: int = 8) -> list[Template]:
    """Return prompts that share prefixes of some blocks, with tails of their own.

    One in eight draws its tokens by temperature and a seed; the others are greedy.
    """
    draw = random.Random(seed)
    templates: list[Template] = []
    for prefix in range(prefixes):
        shared = [draw.randrange(1, 200) for _ in range(16 * (1 + 3 * prefix))]
        for _ in range(each):
            tail = [draw.randrange(1, 200) for _ in range(draw.randrange(1, 60))]
            number = len(templates)
            templates.append(
                Template(
                    number=number,
                    tokens=tuple(shared + tail),
                    max_tokens=draw.choice((1, 8, 24, 24, 48, 96)),
                    temperature=0.0 if number % 8 else 1.0,
                    seed=draw.getrandbits(31),
                )
            )
    return templates


def plan_askings(
    seed: int, templates: list[Template], *, seconds: float, per_s: float, clients: int
) -> list[Asking]:
    """Return the askings of a run in order of time: Poisson, some in bursts of siblings."""
    draw = random.Random(seed)
    askings: list[Asking] = []
    at_s = 0.0
    while at_s < seconds:
        burst = draw.choice((1, 1, 1, 1, 6))
        near = draw.randrange(len(templates))
        for sibling in range(burst):
            askings.append(
                Asking(
                    at_s=round(at_s, 3),
                    id=f"q{len(askings)}",
                    client=draw.randrange(clients),
                    template=templates[(near + sibling) % len(templates)],
                    cancel_s=draw.uniform(0, 1.5) if draw.random() < 0.05 else None,
                    deadline_ms=draw.randrange(50, 5000) if draw.random() < 0.05 else 0,
                    twice=draw.random() < 0.05,
                    priority=draw.choice((0, 0, 0, 5, -5)),
                )
            )
        at_s += burst * draw.expovariate(per_s)
    return askings
