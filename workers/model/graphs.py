"""Captured steps: a graph for each bucket of decodes, and one for each bucket of tokens.

A captured step reads the step's numbers from where it was captured with, and everything it writes
lies where it did then. Decodes are captured whole, head and greedy choice included; a step with a
prefill up to the last hidden state, since how many of its rows sample is not known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from workers.model.packing import DeviceStep, Layout, StepSize
from workers.model.sharing import LEAST_ROWS, most_tiles

DECODE_BUCKETS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256)
TOKEN_BUCKETS = (
    *(16, 32, 64, 128, 192, 256, 384, 512, 640, 768, 1024),
    *(1280, 1536, 1792, 2048, 2560, 3072, 4096),
)
"""Beyond these the device has enough to do for the host to launch each kernel in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A step of bounded size, ready to be replayed.

    `output` is the logits of a bucket of decodes, `[rows, vocab]`, or the last hidden state of a
    bucket of tokens, `[tokens, hidden]`.
    """

    layout: Layout
    step: DeviceStep
    graph: torch.cuda.CUDAGraph
    output: Tensor


def buckets_up_to(buckets: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Return the buckets below `most`, and `most` itself if a bucket is as large."""
    below = tuple(size for size in buckets if size < most)
    return (*below, most) if most <= buckets[-1] else below


def decode_rooms(max_rows: int) -> list[StepSize]:
    """Return the steps of nothing but decodes to capture; a step takes the first that it fits."""
    sizes = buckets_up_to(DECODE_BUCKETS, max_rows)
    return _and_sharing([StepSize(tokens=n, rows=n, decodes=n, tiles=0) for n in sizes])


def prefill_rooms(max_rows: int, max_tokens: int, tile: int) -> list[StepSize]:
    """Return the steps without decodes to capture, whose prefills are cut into tiles of `tile`."""
    return [
        StepSize(
            tokens=size,
            rows=min(max_rows, size),
            decodes=0,
            # one more for each row's rest; empty ones cost time, so not for the most rows there are
            tiles=-(-size // tile) + max(4, size // (2 * tile)),
        )
        for size in buckets_up_to(TOKEN_BUCKETS, max_tokens)
    ]


def mixed_rooms(prefills: list[StepSize]) -> list[StepSize]:
    """Return the steps to capture that may hold decodes beside what `prefills` hold."""
    return _and_sharing([replace(room, decodes=room.rows) for room in prefills])


def _and_sharing(plain: list[StepSize]) -> list[StepSize]:
    """Put steps with tiles of common K/V behind those without, which cost less where none has."""
    return plain + [
        replace(room, shares=most_tiles(room.decodes))
        for room in plain
        if room.decodes >= LEAST_ROWS
    ]


class Capturer:
    """Captures functions into graphs that share their memory, as only one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        """Prepare a stream to capture on."""
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(self, run: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Run a function once to compile what it launches, then capture it.

        Other threads may go on using CUDA meanwhile, the watchdog of a communicator say.
        """
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            run()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                output = run()
            finally:
                graph.capture_end()
        current.wait_stream(self._stream)
        return graph, output
