"""Attention of many query tokens a sequence over its paged K/V, part of which may be cached.

A tile of queries of one sequence and one head is one program. It first walks the K/V that all its
queries see, without a mask, then the part where causality or the sequence's end cuts.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from workers.model.kv import LayerKV
from workers.model.triton.decode import LOG2_E

TILE = 64
"""Queries of one program."""


@triton.jit
def _walk(
    acc, total, best, q, k_at, v_at, table, head, low, high, context, places, scale,
    kv_block, kv_slot, kv_head,
    D: tl.constexpr, BLOCK: tl.constexpr, BN: tl.constexpr, CUT: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
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
        weight = tl.exp2(score * scale - new_best[:, None])
        decay = tl.exp2(best - new_best)
        total = total * decay + tl.sum(weight, 1)
        acc = acc * decay[:, None]
        if CUT:
            v = tl.load(v_at + base[:, None] + d[None, :], mask=inside[:, None], other=0.0)
        else:
            v = tl.load(v_at + base[:, None] + d[None, :])
        acc = tl.dot(weight.to(v.dtype), v, acc, input_precision="ieee")
        best = new_best
    return acc, total, best


@triton.jit
def _prefill(
    q_at, k_at, v_at, table, begins, contexts, starts, tile_rows, tile_begins, out, scale,
    q_row, q_head, out_row, out_head, kv_block, kv_slot, kv_head,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    head, tile = tl.program_id(0), tl.program_id(1)
    row = tl.load(tile_rows + tile)
    if row >= 0:
        first = tl.load(tile_begins + tile)
        start = tl.load(starts + row)
        count = tl.load(starts + row + 1) - start
        context = tl.load(contexts + row)
        mine = table + tl.load(begins + row)
        before = context - count
        m = first + tl.arange(0, BM)
        d = tl.arange(0, D)
        real = (m < count)[:, None]
        at = (start + m)[:, None]
        q = tl.load(q_at + at * q_row + head * q_head + d[None, :], mask=real, other=0.0)
        places = before + m
        best = tl.full([BM], float("-inf"), tl.float32)
        total = tl.zeros([BM], tl.float32)
        acc = tl.zeros([BM, D], tl.float32)
        seen_by_all = (before + first + 1) // BN * BN
        high = tl.minimum(context, before + first + BM)
        acc, total, best = _walk(
            acc, total, best, q, k_at, v_at, mine, head // GROUP, 0, seen_by_all, context,
            places, scale, kv_block, kv_slot, kv_head, D, BLOCK, BN, False, STAGES,
        )  # fmt: skip
        acc, total, best = _walk(
            acc, total, best, q, k_at, v_at, mine, head // GROUP, seen_by_all, high, context,
            places, scale, kv_block, kv_slot, kv_head, D, BLOCK, BN, True, STAGES,
        )  # fmt: skip
        acc = acc / total[:, None]
        place_out = out + at * out_row + head * out_head + d[None, :]
        tl.store(place_out, acc.to(out.dtype.element_ty), mask=real)


def prefill(
    q: Tensor,
    layer: LayerKV,
    table: Tensor,
    begins: Tensor,
    contexts: Tensor,
    starts: Tensor,
    tile_rows: Tensor,
    tile_begins: Tensor,
    out: Tensor,
    *,
    scale: float,
) -> None:
    """Attend for the queries of some tiles.

    Args:
        q: `[T, head, head_dim]`, elements of a head adjacent.
        layer: the K/V, this step's included.
        table: block ids; row r's begin at `begins[r]`.
        begins: `[S]` int32.
        contexts: `[S]` int32: tokens of each row's sequence, this step's included.
        starts: `[S + 1]` int32: where each row's queries begin in [0, T].
        tile_rows: `[tiles]` int32: the row of each tile, -1 for none.
        tile_begins: `[tiles]` int32: the tile's first query, counted in its row; tiles are `TILE`
            long.
        out: like `q`; the tiles' queries are written.
        scale: factor on the scores.
    """
    heads, head_dim = q.shape[1:]
    block, kv_heads = layer.k.shape[1:3]
    narrow = q.dtype == torch.float32
    _prefill[(heads, len(tile_rows))](
        q, layer.k, layer.v, table, begins, contexts, starts, tile_rows, tile_begins, out,
        scale * LOG2_E, q.stride(0), q.stride(1), out.stride(0), out.stride(1),
        layer.k.stride(0), layer.k.stride(1), layer.k.stride(2),
        GROUP=heads // kv_heads, D=head_dim, BLOCK=block, BM=TILE, BN=32 if narrow else 64,
        STAGES=2 if narrow else 5, num_warps=4,
    )  # fmt: skip
