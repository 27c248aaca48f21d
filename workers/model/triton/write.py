"""K/V into the pool: as a model made them, or straight out of one product for q, k and v."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from workers.model.kv import LayerKV

_HEADS_A_PROGRAM = 8


@triton.jit
def _write(
    k_from, v_from, k_at, v_at, slots, k_row, k_head, v_row, v_head, kv_block, kv_slot,
    BLOCK: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, HEADS_PAD: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    h = tl.arange(0, HEADS_PAD)
    d = tl.arange(0, D)
    real = (h < KV_HEADS)[:, None] & (d >= 0)[None, :]
    slot = tl.load(slots + token)
    base = (slot // BLOCK).to(tl.int64) * kv_block + (slot % BLOCK) * kv_slot
    to = base + h[:, None] * D + d[None, :]
    k = tl.load(k_from + token * k_row + h[:, None] * k_head + d[None, :], mask=real)
    v = tl.load(v_from + token * v_row + h[:, None] * v_head + d[None, :], mask=real)
    tl.store(k_at + to, k, mask=real)
    tl.store(v_at + to, v, mask=real)


def write(k: Tensor, v: Tensor, layer: LayerKV, slots: Tensor) -> None:
    """Write K and V of T tokens.

    Args:
        k: `[T, kv_head, head_dim]`, elements of a head adjacent.
        v: like `k`.
        layer: where to.
        slots: `[T]` int32, `block * block_size + offset`.
    """
    tokens, kv_heads, head_dim = k.shape
    _write[(tokens,)](
        k, v, layer.k, layer.v, slots, k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        layer.k.stride(0), layer.k.stride(1),
        BLOCK=layer.k.shape[1], KV_HEADS=kv_heads, D=head_dim,
        HEADS_PAD=triton.next_power_of_2(kv_heads), num_warps=4,
    )  # fmt: skip


@triton.jit
def _rope_write(
    qkv, q_norm, k_norm, cos, sin, positions, slots, k_at, v_at, eps, qkv_row, kv_block, kv_slot,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    NORM: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    h = tl.program_id(1) * STEP + tl.arange(0, STEP)
    i = tl.arange(0, D // 2)
    row = i[None, :]
    real = (h < HEADS + 2 * KV_HEADS)[:, None] & (row >= 0)
    base = qkv + token * qkv_row + h[:, None] * D
    x1 = tl.load(base + row, mask=real, other=0.0)
    x2 = tl.load(base + D // 2 + row, mask=real, other=0.0)
    is_q = (h < HEADS)[:, None]
    is_k = ((h >= HEADS) & (h < HEADS + KV_HEADS))[:, None]
    slot = tl.load(slots + token)
    position = tl.load(positions + token)
    c = tl.load(cos + position * (D // 2) + i).to(tl.float32)[None, :]
    s = tl.load(sin + position * (D // 2) + i).to(tl.float32)[None, :]
    f1 = x1.to(tl.float32)
    f2 = x2.to(tl.float32)
    if NORM:
        spread = tl.rsqrt((tl.sum(f1 * f1, 1) + tl.sum(f2 * f2, 1)) / D + eps)[:, None]
        w1 = tl.where(is_k, tl.load(k_norm + row), tl.load(q_norm + row))
        w2 = tl.where(is_k, tl.load(k_norm + D // 2 + row), tl.load(q_norm + D // 2 + row))
        f1 = ((f1 * spread).to(x1.dtype) * w1).to(tl.float32)
        f2 = ((f2 * spread).to(x2.dtype) * w2).to(tl.float32)
    y1 = (f1 * c - f2 * s).to(x1.dtype)
    y2 = (f2 * c + f1 * s).to(x1.dtype)
    tl.store(base + row, y1, mask=real & is_q)
    tl.store(base + D // 2 + row, y2, mask=real & is_q)
    to = (slot // BLOCK).to(tl.int64) * kv_block + (slot % BLOCK) * kv_slot
    k_to = k_at + to + (h - HEADS)[:, None] * D
    tl.store(k_to + row, y1, mask=real & is_k)
    tl.store(k_to + D // 2 + row, y2, mask=real & is_k)
    v_to = v_at + to + (h - HEADS - KV_HEADS)[:, None] * D
    is_v = real & (h >= HEADS + KV_HEADS)[:, None]
    tl.store(v_to + row, x1, mask=is_v)
    tl.store(v_to + D // 2 + row, x2, mask=is_v)


def rope_write(
    qkv: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    rope: tuple[Tensor, Tensor],
    positions: Tensor,
    slots: Tensor,
    layer: LayerKV,
    *,
    heads: int,
    eps: float,
) -> None:
    """Turn q in place and k on its way into the pool; v goes as it is.

    Args:
        qkv: `[T, (head + 2 * kv_head) * head_dim]`, rows contiguous.
        norms: weights `[head_dim]` of the RMSNorm of each q head and each k head, if there is one.
        rope: cosines and sines, `[position, head_dim / 2]`.
        positions: `[T]` int32.
        slots: `[T]` int32, `block * block_size + offset`.
        layer: where K and V go.
        heads: query heads.
        eps: of the norms.
    """
    block, kv_heads, head_dim = layer.k.shape[1:]
    q_norm, k_norm = norms or (qkv, qkv)
    _rope_write[(len(qkv), triton.cdiv(heads + 2 * kv_heads, _HEADS_A_PROGRAM))](
        qkv, q_norm, k_norm, rope[0], rope[1], positions, slots, layer.k, layer.v, eps,
        qkv.stride(0), layer.k.stride(0), layer.k.stride(1),
        HEADS=heads, KV_HEADS=kv_heads, D=head_dim, BLOCK=block, NORM=norms is not None,
        STEP=_HEADS_A_PROGRAM, num_warps=4,
    )  # fmt: skip
