"""Captured steps: a graph for each bucket of decodes, and one for each bucket of tokens.

A captured step reads the step's numbers from where it was captured with, and everything it writes
lies where it did then. Decodes are captured whole, head and greedy choice included; a step with a
prefill up to the last hidden state, since how many of its rows sample is not known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.model.packing import DeviceStep, Layout

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
