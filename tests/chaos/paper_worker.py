"""A worker that computes on paper: K/V are token ids in block slots, the model is a hash.

It runs the real loops of `workers.daemon`. The next token is a hash of the context as it stands in
the sequence's blocks, so an answer changes when a token is lost or repeated, when a block holds
somebody else's tokens, or when a resumed request begins at the wrong place; and it starts in a
second, where a worker with a model takes ten.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import click
import xxhash

from benchmarks.idle_worker import serve_without_model
from lmpoold.shell.observe import log_to_stderr
from tests.chaos import hang
from workers.core.batch import Batch, Chunk, Sampled

LETTERS = 200


class PaperPlant:
    """Writes token ids where a model would write K and V, and reads them where it would attend.

    A batch is computed when it is launched, as on a device that works in order; what it drew is
    told when it is collected.
    """

    def __init__(self, blocks: int, block_size: int, step_s: float) -> None:
        self._slots = [[-1] * block_size for _ in range(blocks)]
        self._size = block_size
        self._step_s = step_s
        self._drawn: list[int] = []
        self._under_way: deque[tuple[list[int], float]] = deque()
        self._done_s = 0.0

    def launch(self, batch: Batch) -> None:
        """Write every chunk's tokens, then draw for each that samples."""
        before = self._drawn
        for chunk in batch.rows:
            sequence = chunk.sequence
            for place in range(max(chunk.start, chunk.write_from), chunk.start + chunk.length):
                token = sequence.tokens[place] if chunk.after is None else before[chunk.after]
                block = sequence.block_table[place // self._size]
                self._slots[block][place % self._size] = token
        self._drawn = [self._draw(chunk) for chunk in batch.samples]
        self._done_s = max(time.monotonic(), self._done_s) + self._step_s
        self._under_way.append((self._drawn, self._done_s))

    def ready(self) -> bool:
        """Whether the time of the oldest step under way is over."""
        return time.monotonic() >= self._under_way[0][1]

    def collect(self) -> Sampled:
        """Return what the oldest batch under way drew, after the time of a step."""
        drawn, done_s = self._under_way.popleft()
        time.sleep(max(0.0, done_s - time.monotonic()))
        return Sampled(tokens=drawn, logprobs=[None] * len(drawn))

    def _draw(self, chunk: Chunk) -> int:
        sequence, sampling = chunk.sequence, chunk.sequence.sampling
        read = [
            self._slots[sequence.block_table[place // self._size]][place % self._size]
            for place in range(chunk.start + chunk.length)
        ]
        word = f"{sampling.seed if sampling.temperature else ''}{read}"
        return 1 + xxhash.xxh3_64_intdigest(word.encode()) % LETTERS


def decode(ids: Sequence[int]) -> str:
    """Return one character a token."""
    return "".join(chr(0x100 + token) for token in ids)


@click.command()
@click.option("--redis-url", required=True)
@click.option("--rank", default=0)
@click.option("--blocks", default=300)
@click.option("--step-ms", default=4.0)
def main(redis_url: str, rank: int, blocks: int, step_ms: float) -> None:
    """Serve rank RANK without a model; every second rank chooses batches ahead."""
    log_to_stderr("info")
    hang.install()
    serve_without_model(
        lambda block_size: PaperPlant(blocks, block_size, step_ms / 1000),
        decode,
        digest="paper",
        blocks=blocks,
        redis_url=redis_url,
        rank=rank,
        max_num_seqs=32,
        max_batched_tokens=256,
        lookahead=rank % 2,  # both ways of the engine, in one pool
    )


if __name__ == "__main__":
    main()
