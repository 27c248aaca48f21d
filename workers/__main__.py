"""lmpool-worker: argv and environment to a WorkerConfig, then serve."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import click
import uvloop

from lmpoold.shell.ending import run_command
from lmpoold.shell.observe import log_to_stderr
from lmpoold.shell.steady import uncollected
from lmpoold.text.folder import cache_root
from workers.daemon.serve import serve
from workers.daemon.settings import WorkerConfig


@click.group(
    invoke_without_command=True,
    context_settings={"auto_envvar_prefix": "LMPOOL", "show_default": True},
)
@click.option("--redis-url", envvar=["LMPOOL_REDIS_URL", "REDIS_URL"])
@click.option("--pool", default="default", help="The pool to join.")
@click.option("--model", default="demo", help="demo, random:<shape>, a folder, .gguf or hub id.")
@click.option("--rank", default=0, help="Place in the pool; one live worker each.")
@click.option("--device", default="cpu", help="cpu, cuda[:index], or auto; cuda goes by rank.")
@click.option("--dtype", default="auto", help="auto takes the pool's.")
@click.option("--blocks", default=0, help="KV blocks; 0 takes what --kv-bytes holds.")
@click.option("--kv-bytes", default=0, help="For K/V; 0: 512 MiB on a CPU, what fits on a GPU.")
@click.option("--memory-share", default=0.9, help="Of a GPU's memory, for this worker.")
@click.option("--block-size", default=0, help="0 takes the pool's; another one is refused.")
@click.option("--threads", default=max(1, (os.cpu_count() or 2) // 2), help="CPU threads.")
@click.option("--max-num-seqs", default=0, help="That run at once; 0: 64, 256 on a GPU.")
@click.option("--max-batched-tokens", default=0, help="A step's most; 0: 512, 8192 on a GPU.")
@click.option("--lookahead", type=click.IntRange(0, 1), help="Steps ahead; 0, 1 on a GPU.")
@click.option(
    "--transport",
    default="auto",
    type=click.Choice(["auto", "peer", "nccl", "gloo", "off"]),
    help="How K/V goes to other workers and comes from them.",
)
@click.option("--transfer-host", default="127.0.0.1", help="Where other workers reach this one.")
@click.option("--check/--no-check", default=False, help="Assert the blocks' invariants; for tests.")
@click.option("--metrics-host", default="127.0.0.1", help="Where metrics are shown.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Their port; 0: a free one.")
@click.option("--log-level", default="info")
@click.option("--log-requests", is_flag=True, help="A line a request, with its id.")
@click.version_option(package_name="lmpool")
@click.pass_context
def command(
    context: click.Context,
    /,
    redis_url: str | None,
    log_level: str,
    log_requests: bool,
    **options: Any,
) -> None:
    """Serve one replica of the pool's model. Stop with SIGTERM: unfinished work moves on."""
    if context.invoked_subcommand is not None:
        return
    if not redis_url:
        raise click.UsageError("give --redis-url, or set LMPOOL_REDIS_URL")
    log_to_stderr(log_level, requests=log_requests)
    wanted = WorkerConfig(redis_url=redis_url, cache=cache_root(os.environ), **options)
    with uncollected():
        from workers.daemon.build import build_equipment
        from workers.model.device import choose_device

    config = wanted.on(choose_device(wanted.device, wanted.rank))
    uvloop.run(serve(config, partial(build_equipment, config)))


@command.command("prepare")
@click.option("--model", default="demo", help="demo, a .gguf file or a hub id.")
def prepare_command(model: str) -> None:
    """Convert or fetch a model once, into LMPOOL_CACHE (default ~/.cache/lmpool)."""
    from rich.progress import Progress, TextColumn

    from workers.model.prepare import prepare

    with Progress(*Progress.get_default_columns(), TextColumn("{task.fields[stage]}")) as bars:
        task = bars.add_task(f"model {model}", stage="", total=None)

        def progress(stage: str, done: int, total: int) -> None:
            bars.update(task, stage=stage, completed=done, total=total)

        folder = prepare(model, cache=cache_root(os.environ), progress=progress)
        bars.update(task, stage="ready", completed=1, total=1)
    click.echo(folder.path or folder.name)


def main() -> None:
    """Run the command; a wrong setting ends with one line and exit code 2."""
    run_command(command, "lmpool-worker")


if __name__ == "__main__":
    main()
