"""Runs a model on a GPU: steps are launched, and read when the device is done with them.

Nothing in `launch` waits for the device. A step's numbers are packed into pinned memory and copied
at once; a decode takes the token of the step before where that step left it, on the device; the
drawn tokens are copied back, and an event tells when they are there. So the next step can be
launched while one computes. Whatever fits a captured graph is replayed, padded to its size; larger
steps launch their kernels one by one. One runner belongs to one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from workers.model.batch import Row
from workers.model.decoder import Decoder, PlainDecoder
from workers.model.fuse import FusedDecoder, Unfused, fuse
from workers.model.graphs import (
    Captured,
    Capturer,
    decode_rooms,
    mixed_rooms,
    prefill_rooms,
)
from workers.model.inflight import DeviceInFlight, PendingLogprobs
from workers.model.kv import KVPool
from workers.model.packing import Layout, StepSize, count_decodes, size_of
from workers.model.sample import GREEDY_BELOW, SamplingRow
from workers.model.sharing import LEAST_ROWS, Shared, find_shared, most_tiles
from workers.model.size import blocks_for_tokens
from workers.model.staging import Staging
from workers.model.triton.backend import TritonBackend
from workers.model.triton.best import Best
from workers.model.triton.pointwise import take
from workers.model.triton.prefill import TILE
from workers.model.weights import LoadedModel, Progress, silent

log = logging.getLogger(__name__)


class Sampler(Protocol):
    """Draws tokens on the device."""

    def fill(self, sampling: Sequence[SamplingRow]) -> None:
        """Take the rows' parameters, without waiting for the device."""
        ...

    def draw(self, logits: Tensor) -> Tensor:
        """Return `[rows]` int64 of `[rows, vocab]` logits."""
        ...


def make_decoder(loaded: LoadedModel, pool: KVPool, *, fused: bool = True) -> Decoder:
    """Bind a model to a pool, its layers replaced by faster ones where they are known.

    Raises: ConfigError: the model cannot be served from a paged pool.
    """
    backend = TritonBackend(pool.data.device)
    plain = PlainDecoder(loaded.model, pool, backend)
    if not fused:
        return plain
    better = fuse(loaded.model, pool, backend, plain)
    if isinstance(better, Unfused):
        log.warning("the model runs without fused kernels", extra={"reason": better.reason})
        return plain
    return better


