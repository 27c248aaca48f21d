"""From a loaded model to a runner on its GPU: fuse, measure, lay out the pool, capture."""

from __future__ import annotations

from collections.abc import Callable

import torch

from workers.model.cuda_runner import CudaRunner, Sampler, make_decoder
from workers.model.kv import KVPool
from workers.model.memory import fit_blocks, gibibytes, telling_what_did_not_fit
from workers.model.size import require_blocks
from workers.model.weights import LoadedModel, Progress, silent


def build_cuda_runner(
    loaded: LoadedModel,
    *,
    block_size: int,
    blocks: int,
    max_rows: int,
    max_tokens: int,
    max_model_len: int,
    make_sampler: Callable[[int, int, torch.device, torch.dtype], Sampler],
    memory_share: float = 0.9,
    fused: bool = True,
    graphs: bool = True,
    beacon: bool = False,
    progress: Progress = silent,
) -> tuple[CudaRunner, KVPool]:
    """Make everything that a GPU needs to serve a model.

    Args:
        loaded: on the GPU, its weights in float16, bfloat16 or float32.
        block_size: tokens a block.
        blocks: KV blocks; 0 takes what fits.
        max_rows: most rows of a step.
        max_tokens: most tokens of a step.
        max_model_len: most tokens of a sequence.
        make_sampler: called with (vocabulary, most rows, device, dtype of the logits).
        memory_share: of the GPU's memory that this process may take, in (0, 1].
        fused: whether known layers are replaced by faster ones.
        graphs: whether steps are captured.
        beacon: whether blocks of the pool are to be moved, see `KVPool`.
        progress: told of the stages.
    Raises: ConfigError: the model cannot be served, or something does not fit; the message says
        which setting to change.
    """

    def pool_of(count: int) -> KVPool:
        return KVPool(
            count,
            loaded.geometry,
            block_size=block_size,
            dtype=loaded.dtype,
            device=loaded.device,
            beacon=beacon,
        )

    with torch.cuda.device(loaded.device):
        probe = pool_of(1)
        advice = "start with a smaller model or --dtype bfloat16"
        with telling_what_did_not_fit("joining the weights", advice, loaded.device):
            decoder = make_decoder(loaded, probe, fused=fused)
        count = blocks or fit_blocks(
            decoder,
            probe,
            max_rows=max_rows,
            max_tokens=max_tokens,
            max_model_len=max_model_len,
            memory_share=memory_share,
        )
        require_blocks(
            count,
            block_bytes=probe.block_bytes,
            block_size=block_size,
            max_model_len=max_model_len,
        )
        wanted = f"laying out {count} KV blocks, {gibibytes((count + 1) * probe.block_bytes)}"
        with telling_what_did_not_fit(wanted, "lower --blocks", loaded.device):
            pool = pool_of(count)
        advice = "lower --blocks or --max-num-seqs"
        with telling_what_did_not_fit("capturing graphs", advice, loaded.device):
            runner = CudaRunner(
                decoder,
                pool,
                vocab_size=loaded.vocab_size,
                max_rows=max_rows,
                max_tokens=max_tokens,
                max_model_len=max_model_len,
                sampler=make_sampler(loaded.vocab_size, max_rows, loaded.device, loaded.dtype),
                graphs=graphs,
                progress=progress,
            )
    return runner, pool
