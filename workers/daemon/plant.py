"""The model as the engine sees it: a batch in, tokens out. All of torch hides behind this door."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lmpoold.text.folder import ModelFolder
from workers.core.schedule import Batch
from workers.daemon.engine import Drawn
from workers.model.batch import Row
from workers.model.kv import KVPool
from workers.model.runner import ModelRunner
from workers.model.sample import SamplingRow
from workers.model.size import require_blocks
from workers.model.torch_backend import TorchBackend
from workers.model.weights import LoadedModel, load

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantConfig:
    """How to load a model and how much K/V it gets; sizes in blocks of `block_size` tokens."""

    folder: ModelFolder
    device: str
    dtype: str
    block_size: int
    blocks: int
    max_model_len: int
    threads: int
    movable: bool = False
    """Whether blocks go to other workers' pools and come from them."""


class ModelPlant:
    """A model on its paged pool. Built anywhere, then used by the engine's thread alone.

    Attributes:
        pool: where the blocks lie; transfers read and write those that are held for them.
    """

    def __init__(self, runner: ModelRunner, pool: KVPool) -> None:
        """Run `runner`, which is bound to `pool`."""
        self._runner = runner
        self.pool = pool

    def run(self, batch: Batch) -> list[Drawn]:
        """Compute a batch and draw a token for each chunk that samples."""
        rows, sampling = [], []
        for chunk in (*batch.decodes, *batch.prefills):
            sequence = chunk.sequence
            rows.append(
                Row(
                    tokens=sequence.tokens[chunk.start : chunk.start + chunk.length],
                    start=chunk.start,
                    block_table=sequence.block_table,
                    write_from=chunk.write_from,
                    samples=chunk.samples,
                )
            )
            if chunk.samples:
                sampling.append(
                    SamplingRow(sampling=sequence.sampling, index=sequence.output_tokens)
                )
        sampled = self._runner.run(rows, sampling)
        return [
            Drawn(token) if logprobs is None else Drawn(token, logprobs.chosen, logprobs.top)
            for token, logprobs in zip(sampled.tokens, sampled.logprobs, strict=True)
        ]


def build_plant(config: PlantConfig, progress: Progress) -> tuple[ModelPlant, LoadedModel]:
    """Load the model, lay out its pool, try one step.

    Raises: ConfigError: no such model, not one that can be served, or too few blocks for it.
    """
    torch.set_num_threads(config.threads)
    loaded = load(config.folder, dtype=config.dtype, device=config.device, progress=progress)
    pool = KVPool(
        num_blocks=config.blocks,
        block_size=config.block_size,
        geometry=loaded.geometry,
        dtype=loaded.dtype,
        device=loaded.device,
        beacon=config.movable,
    )
    require_blocks(
        config.blocks,
        block_bytes=pool.block_bytes,
        block_size=config.block_size,
        max_model_len=config.max_model_len,
    )
    return ModelPlant(ModelRunner(loaded, pool, TorchBackend()), pool), loaded
