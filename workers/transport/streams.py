"""CUDA streams and events as the GPU ways use them."""

from __future__ import annotations

import torch


def side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a stream that is never one of the model's: torch hands streams out of a small pool
    in turn, of which those of high priority are another.
    """
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


def stopwatch() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """Return a begin and an end; waiting for the end leaves the processor to others."""
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
    return begin, end


def seconds_between(begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
    """Wait for `end`, without the interpreter's lock; return the seconds since `begin`."""
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000
