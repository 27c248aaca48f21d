"""Batches that the device computes, and the blocks it may still touch for them.

Lookahead: the next batch is chosen while one is under way, so that the device need not wait for the
host. Every running sequence is taken to go on: its row computes the token that the step under way
will draw, unless that token is its last in any case. Everything else waits for the facts:

- A sequence that ended meanwhile leaves a row in the newer batch. The row is dropped: nothing of it
  is published or told.
- Blocks that are given back are released when the newest batch is done: the device may still read
  and write them.
- A block is published when its K/V is written and its tokens are known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from workers.core.batch import Batch
from workers.core.blocks import BlockId, BlockPool


class UnderWay:
    """Batches scheduled and not completed, in order, and blocks that wait for them."""

    def __init__(self, pool: BlockPool) -> None:
        """Start with none; blocks are released to `pool`."""
        self._pool = pool
        self._batches: deque[Batch] = deque()
        self._late: deque[tuple[Batch, list[BlockId]]] = deque()

    def __len__(self) -> int:
        """Count the batches."""
        return len(self._batches)

    def launch(self, batch: Batch) -> None:
        """Note what every sequence will have when `batch`, with a row or more, is done."""
        self._batches.append(batch)
        at = 0
        for at, chunk in enumerate(batch.decodes, 1):
            sequence = chunk.sequence
            sequence.launched += 1
            sequence.promised += 1
            sequence.drawn_at = at - 1
        for chunk in batch.prefills:
            sequence = chunk.sequence
            sequence.launched += chunk.length
            if chunk.samples:
                sequence.promised += 1
                sequence.drawn_at = at
                at += 1

    def land(self, batch: Batch, now_s: float) -> None:
        """Note that the oldest batch is done, and release what waited for it.

        Raises: ValueError: it is another one's turn.
        """
        if not self._batches or self._batches[0] is not batch:
            raise ValueError("batches complete once each, in the order they were scheduled in")
        self._batches.popleft()
        while self._late and self._late[0][0] is batch:
            self._pool.release(self._late.popleft()[1], now_s)

    def release(self, blocks: list[BlockId], now_s: float) -> None:
        """Release blocks of one chain, as `BlockPool.release`, once the device is past them."""
        if self._batches:
            self._late.append((self._batches[-1], blocks))
        else:
            self._pool.release(blocks, now_s)

    def held(self) -> Iterator[BlockId]:
        """Yield the blocks that wait to be released."""
        for batch, blocks in self._late:
            assert batch in self._batches, "blocks wait for a batch that is done"
            yield from blocks
