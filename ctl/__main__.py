"""lmpoolctl: starts a pool on this machine, asks it things, and shows what it does."""

from __future__ import annotations

import io
import os
import sys
from importlib.metadata import PackageNotFoundError, version

import click

from ctl.commands.acl import acl
from ctl.commands.calibrate import calibrate
from ctl.commands.cancel import cancel
from ctl.commands.config import config
from ctl.commands.demo import demo
from ctl.commands.drain import drain
from ctl.commands.explain import explain
from ctl.commands.pages import pages
from ctl.commands.plans import plans
from ctl.commands.pulse import pulse
from ctl.commands.ranks import ranks
from ctl.commands.redis import redis
from ctl.commands.status import status
from ctl.commands.submit import submit
from ctl.commands.top import top
from ctl.commands.topology import topology
from ctl.commands.up import up
from ctl.target import Unreachable
from lmpoold.protocol.errors import ConfigError, LMPoolError

EXIT_FAILED = 1
EXIT_CONFIG = 2
EXIT_UNREACHABLE = 3
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def _version() -> str:
    try:
        return version("lmpool")
    except PackageNotFoundError:
        return "unknown (not installed)"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_version(), prog_name="lmpoolctl")
def lmpoolctl() -> None:
    """Start an LMPool on this machine, send it requests, and look into it.

    \b
    Try it:  lmpoolctl demo
    Use it:  lmpoolctl up --model demo --workers 2
             lmpoolctl submit "Why is the sky blue?"

    Exit codes: 0 well, 1 the pool refused or failed, 2 a setting or option is wrong, 3 no server
    answers, 130 interrupted.
    """


COMMANDS = (
    up,
    demo,
    submit,
    status,
    top,
    ranks,
    pages,
    plans,
    explain,
    cancel,
    drain,
    config,
    topology,
    acl,
    calibrate,
    pulse,
    redis,
)
for command in COMMANDS:
    lmpoolctl.add_command(command)


def exit_code(error: LMPoolError) -> int:
    """Return what lmpoolctl exits with for an error."""
    match error:
        case Unreachable():
            return EXIT_UNREACHABLE
        case ConfigError():
            return EXIT_CONFIG
    return EXIT_FAILED


def main() -> None:
    """Run the command line and exit."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # an answer may hold any character
    try:
        result = lmpoolctl.main(standalone_mode=False, prog_name="lmpoolctl")
        sys.stdout.flush()
        code = result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except LMPoolError as error:
        print(f"lmpoolctl: {error}", file=sys.stderr)
        code = exit_code(error)
    except (KeyboardInterrupt, click.Abort):
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader has left (`| head`): nothing may be flushed to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_BROKEN_PIPE
    sys.exit(code)


if __name__ == "__main__":
    main()
