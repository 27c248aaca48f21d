"""Blocks between two GPUs over NCCL, packed: gather, send and scatter of successive chunks overlap.

Each pair has two communicators of its own, one a direction, made outside torch's world group: a
communicator that waits for a dead peer then holds up nothing else. Each half runs on streams of
its own, so the model's stream waits for nothing here.

What a dead or stopped peer does to NCCL decides the rest. A send towards it never ends and no error
is ever reported; aborting the communicator from another thread frees the stream within a second
and leaves the context whole. torch's watchdog, left on, would end the whole process instead: it is
told to keep out, and the pair's own deadlines decide.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from lmpoold.protocol.errors import TransferFailed
from workers.transport.groups import Group, listen_store, pair_store
from workers.transport.memory import PoolMemory
from workers.transport.offer import Facts
from workers.transport.streams import seconds_between, side_stream, stopwatch
from workers.transport.wire import Joint

CHUNK_BYTES = 128 * 2**20
"""NCCL gives a message a channel for each 16 MiB: a smaller chunk leaves half of them idle."""
SLOTS = 2
"""Chunks staged a direction: one is packed or unpacked while the other is on the wire."""
PROGRAMS = 128
"""Programs of a gather or scatter where NCCL is not limited either."""
PROGRAMS_A_CTA = 2
"""Where it is limited: packing, too, takes its multiprocessors from the model."""
_NEVER = timedelta(days=1)
_KEEP_OUT = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}


class NcclWire:
    """Implements `wire.Wire` for pools on GPUs."""

    kind = "nccl"
    pulls = False

    def __init__(
        self,
        memory: PoolMemory,
        *,
        host: str = "127.0.0.1",
        max_ctas: int | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """Move blocks of `memory`.

        Args:
            memory: our pool.
            host: an address of ours that peers reach.
            max_ctas: the most multiprocessors a communicator takes; None for NCCL's choice.
            chunk_bytes: of a chunk, where a block is not larger; `SLOTS` of them a direction are
                allocated for each pair.
        """
        self._memory = memory
        self._host = host
        self._max_ctas = max_ctas
        self._chunk_blocks = max(1, chunk_bytes // memory.block_bytes)
        self._store: TCPStore | None = None

    def facts(self) -> Facts:
        """Return where the store is.

        Raises: TransferFailed: the pool is on no GPU, or NCCL or Triton is not there.
        """
        if self._memory.device.type != "cuda":
            raise TransferFailed(f"NCCL moves GPU memory, the pool is on {self._memory.device}")
        if not dist.is_nccl_available() or find_spec("triton") is None:
            raise TransferFailed("this build of torch has no NCCL, or there is no triton")
        os.environ.update(_KEEP_OUT)
        if self._store is None:
            self._store = listen_store(self._host)
        return {"host": self._host, "port": self._store.port, "chunk_blocks": self._chunk_blocks}

    def connect(self, joint: Joint) -> NcclChannel:
        """See `wire.Wire`. The communicators themselves are made by the first block each way.

        Making one waits for ever if the peer dies meanwhile, so that is for threads only.
        """
        assert self._store is not None
        torch.cuda.set_device(self._memory.device)
        store = pair_store(self._store, joint)
        upward = self._communicator(PrefixStore("up", store), joint)
        downward = self._communicator(PrefixStore("down", store), joint)
        limit = self._max_ctas
        return NcclChannel(
            self._memory,
            outward=upward if joint.low else downward,
            inward=downward if joint.low else upward,
            peer=1 if joint.low else 0,
            chunk_blocks=min(self._chunk_blocks, int(joint.theirs["chunk_blocks"])),
            programs=PROGRAMS if limit is None else PROGRAMS_A_CTA * limit,
        )

    def _communicator(self, store: Store, joint: Joint) -> Group:
        kind: Any = dist.ProcessGroupNCCL
        options = kind.Options()
        options._timeout = _NEVER
        options.is_high_priority_stream = True  # as streams.side_stream, and for the same reason
        if self._max_ctas is not None:
            options.config.max_ctas = self._max_ctas
        options.global_ranks_in_group = [0, 1]
        options.group_name = joint.session
        group: Group = kind(store, 0 if joint.low else 1, 2, options)
        return group


class NcclChannel:
    """Implements `wire.Channel`."""

    def __init__(
        self,
        memory: PoolMemory,
        *,
        outward: Group,
        inward: Group,
        peer: int,
        chunk_blocks: int,
        programs: int,
    ) -> None:
        """Own two communicators; both sides cut moves into chunks of `chunk_blocks`."""
        self._memory = memory
        self._outward = outward
        self._inward = inward
        self._peer = peer
        self._chunk_blocks = chunk_blocks
        self._programs = programs
        device = memory.device
        self._send_gather = side_stream(device)
        self._receive_gate = side_stream(device)
        self._receive_scatter = side_stream(device)
        self._staged: dict[str, list[Tensor]] = {}
        self._sending = threading.Lock()
        self._receiving = threading.Lock()
        self._aborted = False

    def send(self, blocks: Sequence[int], timeout_s: float) -> float:
        """See `wire.Channel`; the pair keeps the time, nothing here gives up by itself."""
        from workers.transport import pack

        gathering = self._send_gather
        with self._half(self._sending, gathering), torch.cuda.stream(gathering):
            slots = self._slots("send")
            ids = torch.tensor(blocks, dtype=torch.int64, device=self._memory.device)
            begin, end = stopwatch()
            begin.record(gathering)
            sent: list[Any] = []
            for turn, part in enumerate(torch.split(ids, self._chunk_blocks)):
                if turn >= SLOTS:
                    sent[turn - SLOTS].wait()  # the stream waits, not the thread
                packed = slots[turn % SLOTS][: len(part)]
                pack.gather(self._memory.words, part, packed, self._programs)
                sent.append(self._outward.send([packed], self._peer, 0))
            for work in sent[-SLOTS:]:
                work.wait()
            end.record(gathering)
            seconds = seconds_between(begin, end)
            self._check()
            return seconds

    def receive(
        self, src_blocks: Sequence[int], dst_blocks: Sequence[int], into: Tensor, timeout_s: float
    ) -> float:
        """See `wire.Channel`; times like `send`."""
        from workers.transport import pack

        gate, scattering = self._receive_gate, self._receive_scatter
        with self._half(self._receiving, gate, scattering):
            with torch.cuda.stream(scattering):
                slots = self._slots("receive")
                ids = torch.tensor(dst_blocks, dtype=torch.int64, device=self._memory.device)
                begin, end = stopwatch()
                begin.record(scattering)
            gate.wait_event(begin)
            emptied: list[torch.cuda.Event] = []
            for turn, part in enumerate(torch.split(ids, self._chunk_blocks)):
                packed = slots[turn % SLOTS][: len(part)]
                if turn >= SLOTS:
                    gate.wait_event(emptied[turn - SLOTS])
                with torch.cuda.stream(gate):  # NCCL waits for what is on the current stream
                    work = self._inward.recv([packed], self._peer, 0)
                with torch.cuda.stream(scattering):
                    work.wait()
                    pack.scatter(packed, into, part, self._programs)
                    emptied.append(scattering.record_event())
            end.record(scattering)
            seconds = seconds_between(begin, end)
            self._check()
            return seconds

    def abort(self) -> None:
        """Abort both communicators, then wait until each half has left the pool."""
        if self._aborted:
            return
        self._aborted = True
        aborting = [threading.Thread(target=g.abort) for g in (self._outward, self._inward)]
        for thread in aborting:  # each takes half a second
            thread.start()
        for thread in aborting:
            thread.join()
        with self._sending, self._receiving:
            self._staged.clear()

    @contextmanager
    def _half(self, busy: threading.Lock, *streams: torch.cuda.Stream) -> Iterator[None]:
        """Hold one direction; whatever happens, leave only when its streams are empty."""
        with busy:
            self._check()
            torch.cuda.set_device(self._memory.device)
            try:
                yield
            finally:
                for stream in streams:
                    stream.synchronize()

    def _check(self) -> None:
        if self._aborted:
            raise TransferFailed("given up")

    def _slots(self, half: str) -> list[Tensor]:
        if half not in self._staged:
            shape = (self._chunk_blocks, self._memory.words.shape[1])
            device = self._memory.device
            self._staged[half] = [
                torch.empty(shape, dtype=torch.int64, device=device) for _ in range(SLOTS)
            ]
        return self._staged[half]
