"""Where a `transformers` model meets the paged pool.

Every attention module of the model calls the function registered here with the step's q, k and v.
Its layer of the pool hangs on the module (`lmpool_kv`), so several models can live in one process.
What the step is (which token writes where, who attends to whom) is the same for all layers: the
runner plans it once and leaves it in a context of its thread, so several runners can step at once,
each on its own thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from lmpoold.protocol.errors import ConfigError
from workers.model.batch import StepInput
from workers.model.kv import KVPool, LayerKV

IMPLEMENTATION = "lmpool_paged"
"""Our name in transformers' table. It has no entry in the table of masks, so none is built."""
_PROJECTIONS = ("q_proj", "qkv_proj", "query_key_value", "c_attn")
_UNSERVED = {
    "softcap": "soft-capped attention scores",
    "s_aux": "attention sinks",
    "position_bias": "position biases",
}


class Backend(Protocol):
    """A way to compute paged attention."""

    def plan(self, step: StepInput, pool: KVPool) -> Any:
        """Return what all layers of this step need, in the backend's own form."""
        ...

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, layer: LayerKV, plan: Any, scale: float
    ) -> Tensor:
        """Write this step's K/V into one layer of the pool, then attend.

        Args:
            q: `[T, head, head_dim]`.
            k: `[T, kv_head, head_dim]`.
            v: like `k`.
            layer: where K/V lies.
            plan: from `plan`.
            scale: factor on the scores.
        Returns: `[T, head, head_dim]`.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Step:
    backend: Backend
    plan: Any


class _Current(threading.local):
    step: _Step | None = None
    calls: int = 0


_current = _Current()


@contextmanager
def attending(backend: Backend, plan: Any) -> Iterator[None]:
    """Within, forward passes of this thread attend through `backend` by `plan`."""
    _current.step = _Step(backend, plan)
    _current.calls = 0
    try:
        yield
    finally:
        _current.step = None


def layers_attended() -> int:
    """Return how many attention modules this thread's last (or present) step has called."""
    return _current.calls


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **extra: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers asks: query `[1, head, T, head_dim]`, out `[1, T, head, head_dim]`.

    Raises:
        ConfigError: the module asks for something that the pool does not compute.
        RuntimeError: called outside of a runner's step.
    """
    step = _current.step
    if step is None:
        raise RuntimeError("a paged model runs only inside its runner's step")
    for name, what in _UNSERVED.items():
        if extra.get(name) is not None:
            raise ConfigError(f"{type(module).__name__} uses {what}, which LMPool does not serve")
    layer = module.lmpool_kv
    assert isinstance(layer, LayerKV)
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    if k.shape[1:] != layer.k.shape[2:] or v.shape[1:] != layer.v.shape[2:]:
        raise ConfigError(
            f"{type(module).__name__} makes keys {tuple(k.shape[1:])} and values "
            f"{tuple(v.shape[1:])}, heads by head_dim; the pool has {tuple(layer.k.shape[2:])}"
        )
    scale = float(q.shape[-1] ** -0.5 if scaling is None else scaling)
    _current.calls += 1
    return step.backend.attend(q, k, v, layer, step.plan, scale).unsqueeze(0), None


def bind(model: PreTrainedModel, pool: KVPool) -> None:
    """Point a model's attention at a pool.

    Raises: ConfigError: not every layer has an attention module that we recognise.
    """
    found: dict[int, nn.Module] = {}
    for module in model.modules():
        if hasattr(module, "layer_idx") and any(hasattr(module, name) for name in _PROJECTIONS):
            found[int(str(module.layer_idx))] = module
    name = type(model).__name__
    if sorted(found) != list(range(pool.geometry.layers)):
        raise ConfigError(
            f"{name} has attention modules for layers {sorted(found)} of {pool.geometry.layers}; "
            "LMPool serves decoders with plain attention in every layer"
        )
    for index, module in found.items():
        if not getattr(module, "is_causal", True):
            raise ConfigError(f"{name} attends to later tokens; LMPool serves causal decoders")
        module.lmpool_kv = pool.layer(index)  # type: ignore[assignment]
    AttentionInterface.register(IMPLEMENTATION, paged_attention)
    model.set_attn_implementation(IMPLEMENTATION)
    if model.config._attn_implementation != IMPLEMENTATION:
        raise ConfigError(f"{name} does not use transformers' attention interface")
