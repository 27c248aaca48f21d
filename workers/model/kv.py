"""The KV pool: every block's K and V in one allocation, block-major.

`data` is `[num_blocks + 1, layer, k|v, slot, kv_head, head_dim]`: one block is one contiguous
extent, so moving it is one copy. The block after those given out is trash. Tokens that must not
write (padding, and tokens whose K/V already lies in a shared block) are sent there; nothing ever
reads it. A pool whose blocks are to be moved has one more, the beacon, by which peers know it.

Row view: the pool is also a matrix of `[row, kv_head * head_dim]`, one row for each token's K or V
in one layer. Sliced to begin at one layer's K (or V), the row of a given slot has the same number
in every layer, so the indices of a step are computed once and serve all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lmpoold.text.fingerprint import KVGeometry


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKV:
    """One layer's views of the pool; writing through them writes the pool."""

    k: Tensor  # [num_blocks + 1, slot, kv_head, head_dim], strided
    v: Tensor  # the same
    k_rows: Tensor  # [row, kv_head * head_dim], contiguous; row numbers from KVPool.rows
    v_rows: Tensor  # the same


class KVPool:
    """Blocks of K/V of one model.

    Attributes:
        data: `[num_blocks + 1 (+ 1 with a beacon), layer, k|v, slot, kv_head, head_dim]`.
        num_blocks: blocks that can be given out: ids from 0 to below this.
        trash_block: the id of the block after them, which is never given out.
        beacon_block: the id of the block after that; None in a pool without one.
        block_bytes: bytes of one block.
    """

    def __init__(
        self,
        num_blocks: int,
        geometry: KVGeometry,
        *,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        beacon: bool = False,
    ) -> None:
        if num_blocks <= 0 or block_size <= 0:
            raise ValueError(f"need blocks and slots, got {num_blocks} of {block_size}")
        shape = (
            num_blocks + 1 + beacon,
            geometry.layers,
            2,
            block_size,
            geometry.kv_heads,
            geometry.head_dim,
        )
        # zeros, not empty: a kernel may multiply a masked slot by 0, and 0 * NaN is NaN
        self.data = torch.zeros(shape, dtype=dtype, device=device)
        self.geometry = geometry
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.trash_block = num_blocks
        self.beacon_block = num_blocks + 1 if beacon else None
        self.block_bytes = geometry.block_bytes(block_size, dtype.itemsize)
        self._rows_per_block = geometry.layers * 2 * block_size

    def layer(self, index: int) -> LayerKV:
        """Return the views of layer `index`."""
        matrix = self.data.view(-1, self.geometry.kv_heads * self.geometry.head_dim)
        first = index * 2 * self.block_size
        return LayerKV(
            k=self.data[:, index, 0],
            v=self.data[:, index, 1],
            k_rows=matrix[first:],
            v_rows=matrix[first + self.block_size :],
        )

    def rows(self, slots: Tensor) -> Tensor:
        """Return the row numbers of slots, for `k_rows` and `v_rows` of any layer.

        Args:
            slots: int64 of any shape, `block * block_size + offset`.
        Returns: int64 of the same shape.
        """
        blocks = slots.div(self.block_size, rounding_mode="floor")
        return slots + blocks * (self._rows_per_block - self.block_size)

    def gather(self, ids: Sequence[int]) -> Tensor:
        """Return a packed copy of blocks: `[len(ids), layer, k|v, slot, kv_head, head_dim]`."""
        return self.data.index_select(0, self._index(ids))

    def scatter(self, ids: Sequence[int], packed: Tensor) -> None:
        """Write packed blocks, as `gather` gave them, to the blocks `ids`, which must differ."""
        self.data.index_copy_(0, self._index(ids), packed)

    def _index(self, ids: Sequence[int]) -> Tensor:
        if not all(0 <= block < self.num_blocks for block in ids):
            raise ValueError(f"block ids must be in [0, {self.num_blocks}), got {list(ids)}")
        return torch.tensor(ids, dtype=torch.int64, device=self.data.device)
