"""A GPU that decodes: what a transfer beside it is measured against.

The worker's own runner decodes 64 sequences of 1,024 tokens of the Qwen3-0.6B shape, each step
launched while the one before computes, on a thread of its own, as in a worker. The tokens come
back through pinned memory and an event. (A read such as `.item()` would keep the driver's lock
until the step is over, and with it every other thread that wants something of the device.)
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from dataclasses import dataclass

import torch

from lmpoold.protocol.request import Sampling
from lmpoold.text.folder import cache_root, resolve
from workers.model.batch import Row
from workers.model.cuda_build import build_cuda_runner
from workers.model.device_sample import DeviceSampler
from workers.model.sample import SamplingRow
from workers.model.weights import load

BATCH, CONTEXT, BLOCK = 64, 1024, 256
ROW_BLOCKS = CONTEXT // BLOCK + 1


@dataclass(frozen=True, slots=True)
class Steps:
    """How steps went: on the device, and by the clock of the thread that launches them."""

    count: int
    device_ms: float
    device_p95_ms: float
    wall_ms: float
    longest_wall_ms: float


class DecodeLoad:
    """Decodes from `start` to `stop`."""

    def __init__(self, device: torch.device) -> None:
        """Build a runner with a pool of its own; takes a while, and must not meet another load."""
        torch.cuda.set_device(device)
        self._device = device
        loaded = load(resolve("random:qwen3-0.6b", cache=cache_root(os.environ)), device=device)
        self._runner, pool = build_cuda_runner(
            loaded,
            block_size=BLOCK,
            blocks=BATCH * ROW_BLOCKS,
            max_rows=BATCH,
            max_tokens=BATCH,
            max_model_len=2 * CONTEXT,
            make_sampler=DeviceSampler,
        )
        pool.data.normal_()
        torch.cuda.synchronize(device)
        self._sampling = [
            SamplingRow(sampling=Sampling(max_tokens=1), index=at) for at in range(BATCH)
        ]
        self._stop = threading.Event()
        self._taken: list[tuple[float, float]] = []
        self._thread: threading.Thread | None = None

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

    def _rows(self, *, first: bool) -> list[Row]:
        return [
            Row(
                tokens=[7],
                start=CONTEXT - 1,
                block_table=list(range(row * ROW_BLOCKS, (row + 1) * ROW_BLOCKS)),
                after=None if first else row,
            )
            for row in range(BATCH)
        ]

    def _run(self) -> None:
        torch.cuda.set_device(self._device)
        flight, ended = self._launch(first=True)
        flight.result()
        at_s = time.perf_counter()
        flight, later = self._launch(first=False)
        while not self._stop.is_set():
            following, latest = self._launch(first=False)
            flight.result()
            now_s = time.perf_counter()
            later.synchronize()
            self._taken.append((ended.elapsed_time(later), (now_s - at_s) * 1000))
            flight, ended, later, at_s = following, later, latest, now_s
        flight.result()

    def _launch(self, *, first: bool):  # type: ignore[no-untyped-def]
        flight = self._runner.launch(self._rows(first=first), self._sampling)
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return flight, event
