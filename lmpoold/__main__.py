"""lmpoold: argv and environment to a DaemonConfig, then serve."""

from __future__ import annotations

import os
from typing import Any

import click
import uvloop

from lmpoold.daemon.serve import DaemonConfig, serve
from lmpoold.protocol.config import PoolConstants
from lmpoold.shell.ending import run_command
from lmpoold.shell.observe import log_to_stderr
from lmpoold.text.folder import cache_root


@click.command(context_settings={"auto_envvar_prefix": "LMPOOL", "show_default": True})
@click.option("--redis-url", required=True, envvar=["LMPOOL_REDIS_URL", "REDIS_URL"])
@click.option("--pool", default="default", help="Name of the pool: several fit one server.")
@click.option("--model", default="demo", help="demo, random:<shape>, a folder, .gguf or hub id.")
@click.option("--block-size", default=16, help="Tokens a KV block.")
@click.option("--max-model-len", default=0, help="Context in tokens; 0 takes the model's own.")
@click.option("--dtype", default="auto", help="Of the K/V: auto, float32, bfloat16, float16.")
@click.option("--max-parked", default=PoolConstants().max_parked, help="Requests that may wait.")
@click.option("--max-ingress", default=PoolConstants().max_ingress, help="Ingress backlog.")
@click.option("--metrics-host", default="127.0.0.1", help="Where metrics are shown.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Their port; 0: a free one.")
@click.option("--log-level", default="info")
@click.option("--log-requests", is_flag=True, help="A line a request, with its id.")
@click.version_option(package_name="lmpool")
def command(
    log_level: str, log_requests: bool, max_parked: int, max_ingress: int, **options: Any
) -> None:
    """Route requests of one pool: consume its ingress stream, park, retry, reap.

    Start any number; each needs the same --model and --block-size. Stop with SIGTERM.
    """
    log_to_stderr(log_level, requests=log_requests)
    constants = PoolConstants(max_parked=max_parked, max_ingress=max_ingress)
    config = DaemonConfig(cache=cache_root(os.environ), constants=constants, **options)
    uvloop.run(serve(config))


def main() -> None:
    """Run the command; a wrong setting ends with one line and exit code 2."""
    run_command(command, "lmpoold")


if __name__ == "__main__":
    main()
