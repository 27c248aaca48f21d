"""Attention of one query token a sequence over its paged K/V.

One program takes the query heads that share a KV head, padded to 16 rows for the tensor cores, and
walks the sequence's blocks in tiles. Few sequences would leave most of the chip idle, so a sequence
may be split among several programs, whose partial results a second kernel merges. Of a sequence
with fewer tiles than splits, the programs beyond its end return at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from workers.model.kv import LayerKV
from workers.model.triton.shared import PIECES, SharedRows, attend_shared
from workers.model.triton.walk import LOG2_E, tokens_a_piece, tokens_a_split

MAX_SPLITS = 32
_WAVES = 3


@triton.jit
def _decode(
    q_at, k_at, v_at, table, begins, contexts, skips, out, parts, sums, scale,
    q_row, q_head, out_row, out_head, kv_block, kv_slot, kv_head,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, D: tl.constexpr,
    BLOCK: tl.constexpr, BN: tl.constexpr, SPLIT: tl.constexpr, PIECES: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    head, row, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    splits = tl.num_programs(2)
    context = tl.load(contexts + row)
    low = 0
    high = context
    if PIECES:
        low = tl.load(skips + row)
    if SPLIT:
        tokens = tokens_a_split(context - low, splits, BN)
        low += split * tokens
        high = tl.minimum(low + tokens, context)
    g = tl.arange(0, GROUP_PAD)
    d = tl.arange(0, D)
    n = tl.arange(0, BN)
    heads = head * GROUP + g
    real = g < GROUP
    if low < high:  # not for padding, nor beyond a short sequence's end
        begin = tl.load(begins + row)
        q = tl.load(
            q_at + row * q_row + heads[:, None] * q_head + d[None, :],
            mask=real[:, None],
            other=0.0,
        )
        best = tl.full([GROUP_PAD], float("-inf"), tl.float32)
        total = tl.zeros([GROUP_PAD], tl.float32)
        acc = tl.zeros([GROUP_PAD, D], tl.float32)
        for at in tl.range(low, high, BN, num_stages=STAGES):
            inside = (at + n) < high
            if BLOCK % BN == 0:  # a tile lies in one block
                block = tl.load(table + begin + at // BLOCK).to(tl.int64)
                base = block * kv_block + (at % BLOCK + n) * kv_slot + head * kv_head
            else:
                place = at + n
                block = tl.load(table + begin + place // BLOCK, mask=inside, other=0).to(tl.int64)
                base = block * kv_block + (place % BLOCK) * kv_slot + head * kv_head
            k = tl.load(k_at + base[:, None] + d[None, :], mask=inside[:, None], other=0.0)
            v = tl.load(v_at + base[:, None] + d[None, :], mask=inside[:, None], other=0.0)
            score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            score = tl.where(inside[None, :], score, float("-inf"))
            new_best = tl.maximum(best, tl.max(score, 1))
            weight = tl.exp2(score - new_best[:, None])
            decay = tl.exp2(best - new_best)
            total = total * decay + tl.sum(weight, 1)
            acc = acc * decay[:, None]
            acc += tl.dot(weight.to(v.dtype), v, input_precision="ieee")
            best = new_best
        acc = acc / total[:, None]
        if SPLIT or PIECES:
            part = (row * (KV_HEADS * GROUP) + heads) * (splits + PIECES) + split
            tl.store(parts + part[:, None] * D + d[None, :], acc, mask=real[:, None])
            tl.store(sums + part, best + tl.log2(total), mask=real)
        else:
            place_out = out + row * out_row + heads[:, None] * out_head + d[None, :]
            tl.store(place_out, acc.to(out.dtype.element_ty), mask=real[:, None])


@triton.jit
def _merge(
    parts, sums, contexts, skips, out, splits, out_row, out_head,
    HEADS: tl.constexpr, D: tl.constexpr, BN: tl.constexpr, PIECES: tl.constexpr,
    PARTS_PAD: tl.constexpr,
):  # fmt: skip
    head, row = tl.program_id(0), tl.program_id(1)
    context = tl.load(contexts + row)
    s = tl.arange(0, PARTS_PAD)
    d = tl.arange(0, D)
    own = context
    if PIECES:
        skip = tl.load(skips + row)
        own = context - skip
    live = s < tl.cdiv(own, tokens_a_split(own, splits, BN))
    if PIECES:
        pieces = tl.cdiv(skip, tokens_a_piece(skip, PIECES))
        live = live | ((s >= splits) & (s < splits + pieces))
    if context > 0:
        part = (row * HEADS + head) * (splits + PIECES) + s
        best = tl.load(sums + part, mask=live, other=float("-inf"))
        weight = tl.exp2(best - tl.max(best, 0))
        weight = weight / tl.sum(weight, 0)
        values = tl.load(parts + part[:, None] * D + d[None, :], mask=live[:, None], other=0.0)
        merged = tl.sum(values * weight[:, None], 0)
        tl.store(out + row * out_row + head * out_head + d, merged.to(out.dtype.element_ty))


def choose_splits(rows: int, kv_heads: int, processors: int) -> int:
    """Return into how many programs each sequence is split, so that all processors have work.

    A power of two, for which the merge is compiled.
    """
    wanted = -(-processors * _WAVES // (rows * kv_heads))
    return min(MAX_SPLITS, int(triton.next_power_of_2(wanted)))


def decode(
    q: Tensor,
    layer: LayerKV,
    table: Tensor,
    begins: Tensor,
    contexts: Tensor,
    out: Tensor,
    *,
    scale: float,
    splits: int,
    shared: SharedRows | None = None,
) -> None:
    """Attend for the first D tokens, one each of the first D rows.

    Args:
        q: `[at least D, head, head_dim]`, elements of a head adjacent.
        layer: the K/V.
        table: block ids; row r's begin at `begins[r]`.
        begins: `[at least D]` int32.
        contexts: `[D]` int32: tokens of each row's sequence; 0 for a row of padding, whose output
            is left as it is.
        out: like `q`; the first D are written.
        scale: factor on the scores.
        splits: from `choose_splits`.
        shared: rows whose common K/V is read once for all of them.
    """
    rows, (heads, head_dim) = len(contexts), q.shape[1:]
    block, kv_heads = layer.k.shape[1:3]
    parts = sums = out
    pieces = 0 if shared is None else PIECES
    skips = contexts if shared is None else shared.skips
    if splits + pieces > 1:
        count = rows * heads * (splits + pieces)
        parts = torch.empty(count * head_dim, dtype=torch.float32, device=q.device)
        sums = torch.empty(count, dtype=torch.float32, device=q.device)
    if shared is not None:
        attend_shared(q, layer, table, begins, shared, parts, sums, scale=scale, own=splits)
    narrow = q.dtype == torch.float32
    tile, stages, warps = (32, 2, 4) if narrow else (64, 3, 4) if splits > 1 else (32, 6, 2)
    _decode[(kv_heads, rows, splits)](
        q, layer.k, layer.v, table, begins, contexts, skips, out, parts, sums, scale * LOG2_E,
        q.stride(0), q.stride(1), out.stride(0), out.stride(1),
        layer.k.stride(0), layer.k.stride(1), layer.k.stride(2),
        KV_HEADS=kv_heads, GROUP=heads // kv_heads,
        GROUP_PAD=max(16, triton.next_power_of_2(heads // kv_heads)), D=head_dim,
        BLOCK=block, BN=tile, SPLIT=splits > 1, PIECES=pieces, STAGES=stages, num_warps=warps,
    )  # fmt: skip
    if splits + pieces > 1:
        _merge[(heads, rows)](
            parts, sums, contexts, skips, out, splits, out.stride(0), out.stride(1),
            HEADS=heads, D=head_dim, BN=tile, PIECES=pieces,
            PARTS_PAD=triton.next_power_of_2(splits + pieces), num_warps=2,
        )  # fmt: skip
