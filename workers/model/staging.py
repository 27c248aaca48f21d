"""Pinned memory between host and device, in turns, so that nobody waits for a copy to end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.model.packing import Ints

TURNS = 3
"""Steps under way at once, and one more, before a buffer is used again."""


@dataclass(slots=True)
class Numbers:
    """A buffer to be filled; `count` of its numbers are copied."""

    host: Ints
    count: int = 0


class Staging:
    """Buffers for a step's numbers, written by the host in turns."""

    def __init__(self, numbers: int) -> None:
        """Pin buffers of so many int32 each."""
        self._pinned = [
            torch.zeros(numbers, dtype=torch.int32, pin_memory=True) for _ in range(TURNS)
        ]
        self._arrays = [tensor.numpy() for tensor in self._pinned]
        self._copied = [torch.cuda.Event() for _ in range(TURNS)]  # type: ignore[no-untyped-call]
        self._turn = 0

    @contextmanager
    def to_device(self, buffer: Tensor) -> Iterator[Numbers]:
        """Copy to the device what is written within."""
        self._turn = turn = (self._turn + 1) % TURNS
        self._copied[turn].synchronize()  # long since, unless more steps are under way than turns
        numbers = Numbers(self._arrays[turn])
        yield numbers
        pinned = self._pinned[turn]
        buffer[: numbers.count].copy_(pinned[: numbers.count], non_blocking=True)
        self._copied[turn].record()

    @staticmethod
    def to_host(drawn: Tensor) -> tuple[Tensor, torch.cuda.Event]:
        """Copy tokens to pinned memory; they are there once the event has happened."""
        pinned = torch.empty(drawn.shape, dtype=drawn.dtype, pin_memory=True)
        pinned.copy_(drawn, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return pinned, event
