"""How well the cost model predicts transfers that it was not fitted to.

Two workers of a real pool move scratch blocks through the control plane. Every second transfer is
of a power of two of blocks: those calibrate, as `lmpoolctl calibrate` does. The others are of any
size and are held out. Each is predicted twice before it is compared: by the calibrated profile
alone, and by the model that has learnt from the held-out transfers before it, as the leader does.

    python -m benchmarks.micro.cost --out transfers.json        # gloo on this machine's processors
    python -m benchmarks.micro.cost --device cuda --block-tokens 256        # two GPUs
    python -m benchmarks.micro.cost --recorded transfers.json   # evaluate what was measured before
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import uvloop

from benchmarks.processes import PAIR_MODELS, pair_of_workers, running_pool
from ctl.probing import Prober
from lmpoold.core.cost import CostModel
from lmpoold.protocol.calibration import Sample, fit
from lmpoold.protocol.keys import Keyspace
from lmpoold.store.connect import open_redis
from lmpoold.store.plans import PlanStore
from lmpoold.store.scripts import PoolStore

PAIR = (0, 1)
SPACING_S = 0.01
"""Of the clock that predictions are made by."""
WAYS = {"cpu": "gloo", "cuda": "nccl"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Predictions against what transfers took, from begin to publish.

    Attributes:
        covered: share that took no longer than predicted.
        median_error: of |predicted - taken| / taken.
        mean_error: likewise.
        bias: mean of (predicted - taken) / taken: above 0 it errs on the side of computing.
    """

    transfers: int
    covered: float
    median_error: float
    mean_error: float
    bias: float


def accuracy(predicted_us: Sequence[float], taken_us: Sequence[float]) -> Accuracy:
    """Compare; both in the same order, taken above 0."""
    errors = [(said - took) / took for said, took in zip(predicted_us, taken_us, strict=True)]
    return Accuracy(
        transfers=len(errors),
        covered=sum(error >= 0 for error in errors) / len(errors),
        median_error=statistics.median(map(abs, errors)),
        mean_error=statistics.fmean(map(abs, errors)),
        bias=statistics.fmean(errors),
    )


def evaluate(
    fitted: Sequence[Sample], held_out: Sequence[Sample], block_bytes: int, way: str
) -> dict[str, Accuracy]:
    """Return the accuracy on transfers held out: `calibrated`, and `learning` as they come."""
    model = CostModel(profile=fit(fitted, block_bytes), interference=1.0)
    taken = [one.total_us for one in held_out]
    calibrated = [model.predict(one.pair, one.blocks, way, 0.0) for one in held_out]
    learning = []
    for turn, one in enumerate(held_out):
        now_s = turn * SPACING_S
        learning.append(model.predict(one.pair, one.blocks, way, now_s))
        model = model.learn(one.pair, one.blocks, way, one.total_us, now_s)
    return {"calibrated": accuracy(calibrated, taken), "learning": accuracy(learning, taken)}


async def measure(
    device: str, transport: str, block_tokens: int, most: int, rounds: int, seed: int
) -> dict[str, Any]:
    """Run a pool and the transfers.

    Args:
        device: `cpu` or `cuda`; then rank k takes cuda:k.
        transport: as workers take it.
        block_tokens: tokens a block.
        most: blocks of the largest transfer, a power of two.
        rounds: transfers of each power of two; as many in all are held out.
        seed: of the sizes held out.
    Returns: what `read_recorded` reads.
    """
    model, workers, options = pair_of_workers(
        device, transport, 4 * most, block_tokens, most * block_tokens
    )
    draw = random.Random(seed)
    sizes = [1 << power for power in range(most.bit_length())] * rounds
    draw.shuffle(sizes)
    rows: dict[str, list[tuple[int, float, float]]] = {"fitted": [], "held_out": []}
    async with running_pool(model, workers, daemon_options=options) as processes:
        redis = open_redis(processes.url)
        store = PoolStore(redis, Keyspace())
        prober = Prober(
            PlanStore(store),
            most_blocks=most,
            rounds=rounds,
            patience_s=30.0,
            progress=lambda *_: None,
        )
        try:
            block_bytes = int((await store.cfg())["kv_block_bytes"])
            for blocks in (1, 1, most, most):  # make the pair, and touch every buffer
                await prober.probe(PAIR, blocks, serving=False)
            for blocks in sizes:
                other = round(most ** draw.random())
                for part, size in (("fitted", blocks), ("held_out", other)):
                    one = await prober.probe(PAIR, size, serving=False)
                    rows[part].append((one.blocks, one.travel_us, one.total_us))
        finally:
            await redis.aclose()
    return {
        "device": device,
        "transport": transport,
        "way": WAYS[device] if transport == "auto" else transport,
        "block_bytes": block_bytes,
        "columns": ["blocks", "travel_us", "total_us"],
        **rows,
    }


def read_recorded(found: dict[str, Any]) -> tuple[list[Sample], list[Sample]]:
    """Return the samples that calibrate and those held out, in the order they were taken."""
    fitted, held_out = (
        [Sample(PAIR, int(blocks), travel, total) for blocks, travel, total in found[part]]
        for part in ("fitted", "held_out")
    )
    return fitted, held_out


@click.command()
@click.option("--device", type=click.Choice(sorted(PAIR_MODELS)), default="cpu", show_default=True)
@click.option("--transport", default="auto", show_default=True)
@click.option("--block-tokens", default=16, show_default=True)
@click.option("--most", default=128, show_default=True, help="Blocks of the largest transfer.")
@click.option("--rounds", default=20, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--recorded", type=click.Path(path_type=Path, exists=True), default=None)
@click.option("--out", type=click.Path(path_type=Path), default=None, help="JSON goes there.")
def main(recorded: Path | None, out: Path | None, **sizes: Any) -> None:
    """Print how well transfers that were held out were predicted."""
    if recorded is not None:
        found = json.loads(recorded.read_text(encoding="utf-8"))
    else:
        found = uvloop.run(measure(**sizes))
    fitted, held_out = read_recorded(found)
    judged = evaluate(fitted, held_out, found["block_bytes"], found["way"])
    print(f"{len(fitted)} transfers fitted, {len(held_out)} held out, {found['way']}")
    for name, row in judged.items():
        print(
            f"  {name:11s} covered {row.covered:6.1%}  |error| median {row.median_error:6.1%} "
            f"mean {row.mean_error:6.1%}  bias {row.bias:+6.1%}"
        )
    if out is not None:
        found["accuracy"] = {name: asdict(row) for name, row in judged.items()}
        out.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
