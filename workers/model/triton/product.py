"""Products with few rows, where a library's tiles leave most of the chip idle."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear

_DEPTHS = (1024, 512, 256)
_WIDE = 2048


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


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `x @ weight.T + bias`, `[T, N]`.

    Args:
        x: `[T, K]` contiguous.
        weight: `[N, K]` contiguous.
        bias: `[N]`, if there is one.
    """
    width, depth = weight.shape
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
