"""One side of the transfer benchmark as a process of its own: a GPU, a pool, a transport, a load.

Reads commands from stdin, one JSON list `[number, verb, arguments]` a line, and answers each with
a line of JSON on stdout. Commands run as tasks, so several can be under way.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.micro.decode_load import DecodeLoad
from lmpoold.protocol.errors import LMPoolError, TransferFailed
from lmpoold.text.fingerprint import KVGeometry
from workers.model.kv import KVPool
from workers.transport.groups import listen_store
from workers.transport.memory import PoolMemory
from workers.transport.nccl import NcclWire
from workers.transport.peer import PeerWire
from workers.transport.port import Move
from workers.transport.transport import PairTransport
from workers.transport.wire import Wire

QWEN3_06B = KVGeometry(layers=28, kv_heads=8, head_dim=128)
DEADLINE_S = 20.0


def wire_of(way: str, memory: PoolMemory) -> Wire:
    """Return a way by the benchmark's name for it: kind, then options: `nccl:max_ctas=8`."""
    kind, _, rest = way.partition(":")
    options = {name: int(value) for name, value in (o.split("=") for o in rest.split(",") if o)}
    if kind == "peer":
        return PeerWire(memory, **options)
    return NcclWire(memory, **options)  # type: ignore[arg-type]


def content(seed: int, block: int, words: int, device: torch.device) -> torch.Tensor:
    """Return what a block holds that was filled with `seed`, on whichever side."""
    generator = torch.Generator(device).manual_seed(seed * 1_000_003 + block)
    return torch.randint(
        -(2**63), 2**63 - 1, (words,), dtype=torch.int64, device=device, generator=generator
    )


