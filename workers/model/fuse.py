"""Replaces the layers of a `transformers` decoder by ones that launch a third of the kernels.

Per layer: one product for q, k and v; one kernel that norms and turns q and k and writes K/V into
the pool; attention; o; one kernel for the residual and the norm; one product for gate and up; their
activation; down. Concatenated weights take no more memory, since the modules' own parameters become
views of them.

Each replaced layer is checked against the module that it replaces, on random input, K/V included;
then the whole model is. What is not known, or does not agree, runs as `transformers` has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear
from transformers import PreTrainedModel

from workers.model.attention import attending
from workers.model.batch import Row, build_step
from workers.model.decoder import PlainDecoder
from workers.model.kv import KVPool, LayerKV
from workers.model.triton.backend import HEAD_DIMS, TritonBackend, TritonPlan
from workers.model.triton.pointwise import add_norm, gate
from workers.model.triton.product import product
from workers.model.triton.write import rope_write

KNOWN_LAYERS = (
    "LlamaDecoderLayer",
    "MistralDecoderLayer",
    "Qwen2DecoderLayer",
    "Qwen3DecoderLayer",
)
"""Decoder layers whose arithmetic `FusedLayer` repeats."""
_LAYER_ERROR = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}
_MODEL_ERROR = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}
_CHECK_TOKENS = 7


@dataclass(frozen=True, slots=True)
class Unfused:
    """Why a model runs as it is."""

    reason: str


def _joined(*projections: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Concatenate weights and biases, and make the modules' own ones views of the result."""
    weight = torch.cat([p.weight.data for p in projections])
    bias = None
    if projections[0].bias is not None:
        bias = torch.cat([p.bias.data for p in projections])
    at = 0
    for projection in projections:
        end = at + projection.out_features
        projection.weight.data = weight[at:end]
        if bias is not None:
            projection.bias.data = bias[at:end]
        at = end
    return weight, bias


