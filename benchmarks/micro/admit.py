"""Whether the pool is right to bring a prefix along, and right to leave it, by the time it takes.

Two workers of a real pool, their link calibrated first. Rank 0 holds a prefix and decodes another
request; a request with that prefix goes to rank 1, which has nothing. That is done three ways in
turns, for prefixes of several lengths: as the pool weighs it, with the prefix brought along
whatever it costs, and with the prefix computed anew. No two prompts share a block. Beside what was
decided stand the numbers it was decided by, and the times to the first token that both ways took.

    python -m benchmarks.micro.admit                                        # gloo on processors
    python -m benchmarks.micro.admit --device cuda --block-tokens 256       # two GPUs
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import uvloop

from benchmarks.processes import PAIR_MODELS, pair_of_workers, running_pool, spawn
from lmpoold.client import PoolClient
from lmpoold.protocol.errors import RequestFailed
from lmpoold.protocol.keys import Keyspace
from lmpoold.store.connect import open_redis
from lmpoold.store.scripts import PoolStore

VOCABULARY = 250
MOST_BLOCKS = 3000
"""Of a rank: 87 GB of blocks of 256 tokens. What is older than the last trial may be forgotten."""
SIZES = (1, 2, 4, 8, 16, 32, 64)
BESIDE_TOKENS = 1000
"""Of the request that rank 0 decodes meanwhile; it is cancelled before that."""
LONE = "1000000"
"""`w_seq`: a rank that serves a request is not given another while one serves none."""
WAYS = {
    "weighed": {},
    "moved": {"fetch_ratio": "0"},
    "computed": {"fetch": "0"},
}
"""What each way sets, against the pool's own constants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One request to the rank without its prefix.

    Attributes:
        said: what the pool wrote down of its decision, empty for none.
        ttft_ms: from the call to the first token.
        cached_tokens: of its prompt, found on its rank.
    """

    blocks: int
    way: str
    said: str
    ttft_ms: float
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A length, what was decided there, and whether that was the faster way.

    Attributes:
        decided: `moved`, `computed` or `either`: not every time the same.
        moved_ms: median TTFT with the prefix brought along.
        computed_ms: median TTFT without.
        weighed_ms: median TTFT as it was decided.
        right: None where it was decided either way.
    """

    blocks: int
    decided: str
    saved_us: float
    cost_us: float
    moved_ms: float
    computed_ms: float
    weighed_ms: float
    right: bool | None


def judge(trials: Sequence[Trial]) -> list[Judged]:
    """Return a row for each length; all three ways were tried at each."""
    found = []
    for blocks in sorted({trial.blocks for trial in trials}):
        here = [trial for trial in trials if trial.blocks == blocks]
        ms = {
            way: statistics.median(trial.ttft_ms for trial in here if trial.way == way)
            for way in WAYS
        }
        weighed = [trial for trial in here if trial.way == "weighed"]
        decisions = Counter(decision(trial.said) for trial in weighed)
        decided = "either" if len(decisions) > 1 else next(iter(decisions))
        faster = "moved" if ms["moved"] < ms["computed"] else "computed"
        numbers = [_numbers(trial.said) for trial in weighed]
        found.append(
            Judged(
                blocks=blocks,
                decided=decided,
                saved_us=statistics.median(one.get("saved_us", 0.0) for one in numbers),
                cost_us=statistics.median(one.get("cost_us", 0.0) for one in numbers),
                moved_ms=ms["moved"],
                computed_ms=ms["computed"],
                weighed_ms=ms["weighed"],
                right=None if decided == "either" else decided == faster,
            )
        )
    return found


def decision(said: str) -> str:
    """Return which way a record of a decision went."""
    return "moved" if said.startswith(("opened", "joins")) else "computed"


def _numbers(said: str) -> dict[str, float]:
    pairs = (word.partition("=") for word in said.split() if "_us=" in word)
    return {name: float(value) for name, _, value in pairs}


class Stage:
    """A pool of two ranks on which trials are made."""

    def __init__(self, store: PoolStore, client: PoolClient, block_tokens: int, seed: int) -> None:
        self._store = store
        self._client = client
        self._block_tokens = block_tokens
        self._draw = random.Random(seed)

    def _prompt(self, tokens: int) -> list[int]:
        return [self._draw.randrange(1, VOCABULARY) for _ in range(tokens)]

    async def trial(self, blocks: int, way: str, own: dict[str, str]) -> Trial:
        """Ask once; `own` are the pool's constants that the ways change."""
        store, redis = self._store, self._store.redis
        asked = self._prompt(blocks * self._block_tokens + 1)
        await store.tune(own | WAYS[way])
        await store.drain(1, draining=True)
        await self._client.generate(tokens=asked, max_tokens=1, ignore_eos=True)
        beside = await self._client.submit(
            tokens=self._prompt(2), max_tokens=BESIDE_TOKENS, ignore_eos=True
        )
        reading = asyncio.create_task(self._drop_all(beside))
        while not (await store.ranks())[0].sequences:  # noqa: ASYNC110  (the server's, no event)
            await asyncio.sleep(0.002)
        await store.drain(1, draining=False)
        began_s = time.perf_counter()
        request = await self._client.submit(tokens=asked, max_tokens=1, ignore_eos=True)
        outputs = [output async for output in self._client.stream(request)]
        ttft_ms = (time.perf_counter() - began_s) * 1000
        usage = outputs[-1].usage
        assert usage is not None
        record: Any = await redis.hmget(store.keys.request(request), "fetch", "rank")
        await self._client.cancel(beside)
        await reading
        said, rank = ((value or b"").decode() for value in record)
        if rank != "1":
            raise SystemExit(f"a request went to rank {rank}, not to the one without its prefix")
        return Trial(
            blocks=blocks,
            way=way,
            said=said,
            ttft_ms=ttft_ms,
            cached_tokens=usage.cached_tokens,
        )

    async def _drop_all(self, request: str) -> None:
        with contextlib.suppress(RequestFailed):  # it is cancelled in the end
            async for _ in self._client.stream(request):
                pass


