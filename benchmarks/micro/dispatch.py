"""From a plan's dispatch to its publish, through the real control plane.

A server, an lmpoold and two workers run as processes of their own; plans copy 8 blocks each from
rank 0 to rank 1, one after the other. The server's clock tells the phases: `prepare` from the call
that opens the plan to the word of the second side, `execute` from there to the call that publishes,
`settle` until nobody holds anything. What the destination's transport says of its bytes is
subtracted: the rest is what the control plane takes. Beside it stands a bare call of the same
server, of which a plan needs some.

    python -m benchmarks.micro.dispatch                         # gloo on this machine's processors
    python -m benchmarks.micro.dispatch --device cuda --block-tokens 256    # two GPUs
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from pathlib import Path
from typing import Any

import click
import uvloop

from benchmarks.processes import PAIR_MODELS, pair_of_workers, running_pool
from lmpoold.client import PoolClient
from lmpoold.protocol.calibration import percentile
from lmpoold.protocol.hashing import PrefixHash, chain_hashes
from lmpoold.protocol.keys import Keyspace
from lmpoold.protocol.transfer import Mode, Phase, Why
from lmpoold.store.connect import open_redis
from lmpoold.store.lane import Lane
from lmpoold.store.plans import PlanStore
from lmpoold.store.scripts import PoolStore

VOCABULARY = 250
SPARE_BLOCKS = 64
ASKED_AT_ONCE = 8
WARM_UP = 3
PAUSE_S = 0.005
PLAN_MS = 30_000


def spread_ms(values_us: list[float]) -> dict[str, float]:
    """Return median and P95 in ms."""
    return {name: percentile(values_us, share) / 1000 for name, share in SHARES.items()}


SHARES = {"p50": 0.5, "p95": 0.95}


def prompts(count: int, tokens: int) -> list[list[int]]:
    """Return prompts of which no two share a block."""
    return [
        [
            (number if at == 0 else 31 * number + 7 * at + at * at) % VOCABULARY
            for at in range(tokens)
        ]
        for number in range(count)
    ]


async def measure(
    device: str, transport: str, block_tokens: int, blocks: int, plans: int
) -> dict[str, Any]:
    """Run the pool and the plans.

    Args:
        device: `cpu` or `cuda`; then rank k takes cuda:k.
        transport: as workers take it.
        block_tokens: tokens a block.
        blocks: that each plan copies.
        plans: how many count; a few more before them warm everything up.
    Returns: percentiles in ms of the whole, of each phase, of the travel and of what is left.
    """
    room = (plans + WARM_UP) * (blocks + 1) + SPARE_BLOCKS
    model, workers, options = pair_of_workers(
        device, transport, room, block_tokens, (blocks + 2) * block_tokens
    )
    async with running_pool(model, workers, daemon_options=options) as processes:
        redis = open_redis(processes.url, timeout_s=2 * PLAN_MS / 1000)
        lane = Lane(redis)
        store = PoolStore(redis, Keyspace(), lane)
        known = PlanStore(store)
        try:
            await store.tune({"fetch": "0", "foreground": "0", "background": "0"})
            asked = prompts(plans + WARM_UP, blocks * block_tokens + 1)
            chains = await _fill(processes.url, store, asked, block_tokens)
            floor_us = [await _bare_call(lane, store) for _ in range(200)]
            for chain in chains[:WARM_UP]:
                await _copy(known, chain)
            before_s = processes.cpu_s()
            rows = [await _copy(known, chain) for chain in chains[WARM_UP:]]
            spent_s = processes.cpu_s()
            way = await known.rank_facts(0)
        finally:
            await lane.close()
            await redis.aclose()
    total = [float(row["publish_us"]) for row in rows]
    travel = [float(row["dst_us"]) for row in rows]
    prepare = [float(row["prepare_us"]) for row in rows]
    settle = [float(row["settle_us"]) - float(row["publish_us"]) for row in rows]
    execute = [whole - ready for whole, ready in zip(total, prepare, strict=True)]
    control = [whole - wire for whole, wire in zip(total, travel, strict=True)]
    return {
        "device": device,
        "transport": way.get("way", transport),
        "block_tokens": block_tokens,
        "blocks": blocks,
        "plans": len(rows),
        "dispatch_to_publish_ms": spread_ms(total),
        "prepare_ms": spread_ms(prepare),
        "execute_ms": spread_ms(execute),
        "travel_ms": spread_ms(travel),
        "control_ms": spread_ms(control),
        "publish_to_settled_ms": spread_ms(settle),
        "bare_call_ms": spread_ms(floor_us),
        "cpu_ms_a_plan": {
            name: (spent_s[name] - before_s[name]) / len(rows) * 1000 for name in spent_s
        },
    }


async def _fill(
    url: str, store: PoolStore, asked: list[list[int]], block_tokens: int
) -> list[tuple[PrefixHash, ...]]:
    """Have rank 0 compute every prompt; returns the names of their blocks."""
    await store.drain(1, draining=True)
    gate = asyncio.Semaphore(ASKED_AT_ONCE)

    async def ask(client: PoolClient, tokens: list[int]) -> None:
        async with gate:
            await client.generate(tokens=tokens, max_tokens=1, ignore_eos=True)

    async with PoolClient(url) as client, asyncio.TaskGroup() as group:
        for tokens in asked:
            group.create_task(ask(client, tokens))
    await store.drain(1, draining=False)
    domain = PrefixHash((await store.cfg())["domain"])
    return [chain_hashes(tokens, block_tokens, domain) for tokens in asked]


async def _bare_call(lane: Lane, store: PoolStore) -> float:
    """Return the microseconds of a call that only reads a key."""
    begin_s = time.perf_counter()
    await lane.execute("GET", store.keys.fence)
    return (time.perf_counter() - begin_s) * 1e6


async def _copy(known: PlanStore, chain: tuple[PrefixHash, ...]) -> dict[str, str]:
    """Copy one chain as the leader would; returns the plan's figures once it is settled."""
    redis, keys = known.store.redis, known.store.keys
    token: Any = await redis.get(keys.fence)
    rows: Any = await redis.xrevrange(keys.plan_log, count=1)
    last = rows[0][0] if rows else "0-0"
    plan = uuid.uuid4().hex
    phase = await known.prepare(
        plan,
        token=token.decode(),
        mode=Mode.COPY,
        why=Why.BACKGROUND,
        source=0,
        destination=1,
        hashes=chain,
        first=0,
    )
    if phase is not Phase.PREPARE:
        raise SystemExit(f"a plan was not begun: {phase}")
    reply: Any = await redis.xread({keys.plan_log: last}, block=PLAN_MS)
    if not reply:
        raise SystemExit(f"plan {plan} did not end within {PLAN_MS} ms")
    row = {name.decode(): value.decode() for name, value in reply[0][1][0][1].items()}
    if row["outcome"] != Phase.FINALIZE or int(row["blocks"]) != len(chain):
        raise SystemExit(f"a plan did not copy its blocks: {row}")
    await asyncio.sleep(PAUSE_S)
    return row


