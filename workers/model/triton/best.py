"""The best token of each row: one read of the logits, where a library's argmax takes three."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 4096
"""Tokens of the vocabulary a program looks at."""


@triton.jit
def _best_of_chunk(logits, stride, vocab, maxima, places, chunks, CHUNK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    values = tl.load(logits + row * stride + at, mask=at < vocab, other=-float("inf"))
    best, place = tl.max(
        values.to(tl.float32), 0, return_indices=True, return_indices_tie_break_left=True
    )
    tl.store(maxima + row * chunks + chunk, best)
    tl.store(places + row * chunks + chunk, chunk * CHUNK + place)


@triton.jit
def _best_of_row(maxima, places, tokens, chunks, CHUNKS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    numbers = tl.arange(0, CHUNKS)
    best = tl.load(maxima + row * chunks + numbers, mask=numbers < chunks, other=-float("inf"))
    chunk = tl.argmax(best, 0, tie_break_left=True)
    tl.store(tokens + row, tl.load(places + row * chunks + chunk).to(tokens.dtype.element_ty))


class Best:
    """Finds the best tokens of up to `max_rows` rows; may be captured in a CUDA graph."""

    def __init__(self, vocab: int, max_rows: int, device: torch.device) -> None:
        """Lay out the buffers for rows of `vocab` logits on `device`."""
        self._vocab = vocab
        self._chunks = triton.cdiv(vocab, CHUNK)
        shape = (max_rows, self._chunks)
        self._maxima = torch.zeros(shape, dtype=torch.float32, device=device)
        self._places = torch.zeros(shape, dtype=torch.int32, device=device)

    def __call__(self, logits: Tensor, out: Tensor) -> None:
        """Write the first of the best tokens of each row.

        Args:
            logits: `[rows, vocab]`, no more rows than there are buffers for.
            out: `[rows]` int64.
        """
        rows = len(logits)
        _best_of_chunk[(rows, self._chunks)](
            logits, logits.stride(0), self._vocab, self._maxima, self._places, self._chunks,
            CHUNK=CHUNK,
        )  # fmt: skip
        _best_of_row[(rows,)](
            self._maxima, self._places, out, self._chunks,
            CHUNKS=triton.next_power_of_2(self._chunks),
        )  # fmt: skip
