"""Attention of many sequences' query tokens over the K/V that all of them begin with.

A decoding sequence has one query token a head, and reading its K/V is all the work there is. Of
sequences that share a prefix this work is the same, so a tile of them reads it once: their queries
stand one under another, as those of a prefill do, and fill the tensor cores. What each sequence has
of its own is `decode`'s; `decode` merges both.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from workers.model.kv import LayerKV
from workers.model.sharing import TILE_ROWS
from workers.model.triton.walk import LOG2_E, tokens_a_piece, walk

PIECES = 16
"""Programs among which shared K/V is divided, where it is long enough."""
_QUERIES = 64


@dataclass(frozen=True, slots=True)
class SharedRows:
    """Tiles of rows on the device, all int32; see `sharing.Shared`."""

    rows: Tensor  # [tiles * TILE_ROWS]: the rows of each tile, then -1
    tokens: Tensor  # [tiles]: what they share, 0 for no tile
    skips: Tensor  # [D]: the same for each decoding row, 0 where it shares nothing


@triton.jit
def _attend_shared(
    q_at, k_at, v_at, table, begins, tile_rows, tile_tokens, parts, sums, scale, own,
    q_row, q_head, kv_block, kv_slot, kv_head,
    HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, ROWS: tl.constexpr,
    TILE_ROWS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, BN: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    head, slice_, piece = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    pieces = tl.num_programs(2)
    tokens = tl.load(tile_tokens + slice_ * ROWS // TILE_ROWS)
    each = tokens_a_piece(tokens, pieces)
    low = piece * each
    high = tl.minimum(low + each, tokens)
    first = tl.load(tile_rows + slice_ * ROWS)
    if (low < high) & (first >= 0):
        m = tl.arange(0, ROWS * GROUP_PAD)
        d = tl.arange(0, D)
        row = tl.load(tile_rows + slice_ * ROWS + m // GROUP_PAD)
        heads = head * GROUP + m % GROUP_PAD
        real = (row >= 0) & (m % GROUP_PAD < GROUP)
        q = tl.load(
            q_at + row[:, None] * q_row + heads[:, None] * q_head + d[None, :],
            mask=real[:, None],
            other=0.0,
        )
        best = tl.full([ROWS * GROUP_PAD], float("-inf"), tl.float32)
        total = tl.zeros([ROWS * GROUP_PAD], tl.float32)
        acc = tl.zeros([ROWS * GROUP_PAD, D], tl.float32)
        mine = table + tl.load(begins + first)
        acc, total, best = walk(
            acc, total, best, q, k_at, v_at, mine, head, low, high, high, m, scale,
            kv_block, kv_slot, kv_head, D, BLOCK, BN, False, False, STAGES,
        )  # fmt: skip
        part = (row * HEADS + heads) * (own + pieces) + own + piece
        tl.store(parts + part[:, None] * D + d[None, :], acc / total[:, None], mask=real[:, None])
        tl.store(sums + part, best + tl.log2(total), mask=real)


def attend_shared(
    q: Tensor,
    layer: LayerKV,
    table: Tensor,
    begins: Tensor,
    shared: SharedRows,
    parts: Tensor,
    sums: Tensor,
    *,
    scale: float,
    own: int,
) -> None:
    """Attend over what tiles of rows share.

    Args:
        q: `[at least D, head, head_dim]`, elements of a head adjacent.
        layer: the K/V.
        table: block ids; row r's begin at `begins[r]`.
        begins: `[at least D]` int32.
        shared: who shares what.
        parts: `[D, head, own + PIECES, head_dim]` float32; the last `PIECES` are written, as far
            as there are tokens for them.
        sums: `[D, head, own + PIECES]` float32: log2 of the sum that each part was divided by.
        scale: factor on the scores.
        own: parts that are somebody else's.
    """
    heads, head_dim = q.shape[1:]
    block, kv_heads = layer.k.shape[1:3]
    group = heads // kv_heads
    padded = triton.next_power_of_2(group)
    rows = min(TILE_ROWS, max(1, _QUERIES // padded))
    narrow = q.dtype.itemsize == 4
    slices = len(shared.tokens) * TILE_ROWS // rows
    _attend_shared[(kv_heads, slices, PIECES)](
        q, layer.k, layer.v, table, begins, shared.rows, shared.tokens, parts, sums,
        scale * LOG2_E, own, q.stride(0), q.stride(1),
        layer.k.stride(0), layer.k.stride(1), layer.k.stride(2),
        HEADS=heads, GROUP=group, GROUP_PAD=padded, ROWS=rows, TILE_ROWS=TILE_ROWS, D=head_dim,
        BLOCK=block, BN=32 if narrow else 64, STAGES=2 if narrow else 3, num_warps=4,
    )  # fmt: skip