def show(found: dict[str, Any]) -> None:
    """Print the figures."""
    print(
        f"{found['plans']} plans of {found['blocks']} blocks of {found['block_tokens']} tokens, "
        f"{found['device']}, transport {found['transport']}: ms, p50 and p95"
    )
    for name, label in LABELS.items():
        row = found[name]
        print(f"  {label:36s} {row['p50']:8.3f} {row['p95']:8.3f}")
    spent = ", ".join(f"{name} {ms:.2f}" for name, ms in found["cpu_ms_a_plan"].items())
    print(f"  processor time a plan, ms: {spent}")


LABELS = {
    "dispatch_to_publish_ms": "dispatch to publish",
    "prepare_ms": "  prepare",
    "execute_ms": "  execute",
    "travel_ms": "    of it the bytes' travel",
    "control_ms": "all but the travel",
    "publish_to_settled_ms": "publish to settled",
    "bare_call_ms": "a bare call of the server",
}


@click.command()
@click.option("--device", type=click.Choice(sorted(PAIR_MODELS)), default="cpu", show_default=True)
@click.option("--transport", default="auto", show_default=True)
@click.option("--block-tokens", default=16, show_default=True)
@click.option("--blocks", default=8, show_default=True)
@click.option("--plans", type=click.IntRange(1), default=60, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=None, help="JSON goes there.")
def main(out: Path | None, **sizes: Any) -> None:
    """Measure plans of one size, from dispatch to publish."""
    found = uvloop.run(measure(**sizes))
    show(found)
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
