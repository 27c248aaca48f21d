"""What a step costs on this GPU, beside the least it could: `python -m benchmarks.micro.step`.

The floor of a decode step is every weight and every K/V of its sequences read once, at the
bandwidth that a large read reaches in the same run. Decodes are launched one behind the other, as
a worker does it: each takes the token of the one before on the device, and the host reads a step
while the next one computes. So are prefills; beside the rate stands how long one alone takes from
its launch to its token on the host.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch

from lmpoold.protocol.request import Sampling
from lmpoold.text.folder import cache_root, resolve
from workers.model.batch import Row
from workers.model.cuda_build import build_cuda_runner
from workers.model.cuda_runner import CudaRunner
from workers.model.device_sample import DeviceSampler
from workers.model.kv import KVPool
from workers.model.sample import SamplingRow
from workers.model.weights import LoadedModel, load

BLOCK = 256
CONTEXT = 1024
BATCHES = (1, 8, 64, 256)
PROMPTS = (2048, 8192)
CACHED = (0.0, 0.5, 0.9)
DRAWN = Sampling(max_tokens=1, temperature=0.8, top_p=0.95, top_k=50, seed=1)
GREEDY = Sampling(max_tokens=1)


def read_bandwidth(device: torch.device) -> float:
    """Return bytes a second of a large read."""
    numbers = torch.empty(2**30, dtype=torch.int64, device=device).random_()
    took_ms = timed(lambda: numbers.sum(), 10)
    return numbers.numel() * 8 / took_ms * 1e3


def timed(run: Callable[[], object], rounds: int) -> float:
    """Return the median of a function's device time in milliseconds."""
    times = []
    for at in range(rounds + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        if at >= 3:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


class Bench:
    """One model on its pool."""

    def __init__(self, name: str, device: torch.device) -> None:
        """Load it as a worker would."""
        folder = resolve(f"random:{name}", cache=cache_root(os.environ))
        start = time.perf_counter()
        self.loaded: LoadedModel = load(folder, device=device)
        self.load_s = time.perf_counter() - start
        start = time.perf_counter()
        self.runner: CudaRunner
        self.pool: KVPool
        self.runner, self.pool = build_cuda_runner(
            self.loaded,
            block_size=BLOCK,
            blocks=max(BATCHES) * (CONTEXT // BLOCK + 1),
            max_rows=max(BATCHES),
            max_tokens=max(PROMPTS),
            max_model_len=2 * max(PROMPTS),
            make_sampler=DeviceSampler,
        )
        self.start_s = time.perf_counter() - start
        self.pool.data.normal_()

    def floor_ms(self, batch: int, bandwidth: float) -> float:
        """Return how long reading weights and K/V of a decode step takes."""
        weights = sum(p.numel() * p.element_size() for p in self.loaded.model.parameters())
        kv = batch * CONTEXT * self.pool.block_bytes / BLOCK
        return (weights + kv) / bandwidth * 1e3

    def decode(self, batch: int, rounds: int, how: Sampling) -> dict[str, float]:
        """Time decode steps one behind the other; milliseconds a step, and of the host."""
        per_row = CONTEXT // BLOCK + 1
        tables = [list(range(at * per_row, (at + 1) * per_row)) for at in range(batch)]
        sampling = [SamplingRow(sampling=how, index=at) for at in range(batch)]
        launch_s = []
        before = None
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for at in range(-8, rounds):
            if at == 0:
                begin.record()
                start = time.perf_counter()
            rows = [
                Row(
                    tokens=[7],
                    start=CONTEXT - 1,
                    block_table=tables[row],
                    after=None if before is None else row,
                )
                for row in range(batch)
            ]
            launching = time.perf_counter()
            flight = self.runner.launch(rows, sampling)
            launch_s.append(time.perf_counter() - launching)
            if before is not None:
                before.result()
            before = flight
        end.record()
        assert before is not None
        before.result()
        wall_ms = (time.perf_counter() - start) / rounds * 1e3
        end.synchronize()
        return {
            "step_ms": begin.elapsed_time(end) / rounds,
            "wall_ms": wall_ms,
            "launch_ms": statistics.median(launch_s) * 1e3,
        }

    def prefill(self, length: int, cached: float, rounds: int) -> dict[str, float]:
        """Time one prompt whose first part is in the pool, from launch to its token."""
        start = int(length * cached) // BLOCK * BLOCK
        tokens = torch.randint(0, self.loaded.vocab_size, (length - start,)).tolist()
        rows = [Row(tokens=tokens, start=start, block_table=list(range(length // BLOCK)))]
        sampling = [SamplingRow(sampling=GREEDY, index=0)]

        before = None
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for at in range(-3, rounds):
            if at == 0:
                begin.record()
            flight = self.runner.launch(rows, sampling)
            if before is not None:
                before.result()
            before = flight
        end.record()
        end.synchronize()
        step_ms = begin.elapsed_time(end) / rounds
        walls = []
        for _ in range(rounds):
            start_s = time.perf_counter()
            self.runner.launch(rows, sampling).result()
            walls.append(time.perf_counter() - start_s)
        return {
            "new_tokens": len(tokens),
            "step_ms": step_ms,
            "alone_ms": statistics.median(walls) * 1e3,
            "tok_s": length / step_ms * 1e3,
            "new_tok_s": len(tokens) / step_ms * 1e3,
        }


def measure(names: tuple[str, ...], rounds: int) -> dict[str, Any]:
    """Run everything; prints as it goes."""
    device = torch.device("cuda", 0)
    bandwidth = read_bandwidth(device)
    click.echo(f"{torch.cuda.get_device_name(device)}: reads {bandwidth / 1e9:,.0f} GB/s")
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "context_tokens": CONTEXT,
        "block_tokens": BLOCK,
        "read_gb_s": bandwidth / 1e9,
        "decode_ms": {},
        "roofline_ms": {},
        "sampled_decode_ms": {},
        "decode": [],
        "prefill_tok_s": {},
        "prefill": [],
        "start_s": {},
    }
    for name in names:
        size = name.removeprefix("qwen3-")
        bench = Bench(name, device)
        click.echo(f"{name}: loaded in {bench.load_s:.1f} s, ready in {bench.start_s:.1f} s")
        result["start_s"][size] = bench.load_s + bench.start_s
        for key in ("decode_ms", "roofline_ms", "sampled_decode_ms"):
            result[key][size] = {}
        for batch in BATCHES:
            floor = bench.floor_ms(batch, bandwidth)
            row = bench.decode(batch, rounds, GREEDY)
            sampled = bench.decode(batch, rounds, DRAWN)["step_ms"]
            result["decode_ms"][size][str(batch)] = row["step_ms"]
            result["roofline_ms"][size][str(batch)] = floor
            result["sampled_decode_ms"][size][str(batch)] = sampled
            result["decode"].append({"model": size, "batch": batch} | row)
            click.echo(
                f"decode B={batch:3}: {row['step_ms']:6.3f} ms a step, floor {floor:.3f} "
                f"({floor / row['step_ms']:.0%}); wall {row['wall_ms']:.3f}, of which the host "
                f"launches {row['launch_ms']:.3f}; with top-k and top-p {sampled:.3f}"
            )
        for length in PROMPTS:
            for cached in CACHED:
                row = bench.prefill(length, cached, max(5, rounds // 4))
                result["prefill"].append({"model": size, "tokens": length, "cached": cached} | row)
                if size == "0.6b" and not cached:
                    result["prefill_tok_s"][str(length)] = row["tok_s"]
                click.echo(
                    f"prefill {length}, {cached:.0%} cached: {row['step_ms']:.2f} ms a step "
                    f"({row['alone_ms']:.2f} alone), {row['tok_s']:,.0f} tok/s, "
                    f"{row['new_tok_s']:,.0f} new tok/s"
                )
        del bench
        torch.cuda.empty_cache()
    return result


@click.command()
@click.option("--models", default="qwen3-0.6b,qwen3-1.7b", show_default=True)
@click.option("--rounds", default=40, show_default=True, help="Steps timed in each case.")
@click.option("--revision", envvar="LMPOOL_REVISION", default="", help="Of the code, for the file.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures here too.")
def main(models: str, rounds: int, revision: str, out: Path | None) -> None:
    """Print decode and prefill steps beside the floor of the same run."""
    result = {"revision": revision} | measure(tuple(models.split(",")), rounds)
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
