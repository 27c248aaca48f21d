"""Copies blocks between a pool and a packed buffer on the GPU, at the memory's speed.

One kernel for both directions: rows of words by index. torch's index_select reaches a third of the
bandwidth on such rows. A few dozen programs suffice to outrun the wire, and leave the rest of the
GPU to the model.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

TILE_WORDS = 2048
WARPS = 8


@triton.jit  # type: ignore[untyped-decorator]
def _copy_rows(  # type: ignore[no-untyped-def]
    source, target, source_rows, target_rows, words, tiles, units, TILE: tl.constexpr
):
    """Copy row `source_rows[i]` to `target_rows[i]`, or row i where there is no index."""
    lane = tl.arange(0, TILE)
    for unit in range(tl.program_id(0), units, tl.num_programs(0)):
        row = unit // tiles
        at = (unit % tiles) * TILE + lane
        inside = at < words
        here = row.to(tl.int64)
        there = here
        if source_rows is not None:
            here = tl.load(source_rows + row)
        if target_rows is not None:
            there = tl.load(target_rows + row)
        tl.store(target + there * words + at, tl.load(source + here * words + at, inside), inside)


def gather(pool: Tensor, blocks: Tensor, packed: Tensor, programs: int) -> None:
    """Copy blocks of a pool to the rows of a buffer.

    Args:
        pool: `[block, words]` int64.
        blocks: `[n]` int64.
        packed: `[n, words]` int64.
        programs: how many run; each takes a part of a multiprocessor.
    """
    _launch(pool, packed, blocks, None, len(blocks), programs)


def scatter(packed: Tensor, pool: Tensor, blocks: Tensor, programs: int) -> None:
    """Copy the rows of a buffer to blocks of a pool; arguments as in `gather`."""
    _launch(packed, pool, None, blocks, len(blocks), programs)


def _launch(
    source: Tensor,
    target: Tensor,
    source_rows: Tensor | None,
    target_rows: Tensor | None,
    rows: int,
    programs: int,
) -> None:
    words = source.shape[1]
    tiles = triton.cdiv(words, TILE_WORDS)
    _copy_rows[(min(programs, rows * tiles),)](
        source,
        target,
        source_rows,
        target_rows,
        words,
        tiles,
        rows * tiles,
        TILE=TILE_WORDS,
        num_warps=WARPS,
    )
