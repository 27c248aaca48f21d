"""The model as the engine sees it: batches in, tokens out. All of torch hides behind this door."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch

from lmpoold.text.folder import ModelFolder
from workers.core.batch import Batch, Sampled
from workers.model.batch import Row
from workers.model.kv import KVPool
from workers.model.runner import InFlight, ModelRunner, Runner
from workers.model.sample import SamplingRow
from workers.model.size import require_blocks
from workers.model.torch_backend import TorchBackend
from workers.model.weights import LoadedModel, load

Progress = Callable[[str, int, int], None]
UNKNOWN = (0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantConfig:
    """How to load a model and how much K/V it gets.

    Attributes:
        device: `cpu` or `cuda:<index>`.
        block_size: tokens a block.
        blocks: KV blocks; 0 lets a GPU's memory decide.
        max_rows: most rows of a step.
        max_tokens: most tokens of a step.
        memory_share: of the GPU's memory that may be taken.
        threads: on a CPU.
        movable: whether blocks go to other workers' pools and come from them.
    """

    folder: ModelFolder
    device: str
    dtype: str
    block_size: int
    blocks: int
    max_model_len: int
    max_rows: int
    max_tokens: int
    memory_share: float
    threads: int
    movable: bool = False


class ModelPlant:
    """A model on its paged pool. Built anywhere, then used by the engine's thread alone.

    Attributes:
        runner: what computes.
    """

    def __init__(self, runner: Runner) -> None:
        """Run `runner`."""
        self.runner = runner
        self._under_way: deque[InFlight] = deque()

    def launch(self, batch: Batch) -> None:
        """Start to compute a batch, and to draw a token for each chunk that samples."""
        self._under_way.append(self.runner.launch(*rows_of(batch)))

    def ready(self) -> bool:
        """Whether `collect` would not wait."""
        return self._under_way[0].ready()

    def collect(self) -> Sampled:
        """Return what the oldest batch launched and not collected drew, waiting for it."""
        return self._under_way.popleft().result()


def rows_of(batch: Batch) -> tuple[list[Row], list[SamplingRow]]:
    """Return a batch as a runner takes it; block tables are the sequences' own."""
    rows, sampling = [], []
    for chunk in batch.rows:
        sequence, start, after = chunk.sequence, chunk.start, chunk.after
        known = sequence.tokens[start : start + chunk.length]
        rows.append(
            Row(
                tokens=known if after is None else UNKNOWN,
                start=start,
                block_table=sequence.block_table,
                write_from=chunk.write_from,
                samples=chunk.samples,
                after=after,
            )
        )
        if chunk.samples:
            sampling.append(SamplingRow(sampling=sequence.sampling, index=chunk.output_index))
    return rows, sampling


def build_plant(config: PlantConfig, progress: Progress) -> tuple[ModelPlant, LoadedModel, KVPool]:
    """Load the model, lay out its pool, try one step.

    Raises: ConfigError: no such model, not one that can be served, or memory does not hold it.
    """
    torch.set_num_threads(config.threads)
    loaded = load(config.folder, dtype=config.dtype, device=config.device, progress=progress)
    runner, pool = (_on_cpu if config.device == "cpu" else _on_gpu)(config, loaded, progress)
    return ModelPlant(runner), loaded, pool


def _on_gpu(config: PlantConfig, loaded: LoadedModel, progress: Progress) -> tuple[Runner, KVPool]:
    from workers.model.cuda_build import build_cuda_runner
    from workers.model.device_sample import DeviceSampler

    return build_cuda_runner(
        loaded,
        block_size=config.block_size,
        blocks=config.blocks,
        max_rows=config.max_rows,
        max_tokens=config.max_tokens,
        max_model_len=config.max_model_len,
        make_sampler=DeviceSampler,
        memory_share=config.memory_share,
        beacon=config.movable,
        progress=progress,
    )


def _on_cpu(config: PlantConfig, loaded: LoadedModel, progress: Progress) -> tuple[Runner, KVPool]:
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
    return ModelRunner(loaded, pool, TorchBackend()), pool
