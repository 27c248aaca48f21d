"""`lmpoolctl cancel`: end a request."""

from __future__ import annotations

import click

from ctl.target import Target, open_store, target_options
from ctl.terminal import note, run
from lmpoold.protocol.errors import LMPoolError

STOPPABLE = ("queued", "parked", "routed", "running")


@click.command(short_help="End a request, wherever it is.")
@target_options
@click.argument("request")
def cancel(target: Target, request: str) -> None:
    """End a request, whether it waits or runs; its asker gets an error entry, `cancelled`.

    \b
    Example:  lmpoolctl cancel sky
    """

    async def ask() -> str:
        async with open_store(target) as store:
            return await store.cancel(request)

    state = run(ask())
    if state == "UNKNOWN":
        raise LMPoolError(f"no request {request} is known; should it come within 60 s, it is ended")
    if state in STOPPABLE:
        print(f"{request}: cancelled ({state})")
    else:
        note(f"{request}: nothing to cancel, it is {state}")
