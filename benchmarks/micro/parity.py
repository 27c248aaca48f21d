"""How far the GPU's logits are from the truth: `python -m benchmarks.micro.parity`.

The truth is the unpatched model in float32 on the same (bf16) weights. Beside our error stands that
of the unpatched model in bf16, which is what rounding alone does. A token counts as agreed when
both choose it, or when the truth holds the two choices so close that the unpatched model's own
rounding could have swapped them.
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from lmpoold.text.folder import cache_root, resolve
from workers.model.batch import Row, build_step
from workers.model.cuda_runner import make_decoder
from workers.model.decoder import Decoder
from workers.model.kv import KVPool
from workers.model.triton.backend import TritonBackend
from workers.model.weights import load

TOKENS = 600
BLOCK = 64


def pieces(end: int, chunk: int, start: int = 0) -> list[tuple[int, int]]:
    """Cut [start, end) into chunks."""
    return [(at, min(at + chunk, end)) for at in range(start, end, chunk)]


class Paged:
    """The model on its pool, for logits of every token."""

    def __init__(self, decoder: Decoder, pool: KVPool) -> None:
        """Use blocks of `pool` from the first on."""
        self.decoder, self.pool = decoder, pool
        self.backend = TritonBackend(pool.data.device)

    def logits(self, tokens: list[int], cuts: list[tuple[int, int]], table: list[int]) -> Tensor:
        """Return float32 logits `[cuts[-1][1] - cuts[0][0], vocab]`, computed piece by piece."""
        found = []
        for begin, end in cuts:
            row = Row(tokens=tokens[begin:end], start=begin, block_table=table)
            step = build_step(
                [row],
                block_size=self.pool.block_size,
                trash_block=self.pool.trash_block,
                device=self.pool.data.device,
            )
            plan = self.backend.plan(step, self.pool)
            found.append(self.decoder.logits(plan, None).float())
        return torch.cat(found)


def compare(truth: Tensor, plain: Tensor, ours: Tensor) -> dict[str, float]:
    """Return errors over the spread of the true logits, and how often the best token agrees."""
    spread = truth.std()
    swap = 2 * (plain - truth).abs().max()  # what rounding alone can move two logits by
    chosen, expected = ours.argmax(-1), plain.argmax(-1)
    gaps = truth.gather(1, expected[:, None]) - truth.gather(1, chosen[:, None])
    explained = (chosen == expected) | (gaps[:, 0].abs() < swap)
    return {
        "max_error": float((ours - truth).abs().max() / spread),
        "mean_error": float((ours - truth).abs().mean() / spread),
        "plain_max_error": float((plain - truth).abs().max() / spread),
        "plain_mean_error": float((plain - truth).abs().mean() / spread),
        "same_best": float((chosen == expected).float().mean()),
        "explained_best": float(explained.float().mean()),
        "plain_same_best_as_truth": float((expected == truth.argmax(-1)).float().mean()),
        "same_best_as_truth": float((chosen == truth.argmax(-1)).float().mean()),
    }


@torch.inference_mode()
def measure(name: str, tokens: int = TOKENS) -> dict[str, Any]:
    """Compare one random shape; the ways of computing it are cold, hit, chunked and decoded."""
    device = torch.device("cuda", 0)
    loaded = load(
        resolve(f"random:{name}", cache=cache_root(os.environ)), dtype="bfloat16", device=device
    )
    generator = torch.Generator(device).manual_seed(3)
    ids = torch.randint(0, loaded.vocab_size, (1, tokens), generator=generator, device=device)
    exact = copy.deepcopy(loaded.model).float()
    truth = exact(ids, use_cache=False).logits[0]
    del exact
    plain = loaded.model(ids, use_cache=False).logits[0].float()
    blocks = -(-tokens // BLOCK)
    pool = KVPool(
        2 * blocks, loaded.geometry, block_size=BLOCK, dtype=loaded.dtype, device=loaded.device
    )
    paged = Paged(make_decoder(loaded, pool), pool)
    prompt: list[int] = ids[0].tolist()
    table, other = list(range(blocks)), list(range(2 * blocks - 1, blocks - 1, -1))
    cold = paged.logits(prompt, [(0, tokens)], table)
    result: dict[str, Any] = {"model": name, "tokens": tokens, "cold": compare(truth, plain, cold)}
    shared = tokens // 2 // BLOCK * BLOCK
    ways = {
        "hit": (pieces(tokens, tokens, shared), table),
        "chunked": (pieces(tokens, 100), other),
        "decoded": (pieces(tokens, 1, tokens - 32), other),
    }
    for way, (cuts, blocks_of) in ways.items():
        got = paged.logits(prompt, cuts, blocks_of)
        begin = cuts[0][0]
        row = compare(truth[begin:], plain[begin:], got)
        row["max_from_cold"] = float((got - cold[begin:]).abs().max() / truth.std())
        result[way] = row
    return result


@click.command()
@click.option("--models", default="qwen3-0.6b,qwen3-1.7b", show_default=True)
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures here too.")
def main(models: str, out: Path | None) -> None:
    """Print errors of logits in units of their spread, ours beside the unpatched model's."""
    rows = [measure(name) for name in models.split(",")]
    for row in rows:
        for way in ("cold", "hit", "chunked", "decoded"):
            found = row[way]
            click.echo(
                f"{row['model']} {way:7}: error max {found['max_error']:.4f} mean "
                f"{found['mean_error']:.5f} (unpatched {found['plain_max_error']:.4f}, "
                f"{found['plain_mean_error']:.5f}); same best token {found['same_best']:.1%}, "
                f"with near-ties {found['explained_best']:.2%}; best as in float32 "
                f"{found['same_best_as_truth']:.1%} (unpatched "
                f"{found['plain_same_best_as_truth']:.1%}); max from cold "
                f"{found.get('max_from_cold', 0.0):.4f}"
            )
    if out is not None:
        out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
