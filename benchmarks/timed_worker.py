"""A worker that notes when its steps ended, and traces the GPU for a while.

It is the real worker over a plant that looks at a clock. Once a batch of the wanted size decodes,
the profiler records what the GPU does for some steps; what it waited for between them is summed up.
A step ends with the copy of its tokens to the host.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import torch
import uvloop

from lmpoold.shell.observe import log_to_stderr
from lmpoold.text.folder import cache_root
from workers.core.batch import Batch, Sampled
from workers.daemon.build import build_equipment
from workers.daemon.engine import Plant
from workers.daemon.membership import Pool
from workers.daemon.serve import Equipment, serve
from workers.daemon.settings import WorkerConfig
from workers.model.device import choose_device

SETTLED = 40
"""Steps at the wanted size before anything is noted."""
TIMED = 150
TRACED = 60


class TimedPlant:
    """Passes batches on, and notes the end of each step that decodes `size` rows and no more."""

    def __init__(self, inner: Plant, size: int, out: Path) -> None:
        self._inner = inner
        self._size = size
        self._out = out
        self._full = 0
        self._ends_s: list[float] = []
        self._profiler: Any = None
        self._found: dict[str, Any] = {}

    def launch(self, batch: Batch) -> None:
        """Pass a batch on; begin or end the trace between two steps."""
        full = len(batch.decodes) == self._size and not batch.prefills
        self._full = self._full + 1 if full else 0
        if self._full == SETTLED + TIMED + 1 and torch.cuda.is_available():
            activities = [torch.profiler.ProfilerActivity.CUDA]
            self._profiler = torch.profiler.profile(activities=activities)
            self._profiler.start()
        elif self._profiler is not None and self._full in (0, SETTLED + TIMED + 1 + TRACED):
            self._profiler.stop()
            self._found |= idle_share(self._profiler)
            self._profiler = None
        self._inner.launch(batch)

    def ready(self) -> bool:
        """Pass on whether it is."""
        return self._inner.ready()

    def collect(self) -> Sampled:
        """Pass the tokens back."""
        sampled = self._inner.collect()
        if SETTLED < self._full <= SETTLED + TIMED:
            self._ends_s.append(time.perf_counter())
        return sampled

    def write(self) -> None:
        """Leave what was found in a file."""
        if len(self._ends_s) > 1:
            span_s = self._ends_s[-1] - self._ends_s[0]
            self._found["step_ms"] = span_s / (len(self._ends_s) - 1) * 1000
        self._out.write_text(json.dumps(self._found), encoding="utf-8")


def idle_share(profiler: Any) -> dict[str, float]:
    """Return the share of time in which the GPU waited between steps, and within them."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    rows = sorted(
        (event["ts"], event["ts"] + event["dur"], "DtoH" in event["name"])
        for event in events
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    )
    if not rows:
        return {}
    between = within = 0.0
    until, ended = rows[0][1], rows[0][2]
    for begin, end, ends_step in rows[1:]:
        if begin > until:
            if ended:
                between += begin - until
            else:
                within += begin - until
        if end >= until:
            until, ended = end, ends_step
    span = until - rows[0][0]
    return {
        "idle_share": between / span,
        "idle_within_share": within / span,
        "traced_steps": float(sum(row[2] for row in rows)),
        "traced_step_ms": span / max(1, sum(row[2] for row in rows)) / 1000,
    }


@click.command()
@click.option("--redis-url", required=True)
@click.option("--model", required=True)
@click.option("--device", required=True)
@click.option("--blocks", default=0)
@click.option("--max-batched-tokens", default=0)
@click.option("--size", required=True, type=int, help="Rows of the steps to look at.")
@click.option("--out", required=True, type=click.Path(path_type=Path))
def main(size: int, out: Path, device: str, **options: Any) -> None:
    """Serve rank 0 and write the times when it stops."""
    log_to_stderr("warning")
    config = WorkerConfig(cache=cache_root(os.environ), device=device, **options)
    config = config.on(choose_device(device, 0))
    timed: list[TimedPlant] = []

    def build(pool: Pool, progress: Callable[[str, int, int], None]) -> Equipment:
        equipment = build_equipment(config, pool, progress)
        timed.append(TimedPlant(equipment.plant, size, out))
        return replace(equipment, plant=timed[0])

    uvloop.run(serve(config, build))
    for one in timed:
        one.write()


if __name__ == "__main__":
    main()
