"""`lmpoolctl config`: the pool's constants, read and changed while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import click

from ctl.render import Column, sheet, to_json
from ctl.target import Target, json_option, open_store, target_options
from ctl.terminal import run, show
from lmpoold.protocol.config import PoolConstants, check_names, read_constants
from lmpoold.protocol.errors import ConfigError

NAMES = tuple(field.name for field in fields(PoolConstants))


@click.group(short_help="Show or change the pool's constants.")
def config() -> None:
    """Show or change the constants of routing and of every limit, while the pool runs.

    \b
    Example:  lmpoolctl config get
              lmpoolctl config set w_reclaim=0.25 max_parked=1000
    """


@config.command(short_help="Show constants.")
@target_options
@click.argument("names", nargs=-1, metavar="[NAME]...")
@json_option
def get(target: Target, names: Sequence[str], as_json: bool) -> None:
    """Show some constants, or all of them; `lmpoold/store/README.md` says what each means.

    \b
    Example:  lmpoolctl config get w_reclaim
    """
    check_names(names)

    async def ask() -> dict[str, str]:
        async with open_store(target) as store:
            return await store.cfg()

    cfg = run(ask())
    found = {name: cfg[name] for name in names or NAMES if name in cfg}
    if not found:
        raise ConfigError("no lmpoold has described the pool yet; start lmpoold")
    if as_json:
        print(to_json(found))
    else:
        show([sheet((Column("constant"), Column("value", number=True)), found.items())])


@config.command("set", short_help="Change constants.")
@target_options
@click.argument("changes", nargs=-1, required=True, metavar="NAME=VALUE... | NAME VALUE")
def set_(target: Target, changes: Sequence[str]) -> None:
    """Change constants, all or none; the next request is routed by them.

    \b
    Example:  lmpoolctl config set pairs=0-1,2-3 bypass_slack=0
    """
    if len(changes) == 2 and "=" not in changes[0]:
        changes = ["=".join(changes)]
    given = {}
    for change in changes:
        name, mark, value = change.partition("=")
        if not mark:
            raise click.UsageError(f"write {change!r} as NAME=VALUE")
        given[name] = value
    constants = read_constants(given)

    async def ask() -> None:
        async with open_store(target) as store:
            await store.tune(constants)

    run(ask())
    for name, value in constants.items():
        print(f"{name}={value}")
