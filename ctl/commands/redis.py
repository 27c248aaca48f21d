"""`lmpoolctl redis`: any command, passed through."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click
from redis.exceptions import ResponseError

from ctl.replies import pretty, raw
from ctl.target import Target, open_store, target_options
from ctl.terminal import note, run
from lmpoold.store.connect import open_redis

STREAMING = frozenset({"MONITOR", "PSUBSCRIBE", "SSUBSCRIBE", "SUBSCRIBE"})
"""Commands that go on replying until Ctrl-C."""


@click.command(
    short_help="Pass a command to the server.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@target_options
@click.argument(
    "words", nargs=-1, required=True, metavar="COMMAND [ARG]...", type=click.UNPROCESSED
)
def redis(target: Target, words: tuple[str, ...]) -> int:
    """Pass a command to the pool's server and print the reply, as redis-cli does.

    On a terminal replies are quoted and numbered, in a pipe they are plain text.

    \b
    Example:  lmpoolctl redis HGETALL 'lmpool:{default}:load'
              lmpoolctl redis FCALL_RO ranks 1 'lmpool:{default}:load'
    """
    if any("\0" in word for word in words):
        raise click.UsageError("a command line cannot carry NUL bytes")
    return run(_pass(target, words))


async def _pass(target: Target, words: tuple[str, ...]) -> int:
    form = pretty if sys.stdout.isatty() else raw
    async with open_store(target):  # says what to do if the server does not answer
        client = open_redis(target.url(), pool=target.pool, unbounded=True)
        # A connection of our own: redis-py reshapes replies to known commands, and hides pushes.
        connection = await client.connection_pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            args: list[Any] = [word.encode("utf-8", "surrogateescape") for word in words]
            await connection.send_command(*args)
            while True:
                try:
                    reply = await connection.read_response()
                except ResponseError as error:
                    note(f"(error) {error}")
                    return 1
                print(form(reply), flush=True)
                if words[0].upper() not in STREAMING:
                    return 0
        finally:
            await asyncio.shield(connection.disconnect())
            await client.aclose()
