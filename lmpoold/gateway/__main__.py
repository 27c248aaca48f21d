"""lmpool-gateway: argv and environment to a GatewayConfig, then serve."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
import uvloop

from lmpoold.gateway.keyring import KeyRing, read_keys
from lmpoold.gateway.serve import GatewayConfig, serve
from lmpoold.protocol.errors import ConfigError
from lmpoold.shell.ending import run_command
from lmpoold.shell.observe import log_to_stderr

MIB = 1024 * 1024
KEYS_VARIABLE = "LMPOOL_API_KEYS"
"""No option of its own: a command line is no place for secrets."""


@click.command(context_settings={"auto_envvar_prefix": "LMPOOL", "show_default": True})
@click.option("--redis-url", required=True, envvar=["LMPOOL_REDIS_URL", "REDIS_URL"])
@click.option("--pool", default="default", help="Name of the pool.")
@click.option("--host", envvar="LMPOOL_HTTP_HOST", default="127.0.0.1", help="0.0.0.0: every one.")
@click.option("--port", envvar="LMPOOL_HTTP_PORT", default=8000, help="0 takes a free one.")
@click.option("--model-name", multiple=True, help="Another name for the pool's model; repeatable.")
@click.option("--api-key-file", type=click.Path(path_type=Path), help="A key a line.")
@click.option("--salt-per-key", is_flag=True, help="Callers of one key share cache, others not.")
@click.option("--body-limit-mib", type=click.IntRange(1, 1024), default=16, help="Of a request.")
@click.option("--drain-s", type=click.IntRange(0), default=30, help="For answers, after SIGTERM.")
@click.option("--log-level", default="info")
@click.version_option(package_name="lmpool")
def command(
    log_level: str,
    api_key_file: Path | None,
    salt_per_key: bool,
    model_name: tuple[str, ...],
    body_limit_mib: int,
    **options: Any,
) -> None:
    """Serve OpenAI's API over HTTP from one pool.

    API keys come from --api-key-file, or from LMPOOL_API_KEYS, parted by commas; without any,
    whoever reaches the port may ask. Start any number. Stop with SIGTERM.
    """
    log_to_stderr(log_level)
    keys = read_keys(os.environ.get(KEYS_VARIABLE, "").replace(",", "\n"))
    if api_key_file is not None:
        keys += _keys_in(api_key_file)
    if salt_per_key and not keys:
        raise ConfigError("--salt-per-key needs API keys: give --api-key-file")
    config = GatewayConfig(
        keys=KeyRing(keys, salted=salt_per_key),
        names=model_name,
        body_limit_bytes=body_limit_mib * MIB,
        **options,
    )
    uvloop.run(serve(config))


def _keys_in(file: Path) -> list[str]:
    """Read a key file; one that holds none would leave the gateway open without a word."""
    try:
        keys = read_keys(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the API key file {file} cannot be read: {error}") from None
    if not keys:
        raise ConfigError(f"the API key file {file} holds no key; leave the option out, or add one")
    return keys


def main() -> None:
    """Run the command; a wrong setting ends with one line and exit code 2."""
    run_command(command, "lmpool-gateway")


if __name__ == "__main__":
    main()
