"""Blocks between two GPUs of one host: the destination's copy engine pulls them from the source.

The source exports its pool's allocation through CUDA IPC and does nothing else. The destination
maps it when the pair is made, then copies each run of neighbouring blocks with one asynchronous
copy on streams of its own. No staging, no multiprocessor on either side, and no waiting for the
peer's process: the copies end by themselves even when it is stopped or dead.

That is why a destination must check the plan before it publishes: memory of a source that died
reads on without an error. A mapping also keeps a dead peer's memory from its successor, so the
pair's end unmaps at once.

Both processes have to see both GPUs: a worker is given its own by `--device cuda:1`, not by a
CUDA_VISIBLE_DEVICES that hides its peers'.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lmpoold.protocol.errors import TransferFailed
from workers.transport import driver
from workers.transport.memory import PoolMemory
from workers.transport.offer import Facts
from workers.transport.streams import seconds_between, side_stream, stopwatch
from workers.transport.wire import Joint

STREAMS = 2
"""Copies go to these in turn: the engine of one sets up while that of the other copies."""


def runs(
    src_blocks: Sequence[int], dst_blocks: Sequence[int], most_blocks: int
) -> Iterator[tuple[int, int, int]]:
    """Join pairs of blocks that are neighbours on both sides.

    Args:
        src_blocks: ids at the source.
        dst_blocks: as many ids at the destination.
        most_blocks: the longest run, at least 1.
    Yields: (first source block, first destination block, blocks).
    """
    begin = 0
    for at in range(1, len(src_blocks) + 1):
        if (
            at < len(src_blocks)
            and at - begin < most_blocks
            and src_blocks[at] == src_blocks[at - 1] + 1
            and dst_blocks[at] == dst_blocks[at - 1] + 1
        ):
            continue
        yield src_blocks[begin], dst_blocks[begin], at - begin
        begin = at


class PeerWire:
    """Implements `wire.Wire` for pools on GPUs of one host."""

    kind = "peer"
    pulls = True

    def __init__(self, memory: PoolMemory, *, streams: int = STREAMS) -> None:
        """Move blocks of `memory`, on so many streams."""
        self._memory = memory
        self._streams = streams

    def facts(self) -> Facts:
        """Return the handle of our pool.

        Raises: TransferFailed: the pool is on no GPU, or its memory cannot be shared.
        """
        if self._memory.device.type != "cuda":
            raise TransferFailed(f"CUDA IPC moves GPU memory, the pool is on {self._memory.device}")
        with torch.cuda.device(self._memory.device):
            torch.cuda.current_stream().synchronize()
            handle, offset = driver.export(self._memory.words.data_ptr())
        return {"handle": handle.hex(), "offset": offset}

    def connect(self, joint: Joint) -> PeerChannel:
        """Map the peer's pool."""
        torch.cuda.set_device(self._memory.device)
        torch.cuda.current_stream().synchronize()  # makes the context current on this thread
        base = driver.map_peer(bytes.fromhex(str(joint.theirs["handle"])))
        streams = [side_stream(self._memory.device) for _ in range(self._streams)]
        return PeerChannel(base, base + int(joint.theirs["offset"]), self._memory, streams)


class PeerChannel:
    """Implements `wire.Channel`."""

    def __init__(
        self, mapping: int, pool: int, memory: PoolMemory, streams: list[torch.cuda.Stream]
    ) -> None:
        """Own a mapping, in which the peer's pool begins at the address `pool`."""
        self._mapping = mapping
        self._pool = pool
        self._block_bytes = memory.block_bytes
        self._device = memory.device
        self._streams = streams
        self._copying = threading.Lock()
        self._aborted = False

    def send(self, blocks: Sequence[int], timeout_s: float) -> float:
        """Nothing to do: the peer pulls."""
        return 0.0

    def receive(
        self, src_blocks: Sequence[int], dst_blocks: Sequence[int], into: Tensor, timeout_s: float
    ) -> float:
        """See `wire.Channel`."""
        with self._copying:
            if self._aborted:
                raise TransferFailed("given up")
            torch.cuda.set_device(self._device)
            first, *others = self._streams
            begin, end = stopwatch()
            begin.record(first)
            for stream in others:
                stream.wait_event(begin)
            target, size = into.data_ptr(), self._block_bytes
            most_blocks = -(-len(src_blocks) // len(self._streams))
            for turn, (src, dst, blocks) in enumerate(runs(src_blocks, dst_blocks, most_blocks)):
                driver.copy(
                    target + dst * size,
                    self._pool + src * size,
                    blocks * size,
                    self._streams[turn % len(self._streams)].cuda_stream,
                )
            for stream in others:
                first.wait_stream(stream)
            end.record(first)
            return seconds_between(begin, end)

    def abort(self) -> None:
        """Wait for the copies, which need nobody to end, and unmap."""
        with self._copying:
            if not self._aborted:
                self._aborted = True
                torch.cuda.set_device(self._device)
                driver.unmap_peer(self._mapping)
