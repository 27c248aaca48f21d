"""What the runner alone makes of the work: the token rate that the bare step permits.

A scheduler over a plant that computes nothing gives the steps in which a worker would do the work;
then the runner is given these very steps one after another, the next launched while one computes.
No engine, no text, no Redis. Run as a process of its own, so that the GPU is free afterwards.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

from benchmarks.work import Work
from lmpoold.protocol.hashing import domain_root
from lmpoold.protocol.request import Sampling
from workers.core.blocks import BlockPool
from workers.core.schedule import Scheduler
from workers.core.sequence import Sequence as Progress
from workers.daemon.plant import rows_of
from workers.model.batch import Row
from workers.model.kv import KVPool
from workers.model.runner import InFlight, Runner
from workers.model.sample import SamplingRow

Step = tuple[list[Row], list[SamplingRow]]
REPEATS = 3
DECODES = 60


def recorded(work: Work, pool: KVPool, prompts: Sequence[list[int]]) -> list[Step]:
    """Return the steps that serve all prompts at once."""
    settings = work.settings()
    scheduler = Scheduler(
        BlockPool(pool.num_blocks, work.block_size),
        max_num_seqs=settings.max_num_seqs,
        max_batched_tokens=settings.max_batched_tokens,
        max_model_len=work.max_model_len,
        lookahead=1,
    )
    root = domain_root("bench", work.block_size)
    sampling = Sampling(max_tokens=work.output_tokens, ignore_eos=True)
    for number, tokens in enumerate(prompts):
        scheduler.add(
            Progress(
                request_id=str(number),
                attempt=1,
                prompt_tokens=len(tokens),
                tokens=list(tokens),
                sampling=sampling,
                priority=0,
                arrival=number,
                deadline_ms=0,
                root=root,
            )
        )
    steps: list[Step] = []
    waiting = []
    while waiting or not scheduler.idle:
        batch = scheduler.schedule(0.0)
        if batch.rows:
            rows, drawn = rows_of(batch)
            steps.append(([_apart(row) for row in rows], drawn))
            waiting.append(batch)
        if len(waiting) > (1 if batch.rows else 0):
            done = waiting.pop(0)
            scheduler.complete(done, [0] * len(done.samples), 0.0)
    return steps


def _apart(row: Row) -> Row:
    return Row(
        tokens=row.tokens,
        start=row.start,
        block_table=list(row.block_table),
        write_from=row.write_from,
        samples=row.samples,
        after=row.after,
    )


def seconds(runner: Runner, steps: Sequence[Step]) -> float:
    """Return how long the runner takes for steps, one of them always prepared ahead."""
    began_s = time.perf_counter()
    under_way: list[InFlight] = []
    for rows, sampling in steps:
        under_way.append(runner.launch(rows, sampling))
        if len(under_way) > 1:
            under_way.pop(0).result()
    for last in under_way:
        last.result()
    return time.perf_counter() - began_s


def decode_ms(work: Work, runner: Runner, pool: KVPool, batch: int) -> float:
    """Return the time of a step of `batch` decodes in the middle of their answers."""
    start = work.prompt_tokens + max(0, (work.output_tokens - DECODES) // 2)
    each = -(-(start + DECODES + 1) // work.block_size)
    most = max(1, pool.num_blocks // batch)
    tables = [
        [(row * most + at % most) % pool.num_blocks for at in range(each)] for row in range(batch)
    ]
    sampling = [SamplingRow(sampling=Sampling(max_tokens=1), index=0)] * batch
    steps = [
        (
            [
                Row(tokens=[0], start=start + at, block_table=table, after=row if at else None)
                for row, table in enumerate(tables)
            ],
            sampling,
        )
        for at in range(DECODES)
    ]
    seconds(runner, steps)
    return min(seconds(runner, steps) for _ in range(REPEATS)) / DECODES * 1000


def main() -> None:
    """Read a work as JSON from argv, print the figures as JSON."""
    work, batches = Work(**json.loads(sys.argv[1])), json.loads(sys.argv[2])
    plant, pool = work.build()
    times_s = []
    for repeat in range(REPEATS + 1):  # the first one warms up
        steps = recorded(work, pool, work.prompts(work.requests, repeat))
        times_s.append(seconds(plant.runner, steps))
    tokens = work.requests * work.output_tokens
    figures = {
        "tok_s": tokens / sorted(times_s[1:])[REPEATS // 2],
        "steps": len(steps),
        "decode_ms": {str(batch): decode_ms(work, plant.runner, pool, batch) for batch in batches},
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
