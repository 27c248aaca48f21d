"""The sampler's kernels in their order, and the buffers they share.

Two orders: one for any rows, which searches the vocabulary again and again, and one for rows that
keep few tokens or all of them. Their launches take the host longer than the device, so for each
number of rows, rounded up, both are captured in graphs of their own. Inside somebody else's capture
the kernels are launched as they are.
"""

from __future__ import annotations

import gc
from typing import Protocol

import torch
import triton
from torch import Tensor

from workers.model.triton.few import (
    ROOM,
    bound,
    crest,
    draw_crowd,
    draw_few,
    gather,
    group_of,
)
from workers.model.triton.sample import (
    CHUNK,
    PASSES,
    STEP_BITS,
    STEPS,
    TILE,
    narrow,
    pick,
    settle,
    survey,
    weigh,
)


class Parameters(Protocol):
    """How each row is drawn, `[max_rows]` each; see `workers.model.triton.sample`."""

    scale: Tensor
    top_k: Tensor
    top_p: Tensor
    low: Tensor
    point: Tensor
    few: bool


class Kernels:
    """Draws tokens with Triton. Every launch has a fixed grid, so a CUDA graph can hold it."""

    def __init__(
        self,
        vocab: int,
        max_rows: int,
        device: torch.device,
        how: Parameters,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Lay out the buffers for `max_rows` rows of `vocab` logits, and capture on a GPU."""
        self._vocab = vocab
        self._how = how
        self._chunks = triton.cdiv(vocab, CHUNK)
        self._padded = triton.next_power_of_2(self._chunks)

        def buffer(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(max_rows, *shape, dtype=dtype, device=device)

        cells = self._chunks
        self._maxima = buffer(cells, dtype=torch.float32)
        self._places = buffer(cells, dtype=torch.int32)
        self._masses = buffer(cells, dtype=torch.float32)
        self._counts = buffer(cells, STEPS, dtype=torch.int32)
        self._weighed = buffer(cells, STEPS, dtype=torch.float32)
        # floor of top_k and prefix of top_p, then what else a search keeps
        self._prefixes = buffer(dtype=torch.int32), buffer(dtype=torch.int32)
        self._done = buffer(dtype=torch.int32)
        self._above = buffer(dtype=torch.int32)
        self._goals = buffer(dtype=torch.float32)
        self._thresholds = buffer(dtype=torch.int32)
        self._tokens = buffer(dtype=torch.int64)
        self._group = group_of(vocab)
        self._groups = self._chunks * (CHUNK // self._group)
        self._peaks = buffer(self._groups, dtype=torch.float32)
        self._counted = buffer(dtype=torch.int32)
        self._values = buffer(ROOM, dtype=torch.float32)
        self._at = buffer(ROOM, dtype=torch.int32)
        self._graphs: dict[tuple[bool, int], torch.cuda.CUDAGraph] = {}
        if device.type == "cuda":
            self._logits = buffer(vocab, dtype=dtype)
            with torch.inference_mode(), torch.cuda.device(device):
                self._capture(max_rows)

    def draw(self, logits: Tensor) -> Tensor:
        """Return `[rows]` int64 tokens of `[rows, vocab]` logits; a view of a buffer."""
        rows, few = len(logits), self._how.few
        if not self._graphs or torch.cuda.is_current_stream_capturing():
            self._run(logits, few=few)
        else:
            self._logits[:rows].copy_(logits)
            size = next(size for kind, size in self._graphs if kind == few and size >= rows)
            self._graphs[few, size].replay()
        return self._tokens[:rows]

    def _capture(self, max_rows: int) -> None:
        gc.collect()  # a graph that is freed while another is captured breaks both
        sizes = [2**power for power in range(max_rows.bit_length()) if 2**power < max_rows]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for size in (*sizes, max_rows):
                for few in (False, True):
                    self._run(self._logits[:size], few=few)  # compiles what is captured then
                    graph = torch.cuda.CUDAGraph()
                    graph.capture_begin(capture_error_mode="thread_local")
                    self._run(self._logits[:size], few=few)
                    graph.capture_end()
                    self._graphs[few, size] = graph
        torch.cuda.current_stream().wait_stream(stream)

    def _run(self, logits: Tensor, *, few: bool) -> None:
        how, rows = self._how, len(logits)
        grid = (rows, self._chunks)
        source = logits, logits.stride(0), self._vocab, how.scale
        sizes = {"CHUNKS": self._padded, "CHUNK": CHUNK}
        survey[grid](*source, self._maxima, self._places, self._masses, self._chunks, CHUNK=CHUNK)
        if few:
            self._draw_few(source, sizes, rows)
        else:
            for by_mass in (False, True):
                self._search(source, sizes, rows, by_mass=by_mass)
        floors, prefixes = self._prefixes
        weigh[grid](
            *source,
            how.top_k,
            how.top_p,
            how.low,
            floors,
            prefixes,
            self._maxima,
            self._masses,
            self._thresholds,
            self._chunks,
            FEW=few,
            **sizes,
        )
        pick[(rows,)](
            *source,
            how.top_k,
            how.point,
            self._maxima,
            self._places,
            self._masses,
            self._thresholds,
            self._tokens,
            self._chunks,
            FEW=few,
            **sizes,
        )

    def _draw_few(
        self, source: tuple[Tensor, int, int, Tensor], sizes: dict[str, int], rows: int
    ) -> None:
        """Draw the rows that ask for top_k; those that do not are left to others."""
        how, floors, cut = self._how, self._prefixes[0], {"GROUP": self._group, "CHUNK": CHUNK}
        grid = (rows, self._chunks)
        crest[grid](*source, how.top_k, self._peaks, self._groups, **cut)
        padded = triton.next_power_of_2(self._groups)
        bound[(rows,)](
            how.scale, how.top_k, self._peaks, self._groups, floors, self._counted, PADDED=padded
        )
        gather[grid](
            *source,
            how.top_k,
            self._peaks,
            self._groups,
            floors,
            self._counted,
            self._values,
            self._at,
            ROOM=ROOM,
            **cut,
        )
        draw_few[(rows,)](
            how.scale,
            how.top_k,
            how.top_p,
            how.low,
            how.point,
            self._counted,
            self._values,
            self._at,
            self._tokens,
            self._vocab,
            PLACE_BITS=self._vocab.bit_length(),
            ROOM=ROOM,
        )
        draw_crowd[(rows,)](
            *source,
            how.top_k,
            how.top_p,
            how.low,
            how.point,
            self._maxima,
            self._chunks,
            self._counted,
            self._tokens,
            ROOM=ROOM,
            **sizes,
        )

    def _search(
        self,
        source: tuple[Tensor, int, int, Tensor],
        sizes: dict[str, int],
        rows: int,
        *,
        by_mass: bool,
    ) -> None:
        """Find each asking row's threshold, from the highest bits down."""
        how, prefixes = self._how, self._prefixes[by_mass]
        prefixes.zero_()
        self._done.zero_()
        for step in range(PASSES):
            shift = 32 - STEP_BITS * (step + 1)
            narrow[(rows, self._chunks)](
                *source,
                how.top_k,
                how.top_p,
                self._prefixes[0],
                self._maxima,
                prefixes,
                self._done,
                self._counts,
                self._weighed,
                self._chunks,
                shift,
                BY_MASS=by_mass,
                TILE=TILE,
                **sizes,
            )
            settle[(rows,)](
                how.scale,
                how.top_k,
                how.top_p,
                prefixes,
                self._done,
                self._goals,
                self._above,
                self._counts,
                self._weighed,
                self._chunks,
                shift,
                FIRST=step == 0,
                BY_MASS=by_mass,
                CHUNKS=self._padded,
            )
