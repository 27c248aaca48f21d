"""Products with few rows, where a library's tiles leave most of the chip idle."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear

FEW = 16
"""Rows that one tile of the tensor cores takes."""
_DEPTHS = (1024, 512, 256)
_WIDE = 2048
_COLUMNS = 64
_STEP = 128


@triton.jit
def _one_row(x_at, w_at, bias, y_at, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
             BIAS: tl.constexpr):  # fmt: skip
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    acc = tl.zeros([BN, BK], tl.float32)
    for at in range(0, K, BK):
        w = tl.load(w_at + n[:, None].to(tl.int64) * K + (at + k)[None, :]).to(tl.float32)
        acc += w * tl.load(x_at + at + k).to(tl.float32)[None, :]
    y = tl.sum(acc, 1)
    if BIAS:
        y += tl.load(bias + n).to(tl.float32)
    tl.store(y_at + n, y.to(y_at.dtype.element_ty))


@triton.jit
def _few_rows(
    x_at, w_at, bias, y_at, rows, width, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, BIAS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.arange(0, BM)
    k = tl.arange(0, BK)
    real = (m < rows)[None, :]
    acc = tl.zeros([BN, BM], tl.float32)
    for at in tl.range(0, K, BK, num_stages=STAGES):
        w = tl.load(w_at + n[:, None].to(tl.int64) * K + (at + k)[None, :])
        x = tl.load(x_at + m[None, :] * K + (at + k)[:, None], mask=real, other=0.0)
        acc = tl.dot(w, x, acc)
    if BIAS:
        acc += tl.load(bias + n).to(tl.float32)[:, None]
    tl.store(y_at + m[None, :] * width + n[:, None], acc.to(y_at.dtype.element_ty), mask=real)


def _is_wide(x: Tensor, weight: Tensor) -> bool:
    """Whether few rows meet so many columns that splitting these alone fills the chip."""
    width, depth = weight.shape
    fits = depth % _STEP == 0 and width % _COLUMNS == 0
    return fits and 1 < len(x) <= FEW and width >= 4 * max(depth, 1024) and x.itemsize == 2


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `x @ weight.T + bias`, `[T, N]`.

    Args:
        x: `[T, K]` contiguous.
        weight: `[N, K]` contiguous.
        bias: `[N]`, if there is one.
    """
    width, depth = weight.shape
    if _is_wide(x, weight):
        y = torch.empty(len(x), width, dtype=x.dtype, device=x.device)
        _few_rows[(width // _COLUMNS,)](
            x, weight, x if bias is None else bias, y, len(x), width,
            K=depth, BM=FEW, BN=_COLUMNS, BK=_STEP, BIAS=bias is not None, STAGES=4, num_warps=4,
        )  # fmt: skip
        return y
    step = next((size for size in _DEPTHS if depth % size == 0), 0)
    rows = 2 if width >= _WIDE else 1
    if len(x) != 1 or not step or width % rows:
        return linear(x, weight, bias)
    y = torch.empty(1, width, dtype=x.dtype, device=x.device)
    _one_row[(width // rows,)](
        x, weight, x if bias is None else bias, y,
        K=depth, BN=rows, BK=step, BIAS=bias is not None, num_warps=4,
    )  # fmt: skip
    return y