class FusedLayer:
    """One decoder layer: residual stream in place, the layer's last product out."""

    def __init__(self, layer: Any, kv: LayerKV, backend: TritonBackend) -> None:
        """Take over a layer's weights; `kv` is where its K/V lies."""
        attention, mlp = layer.self_attn, layer.mlp
        self.kv = kv
        self._backend = backend
        self._head_dim: int = attention.head_dim
        self._heads: int = attention.q_proj.out_features // self._head_dim
        self._scale: float = attention.scaling
        self._qkv = _joined(attention.q_proj, attention.k_proj, attention.v_proj)
        self._gate_up = _joined(mlp.gate_proj, mlp.up_proj)
        self._o = (attention.o_proj.weight, attention.o_proj.bias)
        self._down = (mlp.down_proj.weight, mlp.down_proj.bias)
        self._norm = (layer.input_layernorm.weight, layer.input_layernorm.variance_epsilon)
        after = layer.post_attention_layernorm
        self._norm_after = (after.weight, after.variance_epsilon)
        self._norms: tuple[Tensor, Tensor] | None = None
        self._norms_eps = 0.0
        if hasattr(attention, "q_norm"):
            self._norms = (attention.q_norm.weight, attention.k_norm.weight)
            self._norms_eps = attention.q_norm.variance_epsilon

    def __call__(
        self, delta: Tensor | None, residual: Tensor, plan: TritonPlan, rope: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Run the layer.

        Args:
            delta: `[T, hidden]`, what the layer before left to be added; None for the first.
            residual: `[T, hidden]`, changed in place.
            plan: of the step.
            rope: cosines and sines, `[position, head_dim / 2]`.
        Returns: `[T, hidden]`, to be added to `residual`.
        """
        step = plan.step
        qkv = product(add_norm(delta, residual, *self._norm), *self._qkv)
        rope_write(
            qkv,
            self._norms,
            rope,
            step.positions,
            step.slots,
            self.kv,
            heads=self._heads,
            eps=self._norms_eps,
        )
        width = self._heads * self._head_dim
        q = qkv[:, :width].view(-1, self._heads, self._head_dim)
        attended = self._backend.read(q, self.kv, plan, self._scale)
        delta = product(attended.view(-1, width), *self._o)
        both = product(add_norm(delta, residual, *self._norm_after), *self._gate_up)
        return product(gate(both), *self._down)


class FusedDecoder:
    """A whole decoder of fused layers; implements `decoder.Decoder`."""

    def __init__(self, model: Any, pool: KVPool, backend: TritonBackend) -> None:
        """Take over a model whose layers are known; `fuse` checks that."""
        body = model.model
        self._embedding: Tensor = body.embed_tokens.weight
        self._norm = (body.norm.weight, body.norm.variance_epsilon)
        self._head = (model.lm_head.weight, model.lm_head.bias)
        self._rope = _rope_table(model)
        self.layers = [
            FusedLayer(layer, pool.layer(index), backend) for index, layer in enumerate(body.layers)
        ]

    @property
    def rope(self) -> tuple[Tensor, Tensor]:
        """Cosines and sines, `[position, head_dim / 2]`."""
        return self._rope

    def bind(self, pool: KVPool) -> None:
        """Read and write this pool from now on."""
        for index, layer in enumerate(self.layers):
            layer.kv = pool.layer(index)

    def hidden(self, plan: TritonPlan) -> Tensor:
        """Compute a step up to the head: `[T, hidden]`."""
        residual = embedding(plan.step.ids, self._embedding)
        delta = None
        for layer in self.layers:
            delta = layer(delta, residual, plan, self._rope)
        return add_norm(delta, residual, *self._norm)

    def head(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Return logits `[n, vocab]` of hidden states `[n, hidden]`, in `out` if given."""
        weight, bias = self._head
        if out is None or bias is not None:
            logits = linear(hidden, weight, bias)
            return logits if out is None else out.copy_(logits)
        return torch.mm(hidden, weight.T, out=out)

    def logits(self, plan: TritonPlan, keep: Tensor | None, out: Tensor | None = None) -> Tensor:
        """Compute a step; as in `Decoder`."""
        hidden = self.hidden(plan)
        return self.head(hidden if keep is None else hidden.index_select(0, keep), out)


def _rope_table(model: Any) -> tuple[Tensor, Tensor]:
    weight: Tensor = model.model.embed_tokens.weight
    count = int(model.config.max_position_embeddings)
    positions = torch.arange(count, device=weight.device)[None]
    cos, sin = model.model.rotary_emb(weight[:1, None], positions)
    half = cos.shape[-1] // 2
    return cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous()


def _unknown(model: Any) -> str:
    """Return what about a model is not known to `FusedLayer`, "" if nothing."""
    body = getattr(model, "model", None)
    for name in ("embed_tokens", "layers", "norm", "rotary_emb"):
        if not hasattr(body, name):
            return f"{type(model).__name__} has no {name}"
    assert body is not None
    for layer in body.layers:
        kind = type(layer).__name__
        if kind not in KNOWN_LAYERS:
            return f"{kind} is not one of {', '.join(KNOWN_LAYERS)}"
        attention, mlp = layer.self_attn, layer.mlp
        linears = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
        linears += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
        if not all(type(module) is nn.Linear for module in linears):
            return f"{kind} has projections that are not plain linear ones"
        if attention.head_dim not in HEAD_DIMS:
            return f"a head_dim of {attention.head_dim} is not one of {HEAD_DIMS}"
    if model.config.hidden_act != "silu":
        return f"the activation is {model.config.hidden_act}, not silu"
    if type(model.lm_head) is not nn.Linear or type(body.embed_tokens) is not nn.Embedding:
        return "its head or its embedding is not a plain one"
    return ""


def _off(got: Tensor, expected: Tensor) -> float:
    """Return the relative error, infinite where something is not a number."""
    wide = expected.double()
    error = (got.double() - wide).norm() / wide.norm()
    return float(error) if bool(error.isfinite()) else float("inf")


@torch.inference_mode()
def fuse(
    model: PreTrainedModel, pool: KVPool, backend: TritonBackend, plain: PlainDecoder
) -> FusedDecoder | Unfused:
    """Replace a model's layers if all of them are known and compute the same.

    Args:
        model: on the pool's device; its projections' weights become views of joined ones.
        pool: whose trash block the check writes and reads.
        backend: for attention.
        plain: the model bound to `pool`, to check against.
    """
    reason = _unknown(model)
    if reason:
        return Unfused(reason)
    anything: Any = model
    fused = FusedDecoder(model, pool, backend)
    trash = pool.trash_block
    count = min(_CHECK_TOKENS, pool.block_size)
    device = pool.data.device
    generator = torch.Generator(device).manual_seed(0)
    ids = torch.randint(0, model.config.vocab_size, (count,), generator=generator, device=device)
    row = Row(tokens=ids.tolist(), start=0, block_table=[trash])
    step = build_step([row], block_size=pool.block_size, trash_block=trash, device=device)
    plan = backend.plan(step, pool)
    shape = (count, model.config.hidden_size)
    x = torch.randn(shape, generator=generator, device=device).to(pool.data.dtype)
    angles = anything.model.rotary_emb(x[None], step.positions[None])
    for index, (layer, ours) in enumerate(zip(anything.model.layers, fused.layers, strict=True)):
        with attending(backend, plan):
            expected = layer(x[None], position_ids=step.positions[None], position_embeddings=angles)
        kv = pool.data[trash, index, :, :count].clone()
        pool.data[trash, index] = float("nan")
        residual = x.clone()
        added = ours(None, residual, plan, fused.rope)
        got = residual + added
        pairs = ((got - x, expected[0] - x), (pool.data[trash, index, :, :count], kv))
        error = max(_off(*pair) for pair in pairs)
        if error > _LAYER_ERROR[pool.data.dtype]:
            pool.data[trash].zero_()
            return Unfused(f"fused layer {index} is off by {error:.1e}")
    error = _off(fused.logits(plan, None), plain.logits(plan, None))
    pool.data[trash].zero_()
    if error > _MODEL_ERROR[pool.data.dtype]:
        return Unfused(f"the fused model is off by {error:.1e}")
    return fused
