"""One side of a pair as a process of its own: a pool and a transport, told what to do by lines.

Every line of stdin is a command in JSON; each runs as a task, so several can be under way. Every
line of stdout answers one, by its number.
"""

import asyncio
import hashlib
import json
import sys
import time

import torch

from lmpoold.protocol.errors import LMPoolError
from lmpoold.text.fingerprint import KVGeometry
from workers.model.kv import KVPool
from workers.transport.build import build_transport
from workers.transport.memory import PoolMemory
from workers.transport.port import Move

SMALL = KVGeometry(layers=2, kv_heads=2, head_dim=32)
QWEN3_06B = KVGeometry(layers=28, kv_heads=8, head_dim=128)


def random_words(seed: int, words: int, device: torch.device) -> torch.Tensor:
    """Alike on both sides, other than zero."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randint(
        -(2**63), 2**63 - 1, (words,), dtype=torch.int64, device=device, generator=generator
    )


class Side:
    def __init__(self, *, rank, kind, block_tokens, blocks, geometry="small", device="cpu", **more):
        torch.set_num_threads(1)
        shape = QWEN3_06B if geometry == "qwen3-0.6b" else SMALL
        dtype = torch.bfloat16
        pool = KVPool(
            blocks, shape, block_size=block_tokens, dtype=dtype, device=device, beacon=True
        )
        self.memory = PoolMemory.of(pool.data, num_blocks=blocks, beacon=pool.beacon_block)
        self.transport = build_transport(kind, rank, self.memory, **more)
        self.lag_s = 0.0

    async def watch_lag(self):
        while True:
            begin_s = time.perf_counter()
            await asyncio.sleep(0.001)
            self.lag_s = max(self.lag_s, time.perf_counter() - begin_s - 0.001)

    async def offer(self):
        return self.transport.offer()

    async def open(self, peer, epoch, offer, deadline_s):
        await self.transport.open(peer, epoch, offer, deadline_s=deadline_s)
        return self.transport.way(peer)

    async def way(self, peer):
        return self.transport.way(peer)

    async def send(self, move, deadline_s):
        moved = await self.transport.send(_move(move), deadline_s=deadline_s)
        return [moved.bytes, moved.seconds]

    async def receive(self, move, deadline_s):
        moved = await self.transport.receive(_move(move), deadline_s=deadline_s)
        return [moved.bytes, moved.seconds]

    async def close(self, peer):
        await self.transport.close(peer)

    async def fill(self, blocks, seed):
        for block in blocks:
            words = random_words(seed + block, self.memory.words.shape[1], self.memory.device)
            self.memory.words[block].copy_(words)
        self.memory.settle()

    async def digest(self, blocks):
        return [
            hashlib.sha256(self.memory.words[block].cpu().numpy().tobytes()).hexdigest()
            for block in blocks
        ]

    async def lag(self):
        worst, self.lag_s = self.lag_s, 0.0
        return worst


def _move(fields):
    plan, src, dst, src_blocks, dst_blocks = fields
    return Move(plan, src, dst, tuple(src_blocks), tuple(dst_blocks))


async def main() -> None:
    side = Side(**json.loads(sys.argv[1]))
    await side.transport.start()
    watching = asyncio.create_task(side.watch_lag())
    reader = asyncio.StreamReader(limit=2**20)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    tasks = set()

    async def answer(number, verb, arguments):
        began_s = time.monotonic()
        try:
            reply = {"result": await getattr(side, verb)(**arguments)}
        except LMPoolError as error:
            reply = {"error": type(error).__name__, "why": str(error)}
        except Exception as error:  # noqa: BLE001
            reply = {"error": "crash", "why": repr(error)}
        reply |= {"number": number, "took_s": time.monotonic() - began_s}
        print(json.dumps(reply), flush=True)

    while line := await reader.readline():
        number, verb, arguments = json.loads(line)
        task = asyncio.create_task(answer(number, verb, arguments))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    watching.cancel()
    await side.transport.stop()


if __name__ == "__main__":
    asyncio.run(main())
