"""What the kernels of attention have in common: walking paged K/V, and parting it."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = 1.4426950408889634


@triton.jit
def tokens_a_split(context, splits, BN: tl.constexpr):
    """Return how many tokens each of `splits` programs walks, in whole tiles of `BN`."""
    return tl.maximum(tl.cdiv(tl.cdiv(context, BN), splits), 1) * BN


@triton.jit
def tokens_a_piece(tokens, pieces):
    """Return how many tokens each of at most `pieces` programs walks, so few programs if few."""
    return tl.maximum(tl.cdiv(tl.cdiv(tokens, 64), pieces), 4) * 64


@triton.jit
def walk(
    acc, total, best, q, k_at, v_at, table, head, low, high, context, places, scale,
    kv_block, kv_slot, kv_head,
    D: tl.constexpr, BLOCK: tl.constexpr, BN: tl.constexpr, CUT: tl.constexpr,
    SPLIT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Walk K/V in [low, high), and return the state of a running softmax: acc, total, best.

    `q` is `[M, D]`, at `places` of a sequence of `context` tokens whose blocks `table` begins with.
    `scale` is by log2(e), for weights in powers of two. CUT says that causality or the sequence's
    end may cut here, else both ends are those of whole tiles; SPLIT, that others walk what is
    missing here of what a query sees.
    """
    n = tl.arange(0, BN)
    d = tl.arange(0, D)
    for at in tl.range(low, high, BN, num_stages=STAGES):
        inside = (at + n) < context
        if BLOCK % BN == 0:  # a tile lies in one block
            block = tl.load(table + at // BLOCK).to(tl.int64)
            base = block * kv_block + (at % BLOCK + n) * kv_slot + head * kv_head
        else:
            place = at + n
            block = tl.load(table + place // BLOCK, mask=inside, other=0).to(tl.int64)
            base = block * kv_block + (place % BLOCK) * kv_slot + head * kv_head
        if CUT:  # beyond the end there may be anything, and 0 * NaN is NaN
            k = tl.load(k_at + base[:, None] + d[None, :], mask=inside[:, None], other=0.0)
        else:
            k = tl.load(k_at + base[:, None] + d[None, :])
        score = tl.dot(q, tl.trans(k), input_precision="ieee")
        if CUT:
            score = tl.where((at + n)[None, :] <= places[:, None], score, float("-inf"))
        new_best = tl.maximum(best, tl.max(score, 1) * scale)
        anchor = new_best
        if CUT and SPLIT:  # a query may see nothing of a split, and inf - inf is NaN
            anchor = tl.where(new_best == float("-inf"), 0.0, new_best)
        weight = tl.exp2(score * scale - anchor[:, None])
        decay = tl.exp2(best - anchor)
        total = total * decay + tl.sum(weight, 1)
        acc = acc * decay[:, None]
        if CUT:
            v = tl.load(v_at + base[:, None] + d[None, :], mask=inside[:, None], other=0.0)
        else:
            v = tl.load(v_at + base[:, None] + d[None, :])
        acc = tl.dot(weight.to(v.dtype), v, acc, input_precision="ieee")
        best = new_best
    return acc, total, best
