"""Blocks between two CPU pools over torch.distributed's gloo.

Each pair is a process group of its own; the lower rank's process hosts the store through which the
two find each other. Blocks are packed into a buffer, sent and unpacked a chunk at a time.

Gloo cannot be interrupted: a thread that waits for a stopped peer stays until the wait's own time
is up. So gloo never sees the pool, only buffers, and `abort` just makes sure that no copy between
buffer and pool is going on or will begin.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from lmpoold.protocol.errors import TransferFailed
from workers.transport.groups import Group, listen_store, pair_store
from workers.transport.memory import PoolMemory
from workers.transport.offer import Facts
from workers.transport.wire import Joint

CHUNK_BYTES = 8 * 2**20


class GlooWire:
    """Implements `wire.Wire` for pools in main memory."""

    kind = "gloo"
    pulls = False

    def __init__(self, memory: PoolMemory, *, host: str = "127.0.0.1") -> None:
        """Move blocks of `memory`; `host` is an address of ours that peers reach."""
        self._memory = memory
        self._host = host
        self._store: TCPStore | None = None

    def facts(self) -> Facts:
        """Return where the store is.

        Raises: TransferFailed: the pool is not in main memory, or this torch has no gloo.
        """
        if self._memory.device.type != "cpu":
            raise TransferFailed(f"gloo moves main memory, the pool is on {self._memory.device}")
        if not dist.is_gloo_available():
            raise TransferFailed("this build of torch has no gloo")
        if self._store is None:
            self._store = listen_store(self._host)
        return {"host": self._host, "port": self._store.port}

    def connect(self, joint: Joint) -> GlooChannel:
        """See `wire.Wire`."""
        assert self._store is not None
        kind: Any = dist.ProcessGroupGloo
        options = kind._Options()
        options._devices = [kind.create_device(hostname=self._host)]
        options._timeout = timedelta(seconds=joint.timeout_s)
        options._threads = 1
        group = kind(pair_store(self._store, joint), 0 if joint.low else 1, 2, options)
        return GlooChannel(group, self._memory, low=joint.low)


class GlooChannel:
    """Implements `wire.Channel`."""

    def __init__(self, group: Group, memory: PoolMemory, *, low: bool) -> None:
        """Own the pair's group."""
        self._group = group
        self._memory = memory
        self._peer = 1 if low else 0
        self._out_tag, self._in_tag = (0, 1) if low else (1, 0)
        self._chunk_blocks = max(1, CHUNK_BYTES // memory.block_bytes)
        self._touching = threading.Lock()
        self._aborted = False

    def send(self, blocks: Sequence[int], timeout_s: float) -> float:
        """See `wire.Channel`."""
        begin_s = time.monotonic()
        for first in range(0, len(blocks), self._chunk_blocks):
            part = torch.tensor(blocks[first : first + self._chunk_blocks])
            with self._touching:
                self._check()
                buffer = self._memory.words.index_select(0, part)
            left_s = begin_s + timeout_s - time.monotonic()
            self._group.send([buffer], self._peer, self._out_tag).wait(_wait(left_s))
        return time.monotonic() - begin_s

    def receive(
        self, src_blocks: Sequence[int], dst_blocks: Sequence[int], into: Tensor, timeout_s: float
    ) -> float:
        """See `wire.Channel`."""
        begin_s = time.monotonic()
        for first in range(0, len(dst_blocks), self._chunk_blocks):
            part = torch.tensor(dst_blocks[first : first + self._chunk_blocks])
            # A new buffer each time: a wait that was given up may still fill the old one.
            buffer = torch.empty((len(part), into.shape[1]), dtype=torch.int64)
            left_s = begin_s + timeout_s - time.monotonic()
            self._group.recv([buffer], self._peer, self._in_tag).wait(_wait(left_s))
            with self._touching:
                self._check()
                into.index_copy_(0, part, buffer)
        return time.monotonic() - begin_s

    def abort(self) -> None:
        """See `wire.Channel`."""
        with self._touching:
            self._aborted = True

    def _check(self) -> None:
        if self._aborted:
            raise TransferFailed("given up")


def _wait(left_s: float) -> timedelta:
    """Return a wait for gloo, to which zero means for ever."""
    return timedelta(seconds=max(left_s, 0.001))
