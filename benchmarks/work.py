"""The work that an engine is measured by: so many prompts of one length, and their answers.

What needs torch is imported where it is needed: producers import this module too.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmpoold.text.folder import resolve
from workers.daemon.settings import WorkerConfig

if TYPE_CHECKING:
    from workers.daemon.plant import ModelPlant
    from workers.model.kv import KVPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Requests and what serves them.

    Attributes:
        requests: all alike, no two prompts equal.
        prompt_tokens: of each.
        output_tokens: of each, end tokens ignored.
        block_size: tokens a KV block.
        max_batched_tokens: of a step; 0 for the device's default.
    """

    model: str
    device: str
    dtype: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    block_size: int
    max_batched_tokens: int

    def prompts(self, count: int, seed: int) -> list[list[int]]:
        """Return `count` prompts that only this seed gives."""
        draw = random.Random(f"prompts {seed}")
        return [[draw.randrange(256) for _ in range(self.prompt_tokens)] for _ in range(count)]

    @property
    def max_model_len(self) -> int:
        """Tokens a sequence needs room for."""
        return self.prompt_tokens + self.output_tokens + 512

    def settings(self) -> WorkerConfig:
        """Return the worker's settings on this machine."""
        from workers.model.device import choose_device

        wanted = WorkerConfig(
            redis_url="",
            cache=Path("/nowhere"),
            model=self.model,
            max_batched_tokens=self.max_batched_tokens,
        )
        return wanted.on(choose_device(self.device, 0))

    def build(self) -> tuple[ModelPlant, KVPool]:
        """Load the model as a worker does, random weights only."""
        from workers.daemon.plant import PlantConfig, build_plant

        settings = self.settings()
        blocks = 0
        if settings.device == "cpu":
            blocks = settings.max_num_seqs * -(-self.max_model_len // self.block_size)
        config = PlantConfig(
            folder=resolve(self.model, cache=settings.cache),
            device=settings.device,
            dtype=self.dtype,
            block_size=self.block_size,
            blocks=blocks,
            max_model_len=self.max_model_len,
            max_rows=settings.max_num_seqs,
            max_tokens=settings.max_batched_tokens,
            memory_share=settings.memory_share,
            threads=1,
        )
        plant, _, pool = build_plant(config, lambda stage, done, total: None)
        return plant, pool

    def worker_argv(self, module: str = "workers") -> list[str]:
        """Return the argv behind `python -m` of a worker for this work."""
        settings = self.settings()
        argv = [module, "--model", self.model, "--device", settings.device]
        if settings.device == "cpu":
            blocks = settings.max_num_seqs * -(-self.max_model_len // self.block_size)
            argv += ["--blocks", str(blocks)]
        return [*argv, "--max-batched-tokens", str(settings.max_batched_tokens)]

    def daemon_options(self) -> list[str]:
        """Return lmpoold's options for this work."""
        return [
            *("--block-size", str(self.block_size)),
            *("--dtype", self.dtype),
            *("--max-model-len", str(self.max_model_len)),
        ]


def as_options(work: Work) -> dict[str, Any]:
    """Return the fields of a work, to be sent to another process."""
    return {name: getattr(work, name) for name in Work.__slots__}
