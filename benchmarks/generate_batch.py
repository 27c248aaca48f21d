"""The same work by `transformers`' own continuous batching, as it comes.

Run as a process of its own, so that the GPU is free afterwards.
"""

from __future__ import annotations

import json
import sys
import time

from transformers import GenerationConfig

from benchmarks.work import Work
from lmpoold.text.folder import resolve
from workers.model.weights import load


def main() -> None:
    """Read a work as JSON from argv, print the figure as JSON; the first, small run warms up."""
    work = Work(**json.loads(sys.argv[1]))
    settings = work.settings()
    folder = resolve(work.model, cache=settings.cache)
    model = load(folder, dtype=work.dtype, device=settings.device).model
    model.set_attn_implementation("sdpa")
    wanted = GenerationConfig(
        max_new_tokens=work.output_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    model.generate_batch(inputs=work.prompts(8, -1), generation_config=wanted)
    prompts = work.prompts(work.requests, 1)
    began_s = time.perf_counter()
    outputs = model.generate_batch(inputs=prompts, generation_config=wanted)
    took_s = time.perf_counter() - began_s
    tokens = sum(len(output.generated_tokens) for output in outputs.values())
    print(json.dumps({"tok_s": tokens / took_s, "tokens": tokens}))


if __name__ == "__main__":
    main()
