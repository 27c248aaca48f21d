"""`lmpoolctl demo`: a pool, a few rounds of questions on one shared prompt, and what that saved."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

import click

from ctl.launch import local_pool
from ctl.plan import PoolPlan, share_of_cores
from ctl.progress import Progressing
from ctl.rounds import Demo
from ctl.target import Target, json_option
from lmpoold.protocol.keys import DEFAULT_POOL

BLOCKS = 512
MAX_MODEL_LEN = 2048
LONGEST_BASE = 60
"""Of the folder that a demo's is made in."""


@click.command(short_help="See in a minute what the pool does.")
@click.option("--model", default="demo", show_default=True)
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True)
@click.option("--rounds", type=click.IntRange(2, 50), default=3, show_default=True)
@json_option
def demo(model: str, workers: int, rounds: int, as_json: bool) -> int:
    """Start a pool, ask questions that share a long system prompt, show who answered and why.

    Nothing is kept. Exits 1 if an answer failed, or if from the second round on less than half
    of the shared prompt came from the cache.

    \b
    Example:  lmpoolctl demo
              lmpoolctl demo --workers 3 --rounds 5
    """
    # A short path: a unix socket's may have 107 bytes, and $TMPDIR can be long.
    base = tempfile.gettempdir()
    base = base if len(base) <= LONGEST_BASE else "/tmp"
    folder = Path(tempfile.mkdtemp(prefix="lmpool-demo-", dir=base))
    try:
        plan = PoolPlan(
            target=Target(None, DEFAULT_POOL, folder),
            model=model,
            workers=workers,
            blocks=BLOCKS,
            max_model_len=MAX_MODEL_LEN,
            threads=share_of_cores(workers),
        )
        return asyncio.run(_demo(plan, rounds, as_json=as_json))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _demo(plan: PoolPlan, rounds: int, *, as_json: bool) -> int:
    show = Progressing(sys.stderr if as_json else sys.stdout)
    show.say(f"starting {plan.workers} workers with model {plan.model}")
    async with local_pool(plan, show) as pool:
        return await pool.guard(Demo(pool.url, rounds, show.say, as_json=as_json).run())
