"""What lies between the products: residual and norm, gated activation, ids of the step before."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 1024


@triton.jit
def _add_norm(
    delta, residual, weight, out, eps, N: tl.constexpr, PAD: tl.constexpr, ADD: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PAD)
    real = i < N
    x = tl.load(residual + token * N + i, mask=real, other=0.0)
    if ADD:
        x = x + tl.load(delta + token * N + i, mask=real, other=0.0)
        tl.store(residual + token * N + i, x, mask=real)
    wide = x.to(tl.float32)
    spread = tl.rsqrt(tl.sum(wide * wide, 0) / N + eps)
    w = tl.load(weight + i, mask=real, other=0.0)
    tl.store(out + token * N + i, (wide * spread).to(x.dtype) * w, mask=real)


def add_norm(delta: Tensor | None, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add `delta` to `residual` in place and return the RMSNorm of the sum.

    Args:
        delta: `[T, hidden]`, or None to add nothing.
        residual: like `delta`; contiguous.
        weight: `[hidden]`.
        eps: of the norm.
    Returns: `[T, hidden]`.
    """
    tokens, hidden = residual.shape
    out = torch.empty_like(residual)
    pad = triton.next_power_of_2(hidden)
    _add_norm[(tokens,)](
        residual if delta is None else delta, residual, weight, out, eps,
        N=hidden, PAD=pad, ADD=delta is not None, num_warps=min(8, max(1, pad // 256)),
    )  # fmt: skip
    return out


@triton.jit
def _gate(both, out, N: tl.constexpr, TILE: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * TILE + tl.arange(0, TILE)
    real = i < N
    gate = tl.load(both + token * 2 * N + i, mask=real, other=0.0)
    up = tl.load(both + token * 2 * N + N + i, mask=real, other=0.0)
    wide = gate.to(tl.float32)
    tl.store(out + token * N + i, (wide / (1.0 + tl.exp(-wide))).to(gate.dtype) * up, mask=real)


def gate(both: Tensor) -> Tensor:
    """Return `silu(gate) * up`, `[T, N]`, of `[T, gate | up]`, `[T, 2 * N]` contiguous."""
    tokens, width = both.shape
    out = torch.empty(tokens, width // 2, dtype=both.dtype, device=both.device)
    _gate[(tokens, triton.cdiv(width // 2, _TILE))](
        both, out, N=width // 2, TILE=_TILE, num_warps=4
    )
    return out


@triton.jit
def _take(ids, after, drawn, count, TILE: tl.constexpr):
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    which = tl.load(after + i, mask=i < count, other=-1)
    token = tl.load(drawn + which, mask=which >= 0, other=0)
    tl.store(ids + i, token.to(tl.int32), mask=which >= 0)


def take(ids: Tensor, after: Tensor, drawn: Tensor) -> None:
    """Replace ids by tokens of the step before.

    Args:
        ids: `[T]` int32, changed in place.
        after: `[T]` int32: which of `drawn` to take, -1 to leave the id.
        drawn: int64, the tokens that the step before chose.
    """
    _take[(triton.cdiv(len(ids), _TILE),)](ids, after, drawn, len(ids), TILE=_TILE, num_warps=4)
