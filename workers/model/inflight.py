"""Steps that were launched on a device: what the host reads once the device is done."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.model.sample import Sampled, SamplingRow, TokenLogprobs


class PendingLogprobs:
    """Log-probabilities on their way to the host; `result` is valid after the step's event."""

    def __init__(self, logits: Tensor, tokens: Tensor, rows: Sequence[SamplingRow]) -> None:
        """Start computing and copying.

        Args:
            logits: `[n, vocab]`.
            tokens: `[n]` int64, what was drawn.
            rows: n of them, of which some want log-probabilities.
        """
        self._rows = rows
        wide = logits.float()
        total = wide.logsumexp(-1, keepdim=True)
        count = max(row.sampling.logprobs or 0 for row in rows)
        best = wide.topk(min(count, wide.shape[1]))
        self._chosen = _to_host(wide.gather(1, tokens[:, None]) - total)
        self._values = _to_host(best.values - total)
        self._ids = _to_host(best.indices)

    def result(self) -> list[TokenLogprobs | None]:
        """Return what each row asked for, None for a row that asked for nothing."""
        columns = zip(
            self._rows,
            self._chosen[:, 0].tolist(),
            self._ids.tolist(),
            self._values.tolist(),
            strict=True,
        )
        found: list[TokenLogprobs | None] = []
        for row, chosen, ids, values in columns:
            count = row.sampling.logprobs
            if count is None:
                found.append(None)
                continue
            top = tuple(zip(ids[:count], values[:count], strict=True))
            found.append(TokenLogprobs(chosen=chosen, top=top))
        return found


def _to_host(values: Tensor) -> Tensor:
    pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return pinned.copy_(values, non_blocking=True)


class DeviceInFlight:
    """One launched step; implements `runner.InFlight`."""

    def __init__(
        self, tokens: Tensor, event: torch.cuda.Event, logprobs: PendingLogprobs | None
    ) -> None:
        """Take note of where the tokens will be.

        Args:
            tokens: `[n]` int64, pinned; valid once `event` has happened.
            event: recorded after all copies to the host.
            logprobs: of the step, if any row asked for them.
        """
        self._tokens = tokens
        self._event = event
        self._logprobs = logprobs
        self._sampled: Sampled | None = None

    def ready(self) -> bool:
        """Whether the host has what the step drew."""
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def result(self) -> Sampled:
        """Return what the step drew, waiting until the host has it."""
        if self._sampled is None:
            self._event.synchronize()
            tokens: list[int] = self._tokens.tolist()
            logprobs: list[TokenLogprobs | None] = [None] * len(tokens)
            if self._logprobs is not None:
                logprobs = self._logprobs.result()
            self._sampled = Sampled(tokens=tokens, logprobs=logprobs)
        return self._sampled
