"""Attention of many query tokens a sequence over its paged K/V, part of which may be cached.

A tile of queries of one sequence and one head is one program. It first walks the K/V that all its
queries see, without a mask, then the part where causality or the sequence's end cuts. A short step
over a long cached prefix has few tiles, each with far to walk: what a tile sees is then split among
several programs, as in decoding, whose partial results a second kernel merges.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from workers.model.kv import LayerKV
from workers.model.triton.walk import LOG2_E, tokens_a_split, walk

TILE = 64
"""Queries of one program."""
MAX_SPLITS = 8
"""Of a tile: more leave each too little to walk."""


@triton.jit
def _prefill(
    q_at, k_at, v_at, table, begins, contexts, starts, tile_rows, tile_begins, out, parts, sums,
    scale, q_row, q_head, out_row, out_head, kv_block, kv_slot, kv_head,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, SPLIT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    head, tile, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
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
        low = 0
        high = tl.minimum(context, before + first + BM)
        if SPLIT:
            tokens = tokens_a_split(high, tl.num_programs(2), BN)
            low = split * tokens
            high = tl.minimum(low + tokens, high)
            seen_by_all = tl.minimum(tl.maximum(seen_by_all, low), high)
        acc, total, best = walk(
            acc, total, best, q, k_at, v_at, mine, head // GROUP, low, seen_by_all, context,
            places, scale, kv_block, kv_slot, kv_head, D, BLOCK, BN, False, SPLIT, STAGES,
        )  # fmt: skip
        acc, total, best = walk(
            acc, total, best, q, k_at, v_at, mine, head // GROUP, seen_by_all, high, context,
            places, scale, kv_block, kv_slot, kv_head, D, BLOCK, BN, True, SPLIT, STAGES,
        )  # fmt: skip
        if SPLIT:
            part = (tile * tl.num_programs(0) + head) * tl.num_programs(2) + split
            part = part * BM + tl.arange(0, BM)
            if low < high:
                tl.store(parts + part[:, None] * D + d[None, :], acc)
                tl.store(sums + part * 2, best)
                tl.store(sums + part * 2 + 1, total)
        else:
            acc = acc / total[:, None]
            place_out = out + at * out_row + head * out_head + d[None, :]
            tl.store(place_out, acc.to(out.dtype.element_ty), mask=real)


@triton.jit
def _merge_tiles(
    parts, sums, contexts, starts, tile_rows, tile_begins, out, splits, out_row, out_head,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    head, tile = tl.program_id(0), tl.program_id(1)
    row = tl.load(tile_rows + tile)
    if row >= 0:
        first = tl.load(tile_begins + tile)
        start = tl.load(starts + row)
        count = tl.load(starts + row + 1) - start
        context = tl.load(contexts + row)
        high = tl.minimum(context, context - count + first + BM)
        live = tl.cdiv(high, tokens_a_split(high, splits, BN))
        m = tl.arange(0, BM)
        d = tl.arange(0, D)
        begin = (tile * tl.num_programs(0) + head) * splits * BM + m
        best = tl.load(sums + begin * 2)  # every query sees the first token
        total = tl.load(sums + begin * 2 + 1)
        acc = tl.load(parts + begin[:, None] * D + d[None, :])
        for split in range(1, live):
            part = begin + split * BM
            other = tl.load(sums + part * 2)
            new_best = tl.maximum(best, other)
            mine = tl.exp2(best - new_best)
            theirs = tl.exp2(other - new_best)
            total = total * mine + tl.load(sums + part * 2 + 1) * theirs
            values = tl.load(parts + part[:, None] * D + d[None, :])
            acc = acc * mine[:, None] + values * theirs[:, None]
            best = new_best
        at = (start + first + m)[:, None]
        place_out = out + at * out_row + head * out_head + d[None, :]
        real = (first + m < count)[:, None]
        tl.store(place_out, (acc / total[:, None]).to(out.dtype.element_ty), mask=real)


def choose_tile_splits(tokens: int, heads: int, processors: int) -> int:
    """Return among how many programs the K/V of each tile is split, a power of two.

    A processor holds one program: there are as many as fill the processors, and no second round.

    Args:
        tokens: of the step.
        heads: of the queries.
        processors: of the device.
    """
    wanted = processors // (-(-tokens // TILE) * heads)
    return 1 << (min(MAX_SPLITS, max(1, wanted)).bit_length() - 1)


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
    splits: int = 1,
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
        splits: from `choose_tile_splits`.
    """
    heads, head_dim = q.shape[1:]
    block, kv_heads = layer.k.shape[1:3]
    narrow = q.dtype == torch.float32
    places = 32 if narrow else 64
    parts = sums = out
    if splits > 1:
        queries = len(tile_rows) * heads * splits * TILE
        parts = torch.empty(queries * head_dim, dtype=torch.float32, device=q.device)
        sums = torch.empty(queries * 2, dtype=torch.float32, device=q.device)
    _prefill[(heads, len(tile_rows), splits)](
        q, layer.k, layer.v, table, begins, contexts, starts, tile_rows, tile_begins, out, parts,
        sums, scale * LOG2_E, q.stride(0), q.stride(1), out.stride(0), out.stride(1),
        layer.k.stride(0), layer.k.stride(1), layer.k.stride(2),
        GROUP=heads // kv_heads, D=head_dim, BLOCK=block, BM=TILE, BN=places, SPLIT=splits > 1,
        STAGES=2 if narrow else 5, num_warps=4,
    )  # fmt: skip
    if splits > 1:
        _merge_tiles[(heads, len(tile_rows))](
            parts, sums, contexts, starts, tile_rows, tile_begins, out, splits, out.stride(0),
            out.stride(1), D=head_dim, BM=TILE, BN=places, num_warps=4,
        )  # fmt: skip
