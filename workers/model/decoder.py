"""A model as the CUDA runner sees it: a planned step in, logits out.

`PlainDecoder` calls the `transformers` model as it is, with paged attention inside. What replaces
its modules by fewer and faster ones is in `fuse`.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor
from transformers import PreTrainedModel

from lmpoold.protocol.errors import ConfigError
from workers.model.attention import attending, bind, layers_attended
from workers.model.kv import KVPool
from workers.model.triton.backend import TritonBackend, TritonPlan


class Decoder(Protocol):
    """Computes steps on one device and one pool."""

    def bind(self, pool: KVPool) -> None:
        """Read and write this pool from now on."""
        ...

    def logits(self, plan: TritonPlan, keep: Tensor | None, out: Tensor | None = None) -> Tensor:
        """Compute a step.

        Args:
            plan: of the step.
            keep: `[n]` int32: tokens whose logits are wanted; None for all T.
            out: `[n, vocab]` of the model's type, where the logits go, if given.
        Returns: `[n, vocab]`, `out` if given.
        """
        ...


class PlainDecoder:
    """The model as `transformers` has it."""

    def __init__(self, model: PreTrainedModel, pool: KVPool, backend: TritonBackend) -> None:
        """Bind the model.

        Raises: ConfigError: the model cannot be served from a paged pool; the message says why.
        """
        self._model = model
        self._backend = backend
        self._layers = pool.geometry.layers
        self.bind(pool)

    def bind(self, pool: KVPool) -> None:
        """Point every attention module at a pool."""
        bind(self._model, pool)

    def logits(self, plan: TritonPlan, keep: Tensor | None, out: Tensor | None = None) -> Tensor:
        """Compute a step; as in `Decoder`."""
        with attending(self._backend, plan):
            output = self._model(
                input_ids=plan.step.ids[None],
                position_ids=plan.step.positions[None],
                use_cache=False,
                logits_to_keep=0 if keep is None else keep,
            )
        if layers_attended() != self._layers:
            raise ConfigError(
                f"{type(self._model).__name__} attended {layers_attended()} times in a pass over "
                f"{self._layers} layers; LMPool serves decoders with one attention a layer"
            )
        logits: Tensor = output.logits[0]
        return logits if out is None else out.copy_(logits)
