"""Logits to tokens on the device, in a step that the host does not wait for.

The rules are those of `sample`: the same filters in the same order, and the same one number hashed
from (seed, output index) to draw by, so a request's tokens depend neither on its neighbours nor on
the device. What differs is how the filters are found: each is a threshold on the logits, searched
four bits at a time without sorting the vocabulary. Tokens equal to the last one that top_p keeps
stay with it, where a sorted vocabulary would keep some of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lmpoold.protocol.request import Sampling
from workers.model.sample import GREEDY_BELOW, SamplingRow, uniform

MOST_K = 256
"""Largest top_k of a row that keeps few tokens."""
_RING = 3
"""Host buffers in turn: a copy may wait behind two steps, and must find what it was given."""


class DeviceSampler:
    """Draws a token for each of up to `max_rows` rows.

    `fill` never waits for the device; `draw` may be captured in a CUDA graph, and a replay uses
    what was last filled. All buffers stay where they are.

    Attributes:
        greedy: whether every row last filled is greedy, so that `draw_greedy` will do.
        few: whether no row last filled searches the whole vocabulary: each keeps at most MOST_K
            tokens by its top_k, or has neither top_k nor top_p.
    """

    def __init__(
        self,
        vocab: int,
        max_rows: int,
        device: torch.device | str,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Lay out the buffers for `[max_rows, vocab]` logits of `dtype` on `device`."""
        self.vocab = vocab
        self.max_rows = max_rows
        self.device = torch.device(device)
        self.greedy = True
        self.few = True
        cuda = self.device.type == "cuda"
        words = 6 * max_rows  # scale, top_k, top_p, low: 32 bits each; point: 64
        self._host = [torch.zeros(words, dtype=torch.int32, pin_memory=cuda) for _ in range(_RING)]
        self._copied = [
            torch.cuda.Event() if cuda else None  # type: ignore[no-untyped-call]
            for _ in range(_RING)
        ]
        self._turn = 0
        on_device = torch.zeros(words, dtype=torch.int32, device=self.device)
        self._on_device = on_device
        self.scale, self.top_k, self.top_p, self.low = (
            on_device[at * max_rows : (at + 1) * max_rows].view(kind)
            for at, kind in enumerate((torch.float32, torch.int32, torch.float32, torch.float32))
        )
        self.point = on_device[4 * max_rows :].view(torch.float64)
        if cuda:
            from workers.model.triton.draw import Kernels

            self._kernels = Kernels(vocab, max_rows, self.device, self, dtype)

    def fill(self, sampling: Sequence[SamplingRow]) -> None:
        """Say how the rows of the next `draw` are drawn; rows beyond them are greedy.

        Raises: ValueError: more than `max_rows`.
        """
        count = len(sampling)
        if count > self.max_rows:
            raise ValueError(f"{count} rows, the sampler has room for {self.max_rows}")
        settings = [row.sampling for row in sampling]
        was_greedy, self.greedy = self.greedy, True
        if any(one.temperature >= GREEDY_BELOW for one in settings):
            self.greedy = False
        self.few = all(self._keeps_few(one) for one in settings)
        if self.greedy and was_greedy:
            return  # the scales are zero as they were
        self._turn = (self._turn + 1) % _RING
        event = self._copied[self._turn]
        if event is not None:
            event.synchronize()  # three fills ago: long done
        self._write(self._host[self._turn].numpy(), sampling, settings)
        self._on_device.copy_(self._host[self._turn], non_blocking=True)
        if event is not None:
            event.record()

    def _write(
        self,
        words: npt.NDArray[np.int32],
        sampling: Sequence[SamplingRow],
        settings: Sequence[Sampling],
    ) -> None:
        rows, count = self.max_rows, len(settings)
        parts = words[: 4 * rows].reshape(4, rows)
        parts[0] = 0
        parts[0, :count].view(np.float32)[:] = [_scale(one) for one in settings]
        parts[1, :count] = [self._top_k(one) for one in settings]
        parts[2, :count].view(np.float32)[:] = [one.top_p for one in settings]
        parts[3, :count].view(np.float32)[:] = [_low(one) for one in settings]
        words[4 * rows :].view(np.float64)[:count] = [
            0.0 if one.temperature < GREEDY_BELOW else uniform(one.seed, row.index)
            for one, row in zip(settings, sampling, strict=True)
        ]

    def _keeps_few(self, one: Sampling) -> bool:
        top_k = self._top_k(one)
        return top_k <= MOST_K if top_k else one.top_p >= 1 or one.temperature < GREEDY_BELOW

    def _top_k(self, one: Sampling) -> int:
        return one.top_k if one.top_k < self.vocab else 0

    def draw(self, logits: Tensor) -> Tensor:
        """Return `[rows]` int64 tokens of `[rows, vocab]` logits, as they were filled.

        On a GPU the result is overwritten by the next draw.
        """
        if self.device.type == "cuda":
            return self._kernels.draw(logits)
        return draw_by_thresholds(logits, self)

    def draw_greedy(self, logits: Tensor) -> Tensor:
        """Return the best token of each row, whatever was filled."""
        return logits.argmax(-1)


def _scale(one: Sampling) -> float:
    return math.log2(math.e) / one.temperature if one.temperature >= GREEDY_BELOW else 0.0


def _low(one: Sampling) -> float:
    return one.temperature * math.log(one.min_p) if one.min_p > 0 else -math.inf


def draw_by_thresholds(logits: Tensor, row: DeviceSampler) -> Tensor:
    """Do in plain torch what the kernels do; for devices that have none."""
    count, logits = len(logits), logits.float()
    scale, top_k, top_p, low, point = (
        part[:count, None] for part in (row.scale, row.top_k, row.top_p, row.low, row.point)
    )
    best = logits.amax(-1, keepdim=True)
    keys = _keys(logits)
    weights = ((logits - best) * scale).exp2()
    nothing = torch.zeros_like(top_k, dtype=torch.int64)

    def number(threshold: Tensor) -> Tensor:
        return (keys >= threshold).sum(-1, keepdim=True)

    floor = torch.where(top_k > 0, _highest(lambda t: number(t) >= top_k, nothing), nothing)

    def mass(threshold: Tensor) -> Tensor:
        return (weights * (keys >= torch.maximum(threshold, floor))).sum(-1, keepdim=True)

    goal = top_p * mass(nothing)
    reached = _highest(lambda t: mass(t) >= goal, nothing)
    threshold = torch.maximum(floor, torch.where(top_p < 1, reached, nothing))
    threshold = torch.maximum(threshold, torch.where(low > -math.inf, _keys(best + low), nothing))
    kept = weights * (keys >= torch.minimum(threshold, _keys(best)))
    until = kept.to(torch.float64).cumsum(-1)
    drawn = torch.searchsorted(until, point * until[:, -1:], right=True)
    last = (kept > 0).int().cumsum(-1).argmax(-1, keepdim=True)
    return torch.where(scale > 0, torch.minimum(drawn, last), logits.argmax(-1, keepdim=True))[:, 0]


def _highest(enough: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Return the highest key of each row that is still low enough; `start` is 0 and always is."""
    for bit in reversed(range(32)):
        higher = start + 2**bit
        start = torch.where(enough(higher), higher, start)
    return start


def _keys(values: Tensor) -> Tensor:
    """Return whole numbers in [0, 2**32) in the order of float32 values."""
    bits = values.contiguous().view(torch.int32).to(torch.int64)
    return torch.where(bits < 0, -1 - bits, bits + 2**31)
