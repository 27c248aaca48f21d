"""A KV pool as transports see it: rows of words, one row a block, and a beacon.

The beacon is a block that no sequence ever gets. It holds a pattern that follows from a number in
this process's offer, so a peer that has moved it can tell, byte for byte, that it reached this
very pool, and that geometry and mapping are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

WORD_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMemory:
    """Where a pool's blocks lie.

    Attributes:
        words: `[block, block_bytes / 8]` int64, contiguous: all blocks, the spare ones too.
        num_blocks: blocks that can be moved: ids from 0 to below this.
        beacon: the id of the block that holds the pattern.
        geometry: what two pools must have in common, as text.
    """

    words: Tensor
    num_blocks: int
    beacon: int
    geometry: str

    @classmethod
    def of(cls, data: Tensor, *, num_blocks: int, beacon: int) -> PoolMemory:
        """View a block-major pool, `[block, ...]` contiguous, without copying.

        Raises: ValueError: it is not contiguous, or a block is no whole number of words.
        """
        block_bytes = data[0].numel() * data.element_size()
        if not data.is_contiguous() or block_bytes % WORD_BYTES:
            raise ValueError(f"a pool of {tuple(data.shape)} cannot be moved by blocks of words")
        if not num_blocks <= beacon < data.shape[0]:
            raise ValueError(f"the beacon must lie beyond the {num_blocks} blocks given out")
        shape = "x".join(str(size) for size in data.shape[1:])
        return cls(
            words=data.detach().view(data.shape[0], -1).view(torch.int64),
            num_blocks=num_blocks,
            beacon=beacon,
            geometry=f"{shape} {str(data.dtype).removeprefix('torch.')}",
        )

    @property
    def device(self) -> torch.device:
        """Where the pool is."""
        return self.words.device

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.words.shape[1] * WORD_BYTES

    def light(self, nonce: int) -> None:
        """Write the pattern of `nonce` into the beacon."""
        self.words[self.beacon].copy_(self.pattern(nonce))
        self.settle()

    def settle(self) -> None:
        """Wait until what this thread's stream does is done: transports use other streams."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def pattern(self, nonce: int) -> Tensor:
        """Return what a pool that was lit with `nonce` holds in its beacon: `[words]`."""
        mixed = torch.arange(self.words.shape[1], dtype=torch.int64, device=self.device)
        mixed = mixed * -7046029254386353131 + nonce  # wraps, alike on every device
        mixed ^= mixed >> 29
        mixed *= -4658895280553007687
        return mixed ^ (mixed >> 32)

    def check(self, blocks: Sequence[int]) -> None:
        """Raise ValueError unless all of `blocks` can be moved."""
        if not all(0 <= block < self.num_blocks for block in blocks):
            raise ValueError(f"block ids must be in [0, {self.num_blocks}), got {list(blocks)}")
