"""How a command that serves ends when a setting is wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from lmpoold.protocol.errors import ConfigError


def run_command(command: Callable[[], object], name: str) -> None:
    """Run a command line; a wrong setting ends it with one line, under `name`, and exit code 2."""
    try:
        command()
    except* ConfigError as group:
        click.echo(f"{name}: {group.exceptions[0]}", err=True)
        sys.exit(2)
