"""`lmpoolctl up`: a whole pool on this machine."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from ctl.launch import local_pool
from ctl.plan import PoolPlan, share_of_cores
from ctl.progress import Progressing
from ctl.target import Target, shown_url, target_options


@click.command(short_help="Start a pool on this machine and keep it alive.")
@target_options
@click.option(
    "--model",
    default="demo",
    show_default=True,
    help="demo, random:<shape>, a folder, a .gguf file or a hub id.",
)
@click.option(
    "--workers", type=click.IntRange(1, 1024), default=2, show_default=True, help="One a rank."
)
@click.option("--lmpoolds", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option("--blocks", type=click.IntRange(1), help="KV blocks a worker; default: what fits.")
@click.option("--block-size", type=click.IntRange(1), help="Tokens a KV block.")
@click.option("--max-model-len", type=click.IntRange(1), help="Context in tokens.")
@click.option("--dtype", help="auto, float32, bfloat16 or float16.")
@click.option("--device", help="Of each worker: cpu, cuda (by rank), cuda:<index>, auto.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads a worker; default: its share.")
@click.option("--gateway", type=click.IntRange(0, 65535), help="Port of an HTTP gateway here.")
def up(target: Target, threads: int | None, **options: Any) -> None:
    """Start a server, lmpoold and workers here; keep them alive until Ctrl-C.

    A child that dies is started again. Ctrl-C stops all in order; the server's data stay in the
    state directory, where the next `up` finds them. Logs lie there under logs/.

    \b
    Example:  lmpoolctl up --model demo --workers 2
              lmpoolctl up --model ./Qwen3-0.6B --workers 4 --redis-url redis://db:6379/0
    """
    plan = PoolPlan(target=target, threads=threads or share_of_cores(options["workers"]), **options)
    asyncio.run(_up(plan))


async def _up(plan: PoolPlan) -> None:
    show = Progressing()
    try:
        async with local_pool(plan, show) as pool:
            count = plan.workers
            show.say(
                f"ready: {count} worker{'s' if count > 1 else ''} up, model {plan.model}, "
                f"server {shown_url(pool.url)}\n"
                f'  lmpoolctl submit{plan.target.flags()} "Why is the sky blue?"\n'
                f"{_door(plan)}"
                "  Ctrl-C stops the pool"
            )
            await pool.guard(asyncio.Event().wait())
    except asyncio.CancelledError:
        show.say("stopped")


def _door(plan: PoolPlan) -> str:
    """Return the line on the gateway, "" without one; a free port stands in its log."""
    if plan.gateway is None:
        return ""
    where = (
        f"http://127.0.0.1:{plan.gateway}/v1" if plan.gateway else "logs/gateway.log has the port"
    )
    return f"  OpenAI's API: {where}\n"
