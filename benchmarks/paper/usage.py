"""How busy the machine was: GPUs by NVML where there are any, and processes by their CPU time."""

from __future__ import annotations

import contextlib
import threading
import time
from types import TracebackType
from typing import Any, Self

from benchmarks.processes import Processes

EVERY_S = 0.1


class Usage:
    """Looks at the machine while its block runs."""

    def __init__(self, processes: Processes, device: str, ranks: int) -> None:
        """Watch the GPUs of `ranks` workers if `device` says they have some."""
        self._processes = processes
        self._count = ranks if device.startswith("cuda") else 0
        self._looks: list[list[int]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gpu usage", daemon=True)
        self._cpu_s: dict[str, float] = {}
        self._wall_s = 0.0

    def __enter__(self) -> Self:
        """Begin."""
        self._cpu_s, self._wall_s = self._processes.cpu_s(), time.perf_counter()
        if self._count:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop looking."""
        self._over.set()
        if self._count:
            self._thread.join()
        self._wall_s = time.perf_counter() - self._wall_s
        after = self._processes.cpu_s()
        self._cpu_s = {name: after[name] - before for name, before in self._cpu_s.items()}

    def figures(self) -> dict[str, Any]:
        """Return the share of a core that each process took, and of the time that GPUs ran."""
        found: dict[str, Any] = {
            "cores": {name: spent / self._wall_s for name, spent in self._cpu_s.items()}
        }
        if self._looks:
            mean = [sum(each) / len(each) / 100 for each in zip(*self._looks, strict=True)]
            found |= {"gpu": sum(mean) / len(mean), "gpus": mean}
        return found

    def _watch(self) -> None:
        import pynvml

        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(self._count)]
            while not self._over.wait(EVERY_S):
                self._looks.append([pynvml.nvmlDeviceGetUtilizationRates(g).gpu for g in gpus])
