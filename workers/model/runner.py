"""Runs a model on its pool, one step at a time. One runner belongs to one thread.

`Runner` is the port: a step is launched, and its tokens are asked for later, so that a device can
compute while the host prepares the next step. `ModelRunner` is the reference: it computes at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from lmpoold.protocol.errors import ConfigError
from workers.model.attention import Backend, attending, bind, layers_attended
from workers.model.batch import Row, build_step
from workers.model.kv import KVPool
from workers.model.sample import Sampled, SamplingRow, sample
from workers.model.weights import LoadedModel


class InFlight(Protocol):
    """A step that was launched."""

    def ready(self) -> bool:
        """Whether `result` would not wait."""
        ...

    def result(self) -> Sampled:
        """Return what it drew, waiting until the host has it."""
        ...


class Runner(Protocol):
    """Computes steps in the order they are launched in."""

    def launch(self, rows: Sequence[Row], sampling: Sequence[SamplingRow]) -> InFlight:
        """Start a step; at most one more may be under way.

        Args:
            rows: decodes first, then prefills.
            sampling: one for each row with `samples`, in order.
        """
        ...


@dataclass(frozen=True, slots=True)
class Done:
    """A step that was computed when it was launched."""

    sampled: Sampled

    def ready(self) -> bool:
        """It is."""
        return True

    def result(self) -> Sampled:
        """Return what it drew."""
        return self.sampled


class ModelRunner:
    """A loaded model bound to a pool and an attention backend."""

    def __init__(self, loaded: LoadedModel, pool: KVPool, backend: Backend) -> None:
        """Bind the model and try one step, which writes only the trash block.

        Raises: ConfigError: the model cannot be served from a paged pool; the message says why.
        """
        self._model = loaded.model
        self._pool = pool
        self._backend = backend
        self._drawn: list[int] = []
        bind(loaded.model, pool)
        length = min(2, pool.block_size)
        self.step([Row(tokens=[0] * length, start=0, block_table=[0], write_from=length)])
        if layers_attended() != pool.geometry.layers:
            raise ConfigError(
                f"{type(loaded.model).__name__} attended {layers_attended()} times in a pass over "
                f"{pool.geometry.layers} layers; LMPool serves decoders with one attention a layer"
            )

    @torch.inference_mode()
    def step(self, rows: Sequence[Row]) -> Tensor:
        """Compute the rows' tokens, write their K/V, and return the logits that were asked for.

        Args:
            rows: decodes first, then prefills.
        Returns: `[rows that sample, vocab]` float32, in the order of `rows`.
        Raises: ValueError: a row that its block table does not cover.
        """
        pool = self._pool
        step = build_step(
            rows,
            block_size=pool.block_size,
            trash_block=pool.trash_block,
            device=pool.data.device,
        )
        with attending(self._backend, self._backend.plan(step, pool)):
            output = self._model(
                input_ids=step.ids[None],
                position_ids=step.positions[None],
                use_cache=False,
                logits_to_keep=step.sample_at,
            )
        logits: Tensor = output.logits[0]
        return logits.float()

    @torch.inference_mode()
    def run(self, rows: Sequence[Row], sampling_rows: Sequence[SamplingRow]) -> Sampled:
        """Step, then choose a token for every row that samples.

        Args:
            rows: decodes first, then prefills.
            sampling_rows: one for each row with `samples`, in order.
        """
        return sample(self.step(rows), sampling_rows)

    def launch(self, rows: Sequence[Row], sampling: Sequence[SamplingRow]) -> Done:
        """Run a step whose rows may continue what the launch before drew; see `Runner`."""
        known = [
            row if row.after is None else replace(row, tokens=[self._drawn[row.after]])
            for row in rows
        ]
        sampled = self.run(known, sampling)
        self._drawn = sampled.tokens
        return Done(sampled)
