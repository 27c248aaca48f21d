"""Sends requests and notes what becomes of them: a closed loop, or one that waits for nobody.

In a closed loop a slow pool is asked less, which hides its queue; in the open one requests come
when they come.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.paper.metrics import Sample
from benchmarks.paper.workloads import Phase, Prompt
from lmpoold.client import PoolClient
from lmpoold.protocol.hashing import token_bytes

PATIENCE_S = 600.0


@dataclass(slots=True, kw_only=True)
class Driver:
    """Asks a pool for one trial.

    Attributes:
        salt: parts this trial's cache from that of every other one.
        turn: how many ranks take requests in turn; 0 leaves the choice to the pool.
    """

    client: PoolClient
    salt: str
    max_tokens: int
    turn: int = 0
    samples: list[Sample] = field(default_factory=list)
    began_s: float = field(default_factory=time.perf_counter)

    async def ask(self, phase: str, prompt: Prompt) -> None:
        """Send one request and read its answer to the end."""
        number = len(self.samples)
        sample = Sample(id=f"{self.salt}-{number}", phase=phase, group=prompt.group)
        self.samples.append(sample)
        options: dict[str, str | int | bool] = {
            "max_tokens": prompt.max_tokens or self.max_tokens,
            "ignore_eos": True,
            "salt": self.salt,
        }
        if self.turn:
            options["origin"] = number % self.turn
        sample.sent_s = time.perf_counter() - self.began_s
        await self.client.submit(prompt=prompt.text, request_id=sample.id, **options)
        tokens: list[int] = []
        async for output in self.client.stream(sample.id):
            if output.token is not None:
                now_s = time.perf_counter() - self.began_s
                sample.first_s = sample.first_s or now_s
                sample.last_s = now_s
                tokens.append(output.token)
            if output.usage is not None:
                sample.prompt_tokens = output.usage.prompt_tokens
                sample.cached_tokens = output.usage.cached_tokens
        sample.tokens = len(tokens)
        sample.digest = hashlib.blake2s(token_bytes(tokens), digest_size=4).hexdigest()

    async def closed(self, phase: Phase, window: int) -> None:
        """Keep `window` requests of a phase in flight until all are answered."""
        left = iter(phase.prompts)

        async def one_seat() -> None:
            for prompt in left:
                await self.ask(phase.name, prompt)

        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as seats:
            for number in range(min(window, len(phase.prompts))):
                seats.create_task(one_seat(), name=f"seat {number}")

    async def opened(self, phase: Phase, arrivals_s: Sequence[float]) -> None:
        """Send each request of a phase at its time, in seconds after now."""
        begin_s = time.perf_counter()
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as asked:
            for prompt, at_s in zip(phase.prompts, arrivals_s, strict=True):
                await asyncio.sleep(max(0.0, begin_s + at_s - time.perf_counter()))
                asked.create_task(self.ask(phase.name, prompt), name=f"ask at {at_s:.3f}")


def poisson(count: int, rate: float, seed: int) -> list[float]:
    """Return `count` arrival times of a Poisson process of `rate` a second, drawn by `seed`."""
    draw, at_s, times = random.Random(f"arrivals {seed}"), 0.0, []
    for _ in range(count):
        at_s += draw.expovariate(rate)
        times.append(at_s)
    return times
