"""One run: an undisturbed pass, then faults and askings together, then the books."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lmpoold.protocol.keys import Keyspace
from lmpoold.protocol.messages import Output
from lmpoold.store.connect import open_redis
from lmpoold.store.scripts import PoolStore
from tests.chaos.asking import Template, plan_askings, plan_templates
from tests.chaos.breaking import Breaker, Done
from tests.chaos.checker import Expected, Verdict, judge
from tests.chaos.leftovers import judge_idle
from tests.chaos.load import Askers
from tests.chaos.picture import take_picture
from tests.chaos.processes import MODEL, Cast
from tests.chaos.schedule import STALL_MS, plan_faults

WORKERS = {
    "paper": ("tests.chaos.paper_worker",),
    "tiny": ("tests.chaos.tiny_worker", "--model", MODEL, "--threads", "1", "--blocks", "300"),
}
TIE = 1e-3
"""A greedy answer in which the two best tokens come this close (in log probability) is not asked
for again: which of them wins may hang on the batch it is computed in."""
UP_S = 300.0
"""How long workers may take to come up: the last one killed loads its model again, perhaps while
the machine has other things to do."""
SETTLE_S = 25.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run."""

    worker: str = "paper"
    seed: int = 1
    seconds: float = 60.0
    per_s: float = 8.0
    every_s: float = 3.0
    lmpoolds: int = 2
    workers: int = 3
    clients: int = 4
    patience_s: float = 90.0
    most_consumers: int = 8


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of it."""

    plan: Plan
    verdict: Verdict
    told: Verdict
    idle: list[str]
    done: list[Done]
    deaths: dict[str, list[int]]
    last_words: list[str]
    messages: Counter[str]
    broken: list[str]
    recovery_s: dict[str, list[float]] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return not (
            any(self.verdict.faults.values())
            or any(self.told.faults.values())
            or self.idle
            or self.broken
            or any(self.deaths.values())
        )


async def run(plan: Plan, say: Callable[[str], None], keep: Path | None = None) -> Outcome:
    """Run a plan on processes of its own; `keep` holds their logs afterwards."""
    with tempfile.TemporaryDirectory(prefix="lmpool-") as temporary:
        folder = keep or Path(temporary)
        cast = Cast(
            folder,
            lmpoolds=plan.lmpoolds,
            workers=plan.workers,
            worker_argv=WORKERS[plan.worker],
        )
        redis = open_redis(cast.server.url)
        try:
            await cast.start()
            await _until_up(PoolStore(redis, Keyspace()), plan.workers, UP_S)
            await PoolStore(redis, Keyspace()).tune({"engine_stall_ms": str(STALL_MS)})
            async with Askers(cast.server.url, cast.outside.url, plan.clients) as askers:
                return await _run(plan, say, cast, redis, askers)
        finally:
            await redis.aclose()
            await cast.end()


async def _run(plan, say, cast, redis, askers) -> Outcome:
    templates = plan_templates(plan.seed)
    expected = _expected(await askers.undisturbed(templates), templates)
    templates = [template for template in templates if template.number in expected]
    say(f"undisturbed answers of {len(templates)} requests are known")
    # Unknown to the workers: the first askings find no cache.
    askings = plan_askings(
        plan.seed, templates, seconds=plan.seconds, per_s=plan.per_s, clients=plan.clients
    )
    faults = plan_faults(
        plan.seed,
        seconds=plan.seconds,
        every_s=plan.every_s,
        lmpoolds=plan.lmpoolds,
        workers=plan.workers,
    )
    breaker = Breaker(cast, redis)
    began_s = time.monotonic()
    saying = asyncio.create_task(_progress(say, askers, breaker, began_s, len(askings)))
    asking = asyncio.create_task(askers.run(askings, began_s))
    try:
        await breaker.run(faults, began_s)
        await cast.heal()
        with contextlib.suppress(TimeoutError):  # the end will say so
            await _until_up(PoolStore(redis, Keyspace()), plan.workers, UP_S)
        await _until_answered(askers, asking, plan.patience_s)
        accepted = [one for one in askings if one.id in askers.asked_s]
    finally:
        saying.cancel()
        asking.cancel()
        await asyncio.gather(saying, asking, return_exceptions=True)
    say("everything is healed; looking for what is left")
    idle = await _settle(plan, cast, redis)
    told = [one for one in accepted if one.client == plan.clients - 1]
    return Outcome(
        plan=plan,
        verdict=judge(accepted, askers.outputs, expected, frozenset(askers.cancelled)),
        told=judge(told, askers.told, expected, frozenset(askers.cancelled)),
        idle=idle,
        done=breaker.done,
        deaths={name: child.deaths for name, child in cast.children.items()},
        last_words=[word for child in cast.children.values() for word in child.last_words],
        messages=breaker.messages + Counter({"forgotten": askers.forgotten}),
        broken=askers.broken,
        recovery_s=_recoveries(breaker.done, askers),
    )


def _expected(outputs: dict[int, list[Output]], templates: list[Template]) -> dict[int, Expected]:
    greedy = {template.number: not template.temperature for template in templates}
    return {
        number: Expected(
            tuple(row.token for row in rows if row.token is not None),
            "".join(row.text for row in rows),
        )
        for number, rows in outputs.items()
        if not (greedy[number] and any(_near_tie(row) for row in rows))
    }


def _near_tie(row: Output) -> bool:
    if not row.logprobs:
        return False
    (_, _, best), (_, _, second) = json.loads(row.logprobs)["top"][:2]
    return bool(best - second < TIE)


async def _progress(say, askers, breaker, began_s, total) -> None:
    while True:
        await asyncio.sleep(15)
        say(
            f"{time.monotonic() - began_s:5.0f} s: {len(askers.ended_s)} of {total} answered, "
            f"{len(askers.asked_s) - len(askers.ended_s)} under way, {len(breaker.done)} faults"
        )


async def _until_up(store: PoolStore, count: int, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while sum(row.state == "up" for row in await store.ranks()) < count:
            await asyncio.sleep(0.1)


async def _until_answered(askers: Askers, asking: asyncio.Task[None], patience_s: float) -> None:
    """Wait until all is asked and has ended, or nothing has ended for `patience_s`."""
    ended, since_s = -1, time.monotonic()
    while not (asking.done() and askers.asked_s.keys() <= askers.ended_s.keys()):
        await asyncio.sleep(0.25)
        if len(askers.ended_s) != ended:
            ended, since_s = len(askers.ended_s), time.monotonic()
        elif time.monotonic() > since_s + patience_s:
            return


async def _settle(plan: Plan, cast: Cast, redis) -> list[str]:
    """Return what is still wrong when the pool has had a while to come to rest."""
    try:
        await _until_up(PoolStore(redis, Keyspace()), plan.workers, UP_S)
    except TimeoutError:
        return [f"a worker was not up {UP_S:.0f} s after the last fault"]
    until_s = time.monotonic() + SETTLE_S
    wrong = ["nobody looked"]
    while wrong and time.monotonic() < until_s:
        await asyncio.sleep(0.5)
        try:
            picture = await take_picture(redis, range(plan.workers))
        except TimeoutError:
            wrong = ["a worker did not send its pages"]
            continue
        wrong = judge_idle(picture, ranks=plan.workers, most_consumers=plan.most_consumers)
    return wrong


def _recoveries(done: list[Done], askers: Askers) -> dict[str, list[float]]:
    """Return, by kind of fault, the seconds until a request asked after it was answered."""
    ends = sorted(
        (askers.asked_s[name], ended_s)
        for name, ended_s in askers.ended_s.items()
        if name in askers.asked_s
    )
    found: dict[str, list[float]] = {}
    for one in done:
        later = [ended_s for asked_s, ended_s in ends if asked_s >= one.began_s]
        if later:
            found.setdefault(one.fault.kind, []).append(min(later) - one.began_s)
    return found
