"""A worker that computes nothing: everything around the model, measured without it.

It runs the real loops of `workers.daemon` over a stand-in that answers each batch at once.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence

import click
import uvloop

from lmpoold.shell.observe import log_to_stderr
from lmpoold.text.fingerprint import fingerprint, kv_block_bytes
from lmpoold.text.folder import cache_root, resolve
from lmpoold.text.precision import dtype_bytes
from workers.core.batch import Batch, Sampled
from workers.daemon.answers import Decode, Vocabulary
from workers.daemon.engine import Plant
from workers.daemon.membership import Pool, identity
from workers.daemon.serve import Equipment, serve
from workers.daemon.settings import WorkerConfig

MODEL = "random:tiny-qwen3"


class IdlePlant:
    """Draws token 65 for every row, at once."""

    def __init__(self) -> None:
        self._counts: deque[int] = deque()

    def launch(self, batch: Batch) -> None:
        """Count the chunks that sample."""
        self._counts.append(len(batch.samples))

    def ready(self) -> bool:
        """It always is."""
        return True

    def collect(self) -> Sampled:
        """Return a token for each of them."""
        count = self._counts.popleft()
        return Sampled(tokens=[65] * count, logprobs=[None] * count)


def decode(ids: Sequence[int]) -> str:
    """Return one letter a token."""
    return "A" * len(ids)


def serve_without_model(
    make_plant: Callable[[int], Plant],
    decode: Decode,
    *,
    digest: str,
    blocks: int,
    redis_url: str,
    rank: int,
    max_num_seqs: int,
    max_batched_tokens: int,
    lookahead: int,
) -> None:
    """Run a worker of `MODEL`'s pool over a stand-in, until it is told to stop.

    Args:
        make_plant: called with the tokens a block.
        decode: token ids to text.
        digest: in place of the weights'; workers of one pool have the same one.
        blocks: of the pool.
        redis_url: of the server.
        rank: to serve.
        max_num_seqs: most sequences running at once.
        max_batched_tokens: most tokens a step computes.
        lookahead: batches chosen ahead.
    """
    folder = resolve(MODEL, cache=cache_root(os.environ))
    mark = fingerprint(folder)

    def build(pool: Pool, progress: Callable[[str, int, int], None]) -> Equipment:
        size = kv_block_bytes(folder.config(), pool.block_size, dtype_bytes(pool.dtype))
        progress("load", 1, 1)
        return Equipment(
            plant=make_plant(pool.block_size),
            vocabulary=Vocabulary(decode, {}),
            stop_ids=frozenset(),
            fingerprint=mark,
            identity=identity(pool, dtype=pool.dtype, mark=mark, block_bytes=size, digest=digest),
            blocks=blocks,
        )

    config = WorkerConfig(
        redis_url=redis_url,
        cache=cache_root(os.environ),
        model=MODEL,
        rank=rank,
        max_num_seqs=max_num_seqs,
        max_batched_tokens=max_batched_tokens,
        lookahead=lookahead,
    )
    uvloop.run(serve(config, build))


@click.command()
@click.option("--redis-url", required=True)
@click.option("--rank", default=0)
@click.option("--blocks", default=200_000)
@click.option("--lookahead", default=0)
def main(redis_url: str, rank: int, blocks: int, lookahead: int) -> None:
    """Serve rank RANK without a model."""
    log_to_stderr("warning")
    serve_without_model(
        lambda _: IdlePlant(),
        decode,
        digest="none",
        blocks=blocks,
        redis_url=redis_url,
        rank=rank,
        max_num_seqs=256,
        max_batched_tokens=65536,
        lookahead=lookahead,
    )


if __name__ == "__main__":
    main()
