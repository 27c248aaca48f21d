"""A GPU as busy as with a decode step: what a transfer beside it is measured against.

The step is a CUDA graph with the work of one decode step of the Qwen3-0.6B shape: for each of 28
layers the four linears of 64 rows and a read of the K/V of 64 sequences of 1,024 tokens, then the
head. The reads go through a fresh part of a large buffer in every layer, so no cache helps.
"""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass

import torch

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, VOCABULARY = 28, 1024, 16, 8, 128, 3072, 151_936
BATCH, CONTEXT = 64, 1024


@dataclass(frozen=True, slots=True)
class Steps:
    """How steps went: median and 95th percentile on the device, and the longest by the clock."""

    count: int
    device_ms: float
    device_p95_ms: float
    wall_ms: float
    longest_wall_ms: float


class DecodeLoad:
    """Runs steps one after another on a thread and a stream of its own, reading after each.

    It reads as an engine has to: a copy into pinned memory, and an event. A copy into ordinary
    memory (`.cpu()`, `.item()`) keeps the driver's lock until the step is over, and with it every
    other thread that wants something of the device.
    """

    def __init__(self, device: torch.device) -> None:
        """Allocate some 9 GB and capture the step."""
        torch.cuda.set_device(device)
        self._device = device
        dtype = torch.bfloat16

        def weight(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, device=device, dtype=dtype) * 0.02

        qkv = HEADS * HEAD_DIM + 2 * KV_HEADS * HEAD_DIM
        shapes = (
            (HIDDEN, qkv),
            (HEADS * HEAD_DIM, HIDDEN),
            (HIDDEN, 2 * INNER),
            (INNER, HIDDEN),
        )
        self._layers = [[weight(*shape) for shape in shapes] for _ in range(LAYERS)]
        self._head = weight(HIDDEN, VOCABULARY)
        words = BATCH * CONTEXT * 2 * KV_HEADS * HEAD_DIM * 2 // 8
        self._kv = torch.randint(0, 2**40, (LAYERS, words), device=device)
        self._x = weight(BATCH, HIDDEN)
        self._stream = torch.cuda.Stream(device)
        with torch.cuda.stream(self._stream):
            for _ in range(3):
                self._step()
        self._stream.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=self._stream, capture_error_mode="thread_local"):
            self._drawn = self._step()
        self._read = torch.empty(BATCH, dtype=torch.int64, pin_memory=True)
        self._stop = threading.Event()
        self._taken: list[tuple[float, float]] = []
        self._thread: threading.Thread | None = None

    def _step(self) -> torch.Tensor:
        x = self._x
        for (qkv, out, gate_up, down), kv in zip(self._layers, self._kv, strict=True):
            mixed = (x @ qkv)[:, : HEADS * HEAD_DIM] + kv.sum().to(x.dtype) * 0
            x = x + mixed @ out
            gate, up = (x @ gate_up).chunk(2, dim=-1)
            x = x + (torch.nn.functional.silu(gate) * up) @ down
        return (x @ self._head).argmax(dim=-1)

    def start(self) -> None:
        """Begin to step."""
        self._stop.clear()
        self._taken.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> Steps:
        """Stop, and return how the steps went since `start`."""
        self._stop.set()
        assert self._thread is not None
        self._thread.join()
        device = sorted(one for one, _ in self._taken)
        walls = [wall for _, wall in self._taken]
        return Steps(
            len(device),
            statistics.median(device),
            device[int(len(device) * 0.95)],
            statistics.median(walls),
            max(walls),
        )

    def _run(self) -> None:
        torch.cuda.set_device(self._device)
        begin, end = (torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2))
        while not self._stop.is_set():
            at_s = time.perf_counter()
            with torch.cuda.stream(self._stream):
                begin.record(self._stream)
                self._graph.replay()
                self._read.copy_(self._drawn, non_blocking=True)
                end.record(self._stream)
            end.synchronize()
            self._taken.append((begin.elapsed_time(end), (time.perf_counter() - at_s) * 1000))
