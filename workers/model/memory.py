"""What fits on a GPU: measured with the largest step there may be, before the pool is laid out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lmpoold.protocol.errors import ConfigError
from workers.model.batch import Row, build_step
from workers.model.decoder import Decoder
from workers.model.kv import KVPool
from workers.model.packing import largest_step
from workers.model.size import blocks_for_budget, blocks_for_tokens
from workers.model.triton.backend import TritonBackend

SPARE_BYTES = 512 * 2**20
"""Left for workspaces of libraries, communicators, and what falls between allocations."""


def gibibytes(count_bytes: int) -> str:
    """Return a number of bytes for a message."""
    return f"{count_bytes / 2**30:.2f} GiB"


@contextmanager
def telling_what_did_not_fit(what: str, advice: str, device: torch.device) -> Iterator[None]:
    """Turn the GPU's running out of memory into an error that says what to change.

    Args:
        what: was being done, with numbers.
        advice: the setting to change.
        device: the GPU.
    Raises: ConfigError: in place of torch.OutOfMemoryError.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        free, total = torch.cuda.mem_get_info(device)
        raise ConfigError(
            f"{device} ran out of memory while {what}: {gibibytes(total)} in all, "
            f"{gibibytes(torch.cuda.memory_allocated(device))} taken by this process, "
            f"{gibibytes(free)} free now; {advice}"
        ) from None


@torch.inference_mode()
def measure_peak_bytes(decoder: Decoder, pool: KVPool, rows: list[Row]) -> int:
    """Return how much a step takes on top of weights and pool while it runs.

    Args:
        decoder: bound to `pool`.
        pool: of at least one block.
        rows: the step.
    """
    device = pool.data.device
    backend = TritonBackend(device)
    step = build_step(rows, block_size=pool.block_size, trash_block=pool.trash_block, device=device)
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    logits = decoder.logits(backend.plan(step, pool), step.sample_at)
    wide = logits.float()
    scores = [wide.softmax(-1) for _ in range(2)]  # about what a sampler takes
    torch.cuda.synchronize(device)
    del logits, wide, scores
    return torch.cuda.max_memory_allocated(device) - before


def fit_blocks(
    decoder: Decoder,
    probe: KVPool,
    *,
    max_rows: int,
    max_tokens: int,
    max_model_len: int,
    memory_share: float,
) -> int:
    """Return how many KV blocks fit beside the weights, the largest step and its graphs.

    Args:
        decoder: bound to `probe`.
        probe: a small pool of the shape of the one to be laid out.
        max_rows: most rows of a step.
        max_tokens: most tokens of a step.
        max_model_len: most tokens of a sequence; one such sequence must fit.
        memory_share: of the GPU's memory that this process may take, in (0, 1].
    Raises: ConfigError: the step or one sequence does not fit; with numbers and settings.
    """
    device = probe.data.device
    if not 0.0 < memory_share <= 1.0:
        raise ConfigError(f"memory_share must be above 0 and at most 1, got {memory_share}")
    rows = largest_step(
        max_rows=max_rows, max_tokens=max_tokens, max_model_len=max_model_len, block=0
    )
    what = f"computing a step of {max_tokens} tokens"
    with telling_what_did_not_fit(what, "lower --max-batched-tokens", device):
        peak = measure_peak_bytes(decoder, probe, rows)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    # twice: captured graphs keep what a step takes for themselves
    budget = free - int(total * (1.0 - memory_share)) - 2 * peak - SPARE_BYTES
    try:
        return blocks_for_budget(
            budget,
            block_bytes=probe.block_bytes,
            block_size=probe.block_size,
            max_model_len=max_model_len,
        )
    except ConfigError as error:
        need = blocks_for_tokens(max_model_len, probe.block_size) * probe.block_bytes
        raise ConfigError(
            f"{device} has {gibibytes(free)} of {gibibytes(total)} free after the weights; a step "
            f"of {max_tokens} tokens takes {gibibytes(2 * peak)} with its graphs, a memory share "
            f"of {memory_share} leaves {gibibytes(max(budget, 0))} for K/V, and one request of "
            f"{max_model_len} tokens needs {gibibytes(need)}; lower --max-batched-tokens or "
            f"--max-model-len, or raise the memory share ({error})"
        ) from None
