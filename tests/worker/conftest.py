"""Tiny models, the demo model, and a paged generator to hold against `transformers`' own."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel

from lmpoold.protocol.request import Sampling
from lmpoold.text.folder import ModelFolder, cache_root, resolve
from workers.model.batch import Row
from workers.model.kv import KVPool
from workers.model.prepare import prepare
from workers.model.runner import ModelRunner
from workers.model.sample import SamplingRow
from workers.model.torch_backend import TorchBackend
from workers.model.weights import LoadedModel, load

torch.set_num_threads(1)  # tiny models gain nothing from more, and busy cores cost much
GREEDY = Sampling(max_tokens=1)


@dataclass
class Running:
    """One request of the test's own little engine."""

    tokens: list[int]
    table: list[int]
    computed: int = 0
    write_from: int = 0
    prompt: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = len(self.tokens)

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt :]


class Paged:
    """Generates greedily with a runner on a pool whose blocks are handed out in random order."""

    def __init__(self, loaded: LoadedModel, num_blocks: int = 96, block_size: int = 16) -> None:
        self.pool = KVPool(num_blocks, loaded.geometry, block_size=block_size, dtype=loaded.dtype)
        self.runner = ModelRunner(loaded, self.pool, TorchBackend())
        self.free = list(range(num_blocks))
        random.Random(5).shuffle(self.free)

    def add(
        self, prompt: Sequence[int], room: int, *, shared: Sequence[int] = (), write_from: int = 0
    ) -> Running:
        """Make a sequence of up to `room` more tokens, on `shared` blocks whose K/V is there."""
        blocks = -(-(len(prompt) + room) // self.pool.block_size)
        table = [*shared, *(self.free.pop() for _ in range(blocks - len(shared)))]
        computed = min(len(shared) * self.pool.block_size, len(prompt) - 1)
        return Running(list(prompt), table, computed, write_from)

    def step(self, *work: tuple[Running, int]) -> None:
        """Compute so many tokens of each sequence at once; append a token where none are left."""
        rows = []
        for sequence, count in work:
            end = sequence.computed + count
            rows.append(
                Row(
                    tokens=sequence.tokens[sequence.computed : end],
                    start=sequence.computed,
                    block_table=sequence.table,
                    write_from=sequence.write_from,
                    samples=end == len(sequence.tokens),
                )
            )
            sequence.computed = end
        done = [sequence for (sequence, _), row in zip(work, rows, strict=True) if row.samples]
        sampled = self.runner.run(rows, [SamplingRow(sampling=GREEDY, index=0) for _ in done])
        for sequence, token in zip(done, sampled.tokens, strict=True):
            sequence.tokens.append(token)

    def finish(self, sequences: Sequence[Running], count: int, chunk: int = 10_000) -> None:
        """Step all together, decodes first, until each has `count` output tokens."""
        while left := [s for s in sequences if len(s.output) < count]:
            work = [(s, min(chunk, len(s.tokens) - s.computed)) for s in left]
            self.step(*sorted(work, key=lambda pair: pair[1] > 1))


def _reference(model: PreTrainedModel, prompt: Sequence[int], count: int) -> list[int]:
    settings = GenerationConfig(  # no id is -1, and None would mean the model's own
        max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    ids = torch.tensor([list(prompt)])
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    return out[0, len(prompt) :].tolist()


@pytest.fixture(scope="session")
def reference() -> Callable[[PreTrainedModel, Sequence[int], int], list[int]]:
    """Greedy output of `transformers` itself."""
    return _reference


@pytest.fixture(scope="session")
def paged() -> type[Paged]:
    return Paged


@pytest.fixture(scope="session")
def cache() -> Path:
    return cache_root(os.environ)


@pytest.fixture(scope="session")
def random_model(cache: Path) -> Callable[[str], tuple[LoadedModel, PreTrainedModel]]:
    """One random shape twice: loaded for us, and left as `transformers` made it."""
    kept: dict[str, tuple[LoadedModel, PreTrainedModel]] = {}

    def get(shape: str) -> tuple[LoadedModel, PreTrainedModel]:
        if shape not in kept:
            folder = resolve(f"random:{shape}", cache=cache)
            kept[shape] = load(folder, dtype="float32"), load(folder, dtype="float32").model
        return kept[shape]

    return get


@pytest.fixture(scope="session")
def demo_folder(cache: Path) -> ModelFolder:
    """The demo model, converted on first use; its package is a test requirement."""
    return prepare("demo", cache=cache)
