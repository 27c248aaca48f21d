"""A trace of real use as a workload for live pools: its sharing, lengths and rhythm, own content.

Traces name blocks and do not hold them, so each id is given text of its own: equal ids are equal
text. Everything is shrunk by one factor, so that a small model on a small machine serves the same
pattern; requests that are longer even so are left out, and their number is said.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

from benchmarks.paper.workloads import Phase, Prompt, Workload
from benchmarks.traces import Trace

WORDS = tuple(
    f"{a}{b}{c} " for a in "bdfglmnprst" for b in "aeiou" for c in "klmnrst"
)  # own words, four characters each


def text_of(seed: str, length: int) -> str:
    """Return `length` characters that only this seed gives."""
    draw = random.Random(seed)
    return "".join(draw.choice(WORDS) for _ in range(-(-length // 4)))[:length]


def trace_workload(
    trace: Trace, *, shrink: int, longest: int, cache_tokens: int
) -> tuple[Workload, list[float], int]:
    """Make a workload of a trace.

    Args:
        trace: the requests; as many as it has.
        shrink: by how much blocks, prompts and answers are made shorter.
        longest: prompt and answer together, in characters; longer requests are left out.
        cache_tokens: of a rank, in tokens of the trace: shrunk with the rest.
    Returns: the workload, when each of its requests comes, and how many were left out.
    Raises: ValueError: a block would become shorter than a character.
    """
    if trace.block_tokens % shrink:
        raise ValueError(
            f"the trace's blocks of {trace.block_tokens} tokens cannot be cut {shrink}fold"
        )
    size = trace.block_tokens // shrink
    block_text: Callable[[int], str] = cache(lambda block: text_of(f"block {block}", size))
    prompts, times_s = [], []
    for number, request in enumerate(trace.requests):
        output = max(1, request.output_tokens // shrink)
        length = max(1, request.input_tokens // shrink)
        if length + output >= longest:
            continue
        shared = "".join(map(block_text, request.blocks))[:length]
        tail = text_of(f"tail {number}", length - len(shared))
        prompts.append(Prompt(request.blocks[0] if request.blocks else -1, shared + tail, output))
        times_s.append(request.arrival_s)
    work = Workload(
        name=trace.name,
        phases=(Phase("all", tuple(prompts)),),
        reuse="all",
        max_tokens=1,
        window=64,
        budget_tokens=cache_tokens // shrink,
    )
    return work, times_s, len(trace.requests) - len(prompts)
