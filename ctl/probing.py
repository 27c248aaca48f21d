"""Measures links by plans that move scratch blocks, through the pool's own control plane.

A probe is a plan like any other, begun by one call that gives way to whatever the ranks do: so a
pool that serves goes on serving, and a probe whose worker, lmpoold or server dies ends as every
plan does. Nothing is held here that has to be given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field

from lmpoold.client import PoolClient
from lmpoold.protocol.calibration import Sample
from lmpoold.protocol.errors import LMPoolError, RequestFailed
from lmpoold.protocol.profile import Pair, write_pair
from lmpoold.protocol.transfer import Phase
from lmpoold.store.plans import PlanStore

WARM_UP = 2
"""Probes before the first that counts: they make the pair."""
TRIES = 3
AGAIN_S = 0.02
TOLD_S = 1.0
"""How long what the last probe held may still be missing in a rank's count of free blocks."""
BACK_S = 5.0
"""How long a rank may be away: a worker that was late with a heartbeat, or joins again."""
SETTLED_S = 60.0
READ_MS = 500
LOAD_A_RANK = 2
LEAST_PRIORITY = -1000
BESIDE = (8, 32, 128)
"""Sizes, in blocks, that are measured beside computing as well."""

Progress = Callable[[str, str, int, int], None]
"""Gets a pair, what is measured of it, and how much of how much is done."""


class NotMeasured(LMPoolError):
    """A link cannot be measured now; the message says what to do."""


@dataclass(slots=True)
class Measured:
    """What came of one directed pair.

    Attributes:
        samples: of every size measured.
        most_blocks: the largest of them.
        why: why there are none, or none beside computing; "" where all went well.
    """

    pair: Pair
    samples: list[Sample] = field(default_factory=list)
    most_blocks: int = 0
    why: str = ""


class NoRoom(Exception):
    """A rank has not twice as many free blocks."""


class Prober:
    """Measures one pair after the other."""

    def __init__(
        self,
        plans: PlanStore,
        *,
        most_blocks: int,
        rounds: int,
        patience_s: float,
        progress: Progress,
    ) -> None:
        """Measure sizes 1, 2, 4, ... up to `most_blocks`.

        Args:
            plans: of the pool.
            most_blocks: > 0.
            rounds: probes of each size that count.
            patience_s: how long a pair may be busy otherwise before it is given up.
            progress: told of every probe.
        """
        self._plans = plans
        self._rounds = rounds
        self._patience_s = patience_s
        self._progress = progress
        self._last = ""
        self._sizes = [1 << power for power in range(most_blocks.bit_length())]

    async def measure(self, pair: Pair) -> Measured:
        """Measure a pair while neither of its ranks computes."""
        found = Measured(pair)
        total = WARM_UP + len(self._sizes) * (self._rounds + 1)
        done = 0
        try:
            for _ in range(WARM_UP):
                await self.probe(pair, 1, serving=False)
                done += 1
            for blocks in self._sizes:
                part = []
                for turn in range(self._rounds + 1):
                    self._progress(write_pair(pair), f"{blocks} blocks at a time", done, total)
                    sample = await self.probe(pair, blocks, serving=False)
                    done += 1
                    if turn:  # the first of a size allocates and compiles
                        part.append(sample)
                found.samples += part
                found.most_blocks = blocks
        except NoRoom:
            if not found.samples:
                found.why = "no rank of it has two free blocks: give its workers more (--blocks)"
        except NotMeasured as error:
            found.samples.clear()  # half a curve is none
            found.why = str(error)
        self._progress(write_pair(pair), found.why or "measured", total, total)
        return found

    async def measure_beside(self, found: Measured) -> None:
        """Measure some sizes again, while both ranks compute; adds to what was found."""
        sizes = [blocks for blocks in BESIDE if blocks <= found.most_blocks] or [found.most_blocks]
        name, total = write_pair(found.pair), len(sizes) * self._rounds
        try:
            for at in range(total):
                blocks = sizes[at // self._rounds]
                self._progress(name, f"{blocks} blocks at a time, beside computing", at, total)
                found.samples.append(await self.probe(found.pair, blocks, serving=True))
        except (NoRoom, NotMeasured) as error:
            found.why = f"not measured beside computing: {error or 'too few free blocks'}"
        self._progress(name, "measured", total, total)

    async def probe(self, pair: Pair, blocks: int, *, serving: bool) -> Sample:
        """Move scratch once.

        Raises:
            NoRoom: a rank has too few free blocks.
            NotMeasured: the pair was busy for too long, or fails.
        """
        if not self._last:
            self._last = await self._plans.last_probed()
        reason = ""
        for _ in range(TRIES):
            row = await self._settled(await self._begin(pair, blocks, serving=serving))
            if row["outcome"] == Phase.FINALIZE:
                travel_us, total_us = float(row["dst_us"]), float(row["publish_us"])
                return Sample(pair, blocks, travel_us, total_us, serving)
            reason = row["reason"]
        if reason == "no_room":
            raise NoRoom
        raise NotMeasured(
            f"{TRIES} transfers in a row were aborted ({reason}): the log of the workers of ranks "
            f"{pair[0]} and {pair[1]} says more"
        )

    async def _begin(self, pair: Pair, blocks: int, *, serving: bool) -> str:
        source, destination = pair
        plan, began_s = uuid.uuid4().hex, time.monotonic()
        while True:
            word = await self._plans.probe(plan, source, destination, blocks, serving=serving)
            if isinstance(word, Phase):
                return plan
            waited_s = time.monotonic() - began_s
            if word == "down" and waited_s > BACK_S:
                raise NotMeasured("a rank of it is down: see lmpoolctl ranks")
            if word == "no_room" and waited_s > TOLD_S:
                raise NoRoom
            if waited_s > max(self._patience_s, BACK_S if word == "down" else 0.0):
                raise NotMeasured(_busy(word, self._patience_s))
            await asyncio.sleep(AGAIN_S)

    async def _settled(self, plan: str) -> dict[str, str]:
        """Wait for a plan's end; returns its figures."""
        until_s = time.monotonic() + SETTLED_S
        while time.monotonic() < until_s:
            for entry, row in await self._plans.probed(self._last, READ_MS):
                self._last = entry
                if row["id"] == plan:
                    return row
        raise LMPoolError(
            f"plan {plan} does not end: no lmpoold may be running that ends what is late; "
            "see lmpoolctl plans"
        )


def _busy(word: str, waited_s: float) -> str:
    match word:
        case "serving":
            return (
                f"its ranks served requests for {waited_s:g} s: try again when they are quiet, "
                "wait longer (--patience), or drain them (lmpoolctl drain)"
            )
        case "idle":
            return f"its ranks did not both compute for {waited_s:g} s"
    return f"other transfers ran on its ranks for {waited_s:g} s: try again, or see lmpoolctl plans"


@contextlib.asynccontextmanager
async def computing(client: PoolClient, ranks: Iterable[int]) -> AsyncIterator[None]:
    """Keep ranks computing by requests of the least priority, which are cancelled at the end."""

    async def keep(rank: int) -> None:
        while True:
            tag = uuid.uuid4().hex
            with contextlib.suppress(RequestFailed):
                await client.generate(
                    prompt=f"calibration {tag}",
                    salt=tag,  # what they leave in the cache is of no use to anybody
                    origin=rank,
                    priority=LEAST_PRIORITY,
                    ignore_eos=True,
                )
            await asyncio.sleep(AGAIN_S)

    tasks = [
        asyncio.create_task(keep(rank), name=f"load of rank {rank}")
        for rank in ranks
        for _ in range(LOAD_A_RANK)
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
