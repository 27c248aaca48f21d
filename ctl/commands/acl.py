"""`lmpoolctl acl`: users of the server, one a role, each with the rights it needs and no others."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

import click

from ctl.render import Column, sheet
from ctl.terminal import note, show
from lmpoold.protocol.errors import ConfigError
from lmpoold.protocol.keys import DEFAULT_POOL
from lmpoold.protocol.roles import ADMIN, ROLES, acl_file, user_name

LEAST_PASSWORD = 12


@click.command(short_help="Write the server's users: a role each, with the rights it needs.")
@click.option("--pool", envvar="LMPOOL_POOL", default=DEFAULT_POOL, show_default=True)
@click.option(
    "--passwords",
    type=click.Path(dir_okay=False, path_type=Path),
    help="JSON of role to password; made, for its owner only, if it is not there.",
)
@click.option("--roles", is_flag=True, help="List the roles instead.")
def acl(pool: str, passwords: Path | None, roles: bool) -> None:
    """Print an ACL file: the roles producer, worker, scheduler, viewer and gateway of one pool.

    The file holds digests; the passwords lie in --passwords. Nobody comes in without one: the
    default user is off, and lmpool-admin may do everything. Give the file to the server as
    `aclfile`, and each program its role's URL.

    \b
    Example:  lmpoolctl acl --passwords ./passwords.json > users.acl
              valkey-server --aclfile users.acl --appendonly yes
              lmpoold --redis-url redis://default-scheduler:<password>@db:6379/0
    """
    if roles:
        columns = (Column("role"), Column("user"), Column("does", flexible=True))
        show([sheet(columns, [(name, user_name(pool, name), ROLES[name].does) for name in ROLES])])
        return
    if passwords is None:
        raise ConfigError("give --passwords a file: they are read from it, or put into it")
    print(acl_file(pool, read_passwords(passwords)), end="")


def read_passwords(file: Path) -> dict[str, str]:
    """Read the passwords of every role; make the file if it is missing.

    Raises: ConfigError: the file cannot be read or written, or lacks a role.
    """
    wanted = (*ROLES, ADMIN)
    try:
        if not file.exists():
            made = {name: secrets.token_urlsafe(24) for name in wanted}
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                json.dump(made, out, indent=2)
                out.write("\n")
            note(f"made {file}, which holds the passwords: keep it")
            return made
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the passwords in {file} cannot be had: {error}") from None
    for name in wanted:
        word = found.get(name) if isinstance(found, dict) else None
        if not isinstance(word, str) or len(word) < LEAST_PASSWORD:
            raise ConfigError(
                f"{file} must be a JSON object with a password of at least {LEAST_PASSWORD} "
                f"characters for {name}"
            )
    return {name: found[name] for name in wanted}
