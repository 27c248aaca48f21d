"""`lmpoolctl calibrate`: measure what moving blocks takes on each link, and keep it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence

import click

from ctl.measured import measured_json, measured_sheets, profile_sheet
from ctl.probing import Measured, Prober, computing
from ctl.progress import Progressing
from ctl.render import to_json
from ctl.target import Target, json_option, open_store, target_options
from ctl.terminal import note, run, show
from lmpoold.client import PoolClient
from lmpoold.protocol.calibration import fit, merged
from lmpoold.protocol.errors import ConfigError, DecodeError, LMPoolError
from lmpoold.protocol.profile import Pair, Profile, write_pair
from lmpoold.store.plans import PlanStore

LINKS_S = 3.0
"""How long the leader may take to write the links of workers that have just joined."""


@click.command(short_help="Measure what moving K/V takes on each link.")
@target_options
@click.option(
    "--pair",
    "named",
    multiple=True,
    metavar="RANK-RANK",
    help="Measure these two ranks, both ways; again for more. Default: every link.",
)
@click.option(
    "--blocks",
    type=click.IntRange(1, 4096),
    default=128,
    show_default=True,
    help="Largest transfer; sizes are the powers of two up to it.",
)
@click.option(
    "--rounds",
    type=click.IntRange(2, 1000),
    default=20,
    show_default=True,
    help="Transfers of each size.",
)
@click.option(
    "--patience",
    "patience_s",
    type=click.FloatRange(0.0, 86400.0),
    default=30.0,
    show_default=True,
    help="Seconds to wait for two ranks to be idle.",
)
@click.option(
    "--loaded",
    is_flag=True,
    help="Also measure beside computing: keeps the ranks busy by requests of its own.",
)
@click.option("--show", "only_show", is_flag=True, help="Measure nothing, show what is kept.")
@json_option
def calibrate(
    target: Target,
    named: Sequence[str],
    blocks: int,
    rounds: int,
    patience_s: float,
    loaded: bool,
    only_show: bool,
    as_json: bool,
) -> None:
    """Move scratch blocks between the pool's workers, and keep what it took for their cost model.

    The pool may go on serving: only free blocks are used, at most half of them, and a link is left
    alone while its ranks compute. Links that are not measured keep what is known of them. Exits
    with 1 if one of them could not be measured.

    \b
    Example:  lmpoolctl calibrate
              lmpoolctl calibrate --pair 0-1 --rounds 50 --json
              lmpoolctl calibrate --show
    """
    if only_show:
        shown = run(_kept(target))
        print(shown.encode()) if as_json else show([profile_sheet(shown)])
        return
    pairs = [_read_pair(text) for text in named]
    with Progressing(sys.stderr) as progressing:

        def progress(name: str, stage: str, done: int, total: int) -> None:
            progressing.update({name: (stage, done, total)})

        async def ask() -> tuple[list[Measured], Profile]:
            async with open_store(target) as store:
                plans = PlanStore(store)
                prober = Prober(
                    plans,
                    most_blocks=blocks,
                    rounds=rounds,
                    patience_s=patience_s,
                    progress=progress,
                )
                links = await _links(plans, pairs)
                block_bytes = int((await store.cfg())["kv_block_bytes"])
                found = [await prober.measure(pair) for pair in links]
                if loaded:
                    await _measure_loaded(target, prober, found)
                samples = [sample for one in found for sample in one.samples]
                profile = fit(samples, block_bytes)
                if profile.curves:
                    await plans.keep_profile(merged(profile, await _earlier(plans)))
                return found, profile

        found, profile = run(ask())
    if as_json:
        print(to_json(measured_json(found, profile, blocks)))
    else:
        show(measured_sheets(found, profile, blocks))
    failed = [one for one in found if one.why]
    if failed:
        names = ", ".join(write_pair(one.pair) for one in failed)
        raise LMPoolError(f"not measured as asked: {names}; {failed[0].why}")


def _read_pair(text: str) -> Pair:
    low, mark, high = text.partition("-")
    if not (mark and low.isdecimal() and high.isdecimal() and int(low) != int(high)):
        raise click.UsageError(f"write {text!r} as two ranks, like 0-1")
    return int(low), int(high)


async def _links(plans: PlanStore, wanted: Sequence[Pair]) -> list[Pair]:
    """Return the directed pairs to measure.

    Raises:
        ConfigError: no lmpoold has described the pool.
        LMPoolError: there are none, or one that is wanted has no link.
    """
    if "kv_block_bytes" not in await plans.store.cfg():
        raise ConfigError("no lmpoold has described the pool yet; start lmpoold")
    both = {pair for low, high in wanted for pair in ((low, high), (high, low))}
    until_s = time.monotonic() + LINKS_S
    while True:
        links = await plans.linked()
        if links and both <= set(links):
            return sorted(both) or links
        if time.monotonic() > until_s:
            break
        await asyncio.sleep(0.1)
    refused = await plans.not_linked()
    if not links:
        said = "".join(f"; {write_pair(pair)}: {reason}" for pair, reason in refused.items())
        raise LMPoolError(
            "no two ranks of this pool can move blocks between them: it takes two workers on one "
            f"host with the same --transport{said}"
        )
    low, high = min(both - set(links))
    known = ", ".join(write_pair(pair) for pair in links)
    reason = refused.get((min(low, high), max(low, high)), f"there are {known}")
    raise LMPoolError(f"ranks {low} and {high} have no link: {reason}")


async def _measure_loaded(target: Target, prober: Prober, found: Sequence[Measured]) -> None:
    ranks = sorted({rank for one in found if one.samples for rank in one.pair})
    async with PoolClient(target.url(), target.pool) as client, computing(client, ranks):
        for one in found:
            if one.samples:
                await prober.measure_beside(one)


async def _earlier(plans: PlanStore) -> Profile | None:
    try:
        return await plans.profile()
    except DecodeError as error:
        note(f"what was kept before is dropped: {error}")
        return None


async def _kept(target: Target) -> Profile:
    """Return the profile that the pool keeps and uses; LMPoolError if there is none."""
    async with open_store(target) as store:
        profile = await PlanStore(store).profile()
        held = int((await store.cfg()).get("kv_block_bytes", "0"))
    if profile is None:
        raise LMPoolError("nothing was measured yet: run lmpoolctl calibrate")
    if profile.block_bytes != held:
        raise LMPoolError(
            f"what is kept was measured with blocks of {profile.block_bytes} bytes, the pool's "
            f"have {held}: it is not used; run lmpoolctl calibrate"
        )
    return profile