async def measure(
    device: str, transport: str, block_tokens: int, most: int, rounds: int, seed: int
) -> dict[str, Any]:
    """Run the pool, calibrate its link, and make the trials.

    Args:
        device: `cpu` or `cuda`; then rank k takes cuda:k.
        transport: as workers take it.
        block_tokens: tokens a block.
        most: blocks of the longest prefix.
        rounds: trials of each way at each length.
        seed: of the prompts.
    """
    sizes = [size for size in SIZES if size <= most]
    room = min(MOST_BLOCKS, (rounds + 2) * len(WAYS) * (sum(sizes) + 4 * len(sizes)))
    longest = max((most + 2) * block_tokens, 2 * BESIDE_TOKENS)
    model, workers, options = pair_of_workers(device, transport, room, block_tokens, longest)
    trials: list[Trial] = []
    async with running_pool(model, workers, daemon_options=options) as processes:
        argv = ("ctl", "calibrate", "--redis-url", processes.url, "--blocks", str(most))
        log = processes.folder / "calibrate.log"
        if await asyncio.to_thread(spawn((*argv, "--rounds", "10"), log).wait, 300):
            raise SystemExit(f"the link was not calibrated:\n{log.read_text()}")
        redis = open_redis(processes.url)
        store = PoolStore(redis, Keyspace())
        try:
            cfg = await store.cfg()
            own = {name: cfg[name] for way in WAYS.values() for name in way}
            await store.tune({"w_seq": LONE, "foreground": "0", "background": "0"})
            async with PoolClient(processes.url) as client:
                stage = Stage(store, client, block_tokens, seed)
                for blocks in sizes:  # every shape once, on both ranks
                    for way in ("computed", "moved"):
                        await stage.trial(blocks, way, own)
                total = rounds * len(sizes) * len(WAYS)
                for _ in range(rounds):
                    for blocks in sizes:
                        for way in WAYS:
                            trials.append(await stage.trial(blocks, way, own))
                            print(f"\r{len(trials)} of {total} trials", end="", file=sys.stderr)
        finally:
            print(file=sys.stderr)
            await redis.aclose()
    return {
        "device": device,
        "transport": transport,
        "block_tokens": block_tokens,
        "fetch_ratio": float(own["fetch_ratio"]),
        "rounds": rounds,
        "trials": [asdict(trial) for trial in trials],
    }


def show(found: dict[str, Any], rows: Sequence[Judged]) -> None:
    """Print a line for each length."""
    print(
        f"{found['device']}, blocks of {found['block_tokens']} tokens; moved where computing takes "
        f"{found['fetch_ratio']:g} times what moving does; TTFT in ms, medians of "
        f"{found['rounds']}"
    )
    print("blocks  said saved  said cost  decided    moved  computed  as decided  right")
    for row in rows:
        right = {None: "-", True: "yes", False: "NO"}[row.right]
        print(
            f"{row.blocks:6d} {row.saved_us / 1000:11.2f} {row.cost_us / 1000:10.2f}  "
            f"{row.decided:8s} {row.moved_ms:7.2f} {row.computed_ms:9.2f} {row.weighed_ms:11.2f}"
            f"  {right}"
        )


@click.command()
@click.option("--device", type=click.Choice(sorted(PAIR_MODELS)), default="cpu", show_default=True)
@click.option("--transport", default="auto", show_default=True)
@click.option("--block-tokens", default=16, show_default=True)
@click.option("--most", default=64, show_default=True, help="Blocks of the longest prefix.")
@click.option("--rounds", type=click.IntRange(1), default=10, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=None, help="JSON goes there.")
def main(out: Path | None, **options: Any) -> None:
    """Print, by a prefix's length, what the pool decided and which way was faster."""
    found = uvloop.run(measure(**options))
    rows = judge([Trial(**trial) for trial in found["trials"]])
    show(found, rows)
    if out is not None:
        found["rows"] = [asdict(row) for row in rows]
        out.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