class CudaRunner:
    """A loaded model on a pool of one GPU; implements `runner.Runner`."""

    def __init__(
        self,
        decoder: Decoder,
        pool: KVPool,
        *,
        vocab_size: int,
        max_rows: int,
        max_tokens: int,
        max_model_len: int,
        sampler: Sampler,
        graphs: bool = True,
        progress: Progress = silent,
    ) -> None:
        """Lay out buffers and capture graphs.

        Args:
            decoder: from `make_decoder`.
            pool: what it reads and writes from now on.
            vocab_size: tokens that the head scores.
            max_rows: most rows of a step.
            max_tokens: most tokens of a step.
            max_model_len: most tokens of a sequence.
            sampler: for rows that are not greedy.
            graphs: False launches every kernel of every step.
            progress: told of the captures.
        """
        self._decoder = decoder
        self._pool = pool
        self._device = pool.data.device
        self._max_rows = max_rows
        self._sampler = sampler
        self._backend = TritonBackend(self._device)
        decoder.bind(pool)
        tiles = -(-max_tokens // TILE) + max_rows
        shares = most_tiles(max_rows)
        self._largest = self._layout(
            StepSize(tokens=max_tokens, rows=max_rows, decodes=max_rows, tiles=tiles, shares=shares)
        )
        blocks = max_rows * blocks_for_tokens(max_model_len, pool.block_size)
        numbers = self._largest.fixed + blocks
        self._buffer = torch.zeros(numbers, dtype=torch.int32, device=self._device)
        self._staging = Staging(numbers)
        self._drawn = torch.zeros(max_rows, dtype=torch.int64, device=self._device)
        self._best = Best(vocab_size, max_rows, self._device)
        self._decodes: list[Captured] = []
        self._prefills: list[Captured] = []
        self._mixed: list[Captured] = []
        if graphs:
            with torch.inference_mode(), torch.cuda.device(self._device):
                self._capture(vocab_size, max_tokens, progress)

    def launch(self, rows: Sequence[Row], sampling: Sequence[SamplingRow]) -> DeviceInFlight:
        """Start a step; as in `runner.Runner`.

        Raises: ValueError: rows that are no step, or more than the runner was made for.
        """
        with torch.inference_mode(), torch.cuda.device(self._device):
            logits = self._compute(rows)
            count = len(logits)
            if count != len(sampling):
                raise ValueError(f"{len(sampling)} sampling rows for {count} rows that sample")
            drawn = self._drawn[:count]
            logprobs = None
            if any(row.sampling.temperature >= GREEDY_BELOW for row in sampling):
                self._sampler.fill(sampling)
                drawn.copy_(self._sampler.draw(logits))
            if any(row.sampling.logprobs is not None for row in sampling):
                logprobs = PendingLogprobs(logits, drawn, sampling)
            tokens, event = self._staging.to_host(drawn)
            return DeviceInFlight(tokens, event, logprobs)

    def _compute(self, rows: Sequence[Row]) -> Tensor:
        """Enqueue a step up to the greedy choice in `_drawn`; returns `[n, vocab]` logits."""
        shared = self._shared(rows)
        size = size_of(rows, tile=TILE, shares=len(shared))
        sampled = sum(row.samples for row in rows)
        if sampled == len(rows) == size.decodes:
            captured = _first_fit(self._decodes, size)
            if captured is not None:
                self._send(captured.layout, rows, shared)
                captured.graph.replay()
                return captured.output[: len(rows)]
        captured = _first_fit(self._mixed if size.decodes else self._prefills, size)
        if captured is not None:
            self._send(captured.layout, rows, shared)
            captured.graph.replay()
            assert isinstance(self._decoder, FusedDecoder)  # only these have such graphs
            keep = captured.step.sample_at[:sampled]
            logits = self._decoder.head(captured.output.index_select(0, keep))
        else:
            if not size.fits(self._largest.size):
                raise ValueError(f"a step of {size} does not fit {self._largest.size}")
            layout = self._layout(size)
            self._send(layout, rows, shared)
            step = layout.views(self._buffer)
            take(step.ids, step.after, self._drawn)
            plan = self._backend.plan_device(step, self._pool)
            logits = self._decoder.logits(plan, step.sample_at[:sampled])
        if sampled:
            self._best(logits, self._drawn[:sampled])
        return logits

    def _layout(self, size: StepSize) -> Layout:
        return Layout(
            size,
            tile=TILE,
            block_size=self._pool.block_size,
            trash_block=self._pool.trash_block,
        )

    def _shared(self, rows: Sequence[Row]) -> tuple[Shared, ...]:
        """Return which decodes of a step read the same K/V."""
        decodes = rows[: count_decodes(rows)]
        if len(decodes) < LEAST_ROWS:
            return ()
        tables, contexts = [row.block_table for row in decodes], [row.context for row in decodes]
        return find_shared(tables, contexts, self._pool.block_size)

    def _send(self, layout: Layout, rows: Sequence[Row], shared: Sequence[Shared] = ()) -> None:
        with self._staging.to_device(self._buffer) as numbers:
            numbers.count = layout.fill(numbers.host, rows, shared)

    def _capture(self, vocab_size: int, max_tokens: int, progress: Progress) -> None:
        decodes = decode_rooms(self._max_rows)
        prefills: list[StepSize] = []
        if isinstance(self._decoder, FusedDecoder):
            prefills = prefill_rooms(self._max_rows, max_tokens, TILE)
        capturer = Capturer(self._device)
        logits = torch.empty(
            (max(room.rows for room in decodes), vocab_size),
            dtype=self._pool.data.dtype,
            device=self._device,
        )
        self._buffer.zero_()
        todo = [
            (room, captured)
            for rooms, captured in (
                (decodes, self._decodes),
                (prefills, self._prefills),
                (mixed_rooms(prefills), self._mixed),
            )
            for room in reversed(rooms)  # the largest first: the others then fit into its memory
        ]
        for done, (room, captured) in enumerate(todo):
            progress("capture graphs", done, len(todo))
            if captured is self._decodes:
                one = self._capture_decodes(capturer, room, logits[: room.rows])
            else:
                one = self._capture_tokens(capturer, room)
            captured.insert(0, one)
        torch.cuda.synchronize(self._device)
        progress("capture graphs", len(todo), len(todo))

    def _pad(self, layout: Layout) -> None:
        """Leave a step of nothing but padding on the device."""
        one = Row(tokens=[0], start=0, block_table=[self._pool.trash_block])
        tokens = layout.size.tokens
        if not layout.size.decodes:
            count = min(2, tokens)
            one = Row(tokens=[0] * count, start=0, block_table=[self._pool.trash_block])
        self._send(layout, [one])

    def _capture_decodes(self, capturer: Capturer, size: StepSize, logits: Tensor) -> Captured:
        layout = self._layout(size)
        step = layout.views(self._buffer)
        plan = self._backend.plan_device(step, self._pool)

        def run() -> Tensor:
            take(step.ids, step.after, self._drawn)
            self._decoder.logits(plan, None, out=logits)
            self._best(logits, self._drawn[: size.rows])
            return logits

        self._pad(layout)
        graph, output = capturer.capture(run)
        return Captured(layout=layout, step=step, graph=graph, output=output)

    def _capture_tokens(self, capturer: Capturer, size: StepSize) -> Captured:
        layout = self._layout(size)
        step = layout.views(self._buffer)
        plan = self._backend.plan_device(step, self._pool)
        decoder = self._decoder
        assert isinstance(decoder, FusedDecoder)

        def run() -> Tensor:
            take(step.ids, step.after, self._drawn)
            return decoder.hidden(plan)

        self._pad(layout)
        graph, output = capturer.capture(run)
        return Captured(layout=layout, step=step, graph=graph, output=output)


def _first_fit(captured: list[Captured], size: StepSize) -> Captured | None:
    return next((one for one in captured if size.fits(one.layout.size)), None)