class Side:
    """What the commands act on."""

    def __init__(self, rank: int, device: str) -> None:
        """Be rank `rank` on `device`."""
        self.rank = rank
        self.peer = 1 - rank
        self.device = torch.device(device)
        torch.cuda.set_device(self.device)
        self.memory: PoolMemory | None = None
        self.transport: PairTransport | None = None
        self.load: DecodeLoad | None = None
        self.going = False
        self.lag_s = 0.0
        self.failed: dict[str, Any] | None = None

    async def watch_lag(self) -> None:
        """Keep the worst lateness of this loop."""
        while True:
            at_s = time.perf_counter()
            await asyncio.sleep(0.001)
            self.lag_s = max(self.lag_s, time.perf_counter() - at_s - 0.001)

    async def pool(self, block_tokens: int, blocks: int) -> dict[str, Any]:
        """Have a pool of so many blocks; frees the earlier one."""
        if self.transport is not None:
            await self.transport.stop()
        self.memory = self.transport = None
        torch.cuda.empty_cache()
        pool = KVPool(
            blocks,
            QWEN3_06B,
            block_size=block_tokens,
            dtype=torch.bfloat16,
            device=self.device,
            beacon=True,
        )
        assert pool.beacon_block is not None
        self.memory = PoolMemory.of(pool.data, num_blocks=blocks, beacon=pool.beacon_block)
        return {"block_bytes": self.memory.block_bytes}

    async def transport_of(self, way: str) -> str:
        """Have a transport of one way over the pool; returns its offer."""
        assert self.memory is not None
        if self.transport is not None:
            await self.transport.stop()
        self.transport = PairTransport(self.rank, self.memory, [wire_of(way, self.memory)])
        await self.transport.start()
        return self.transport.offer()

    async def offer(self) -> str:
        """Return the transport's offer."""
        assert self.transport is not None
        return self.transport.offer()

    async def open(self, offer: str, epoch: str) -> float:
        """Make the pair; returns the seconds it took."""
        assert self.transport is not None
        at_s = time.perf_counter()
        await self.transport.open(self.peer, epoch, offer, deadline_s=DEADLINE_S)
        return time.perf_counter() - at_s

    async def fill(self, seed: int) -> None:
        """Fill every block with random content."""
        assert self.memory is not None
        for block in range(self.memory.num_blocks):
            words = content(seed, block, self.memory.words.shape[1], self.device)
            self.memory.words[block].copy_(words)
        self.memory.settle()

    async def poison(self) -> None:
        """Make every block hold what no move brings."""
        assert self.memory is not None
        self.memory.words[: self.memory.num_blocks].fill_(-1)
        self.memory.settle()

    async def holds(self, seed: int, src_blocks: list[int], dst_blocks: list[int]) -> bool:
        """Whether `dst_blocks` hold the peer's `src_blocks`, and all others are untouched."""
        assert self.memory is not None
        words = self.memory.words.shape[1]
        equal = all(
            torch.equal(self.memory.words[dst], content(seed, src, words, self.device))
            for src, dst in zip(src_blocks, dst_blocks, strict=True)
        )
        others = set(range(self.memory.num_blocks)) - set(dst_blocks)
        return equal and all(bool((self.memory.words[block] == -1).all()) for block in others)

    async def once(self, plan: str, out: bool, src: list[int], dst: list[int]) -> float:
        """Do one half of one move; returns its seconds."""
        return (await self._half(plan, out, tuple(src), tuple(dst)))[0]

    async def _half(
        self, plan: str, out: bool, src: tuple[int, ...], dst: tuple[int, ...]
    ) -> tuple[float, float]:
        assert self.transport is not None
        ranks = (self.rank, self.peer) if out else (self.peer, self.rank)
        half = self.transport.send if out else self.transport.receive
        at_s = time.perf_counter()
        moved = await half(Move(plan, *ranks, src, dst), deadline_s=DEADLINE_S)
        return moved.seconds, time.perf_counter() - at_s

    async def timed(self, plan: str, out: bool, blocks: int, rounds: int) -> list[list[float]]:
        """Move random blocks `rounds` times; [device seconds, seconds by the clock] of each."""
        assert self.memory is not None
        draw, taken = random.Random(plan), []
        for turn in range(rounds):
            src, dst = (tuple(draw.sample(range(self.memory.num_blocks), blocks)) for _ in range(2))
            taken.append(list(await self._half(f"{plan} {turn}", out, src, dst)))
        return taken

    async def until_told(self, plan: str, out: bool, blocks: int) -> dict[str, Any]:
        """Move without a pause until `halt`, or until it fails."""
        assert self.memory is not None
        draw, turn = random.Random(plan), 0
        begin_s = last_s = time.perf_counter()
        self.going, self.failed = True, None
        while self.going:
            src, dst = (tuple(draw.sample(range(self.memory.num_blocks), blocks)) for _ in range(2))
            try:
                await self._half(f"{plan} {turn}", out, src, dst)
            except TransferFailed as error:
                self.failed = {"at_s": time.time(), "why": f"{type(error).__name__}: {error}"}
                break
            turn += 1
            last_s = time.perf_counter()
        rate = turn * blocks * self.memory.block_bytes / max(last_s - begin_s, 1e-9) / 1e9
        return {"moves": turn, "gb_s": rate, "failed": self.failed}

    async def halt(self) -> None:
        """End `until_told` at the next move."""
        self.going = False

    async def close(self) -> float:
        """Give the pair up; returns the seconds it took."""
        assert self.transport is not None
        at_s = time.perf_counter()
        await self.transport.close(self.peer)
        return time.perf_counter() - at_s

    async def load_build(self) -> None:
        """Have something to decode with; before there is a transport, which it could meet."""
        if self.load is None:
            self.load = await asyncio.to_thread(DecodeLoad, self.device)

    async def load_start(self) -> None:
        """Begin to decode."""
        assert self.load is not None
        self.load.start()

    async def load_stop(self) -> dict[str, Any]:
        """Stop; returns how the steps went."""
        assert self.load is not None
        steps = await asyncio.to_thread(self.load.stop)
        return {name: getattr(steps, name) for name in steps.__slots__}

    async def lag(self) -> float:
        """Return the loop's worst lateness since the last call, in ms."""
        worst, self.lag_s = self.lag_s, 0.0
        return worst * 1000

    async def store_port(self) -> int:
        """Host a store for `raw`."""
        self.raw_store = listen_store("127.0.0.1")
        return int(self.raw_store.port)

    async def raw(self, port: int, sizes: list[int], rounds: int) -> dict[str, list[float]]:
        """Time bare NCCL sends of contiguous buffers, rank 0 to rank 1: seconds by size."""
        return await asyncio.to_thread(self._raw, port, sizes, rounds)

    def _raw(self, port: int, sizes: list[int], rounds: int) -> dict[str, list[float]]:
        torch.cuda.set_device(self.device)
        own = self.rank == 0
        store = self.raw_store if own else dist.TCPStore("127.0.0.1", port, None, False)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=60)
        group = dist.ProcessGroupNCCL(dist.PrefixStore("raw", store), self.rank, 2, options)
        group.bound_device_id = self.device
        group.eager_connect_single_device(self.device)
        taken: dict[str, list[float]] = {}
        for size in sizes:
            buffer = torch.randint(0, 2**40, (size // 8,), device=self.device)
            times = []
            for _ in range(rounds + 3):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                half = group.send if own else group.recv
                half([buffer], self.peer, 0).wait()
                end.record()
                end.synchronize()
                times.append(begin.elapsed_time(end) / 1000)
            taken[str(size)] = times[3:]
        group.abort()
        return taken

    async def free_bytes(self, device: int) -> int:
        """Return the free memory of a GPU."""
        return int(torch.cuda.mem_get_info(device)[0])


async def main() -> None:
    """Serve commands until stdin ends."""
    side = Side(int(sys.argv[1]), sys.argv[2])
    reader = asyncio.StreamReader(limit=2**22)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    watching = asyncio.create_task(side.watch_lag())
    tasks: set[asyncio.Task[None]] = set()

    async def answer(number: int, verb: str, arguments: dict[str, Any]) -> None:
        try:
            reply = {"result": await getattr(side, verb)(**arguments)}
        except (LMPoolError, RuntimeError, ValueError, TypeError, AttributeError) as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"number": number, **reply}), flush=True)

    while line := await reader.readline():
        task = asyncio.create_task(answer(*json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    watching.cancel()
    if side.transport is not None:
        await side.transport.stop()


if __name__ == "__main__":
    asyncio.run(main())
