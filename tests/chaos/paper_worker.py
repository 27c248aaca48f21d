"""A worker that computes on paper: K/V are token ids in block slots, the model is a hash.

It runs the real loops of `workers.daemon`. The next token is a hash of the context as it stands in
the sequence's blocks, so an answer changes when a token is lost or repeated, when a block holds
somebody else's tokens, or when a resumed request begins at the wrong place; and it starts in a
second, where a worker with a model takes ten.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import click
import uvloop
import xxhash

from lmpoold.shell.observe import log_to_stderr
from lmpoold.text.fingerprint import fingerprint, kv_block_bytes
from lmpoold.text.folder import cache_root, resolve
from lmpoold.text.precision import dtype_bytes
from workers.core.batch import Batch
from workers.daemon.answers import Vocabulary
from workers.daemon.engine import Drawn
from workers.daemon.membership import Pool, identity
from workers.daemon.serve import Equipment, serve
from workers.daemon.settings import WorkerConfig

MODEL = "random:tiny-qwen3"
LETTERS = 200


class PaperPlant:
    """Writes token ids where a model would write K and V, and reads them where it would attend."""

    def __init__(self, blocks: int, block_size: int, step_s: float) -> None:
        self._slots = [[-1] * block_size for _ in range(blocks)]
        self._size = block_size
        self._step_s = step_s

    def run(self, batch: Batch) -> list[Drawn]:
        """Return a token for each chunk that samples."""
        drawn = []
        for chunk in batch.rows:
            sequence = chunk.sequence
            for place in range(max(chunk.start, chunk.write_from), chunk.start + chunk.length):
                block = sequence.block_table[place // self._size]
                self._slots[block][place % self._size] = sequence.tokens[place]
        for chunk in batch.samples:
            sequence, length = chunk.sequence, chunk.start + chunk.length
            read = [
                self._slots[sequence.block_table[place // self._size]][place % self._size]
                for place in range(length)
            ]
            word = f"{sequence.sampling.seed if sequence.sampling.temperature else ''}{read}"
            drawn.append(Drawn(1 + xxhash.xxh3_64_intdigest(word.encode()) % LETTERS))
        time.sleep(self._step_s)
        return drawn


def decode(ids: Sequence[int]) -> str:
    """Return one character a token."""
    return "".join(chr(0x100 + token) for token in ids)


@click.command()
@click.option("--redis-url", required=True)
@click.option("--rank", default=0)
@click.option("--blocks", default=300)
@click.option("--step-ms", default=4.0)
def main(redis_url: str, rank: int, blocks: int, step_ms: float) -> None:
    """Serve rank RANK without a model."""
    log_to_stderr("info")
    folder = resolve(MODEL, cache=cache_root(os.environ))
    mark = fingerprint(folder)

    def build(pool: Pool, progress: Callable[[str, int, int], None]) -> Equipment:
        size = kv_block_bytes(folder.config(), pool.block_size, dtype_bytes(pool.dtype))
        progress("load", 1, 1)
        return Equipment(
            plant=PaperPlant(blocks, pool.block_size, step_ms / 1000),
            vocabulary=Vocabulary(decode, {}),
            stop_ids=frozenset(),
            fingerprint=mark,
            identity=identity(pool, dtype=pool.dtype, mark=mark, block_bytes=size, digest="paper"),
            blocks=blocks,
        )

    config = WorkerConfig(
        redis_url=redis_url,
        cache=cache_root(os.environ),
        model=MODEL,
        rank=rank,
        max_num_seqs=32,
        max_batched_tokens=256,
    )
    uvloop.run(serve(config, build))


if __name__ == "__main__":
    main()
