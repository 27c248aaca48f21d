"""What Prometheus is told of one worker: its line, its steps, its answers.

The engine's thread tells of arrivals, steps and reports; and little is done a token.
"""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from lmpoold.protocol.views import Ended
from lmpoold.shell.metrics import SECONDS, SHORT_S
from workers.core.batch import Batch
from workers.daemon.report import StepReport


class WorkerMetrics:
    """Figures of one worker."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Show in `registry`."""
        self._waiting_s: dict[str, float] = {}
        self._unanswered_s: dict[str, float] = {}
        self._first: dict[str, tuple[float, int]] = {}  # when, and which token it was
        self._queue = Histogram(
            "lmpool_worker_queue_seconds",
            "From a request's arrival at the worker to its first step",
            buckets=SECONDS,
            registry=registry,
        )
        self._ttft = Histogram(
            "lmpool_worker_ttft_seconds",
            "From a request's arrival at the worker to its first token",
            buckets=SECONDS,
            registry=registry,
        )
        self._tpot = Histogram(
            "lmpool_worker_tpot_seconds",
            "Mean time between an answer's tokens",
            buckets=SHORT_S,
            registry=registry,
        )
        self._step = Histogram(
            "lmpool_worker_step_seconds", "One step", buckets=SHORT_S, registry=registry
        )
        computed = Counter(
            "lmpool_worker_step_tokens",
            "Tokens computed, by what for: prefill or decode",
            ["kind"],
            registry=registry,
        )
        self._prefilled, self._decoded = computed.labels("prefill"), computed.labels("decode")
        self._preempted = Counter(
            "lmpool_worker_preempted", "Sequences that lost their blocks", registry=registry
        )
        self._ended = Counter(
            "lmpool_worker_requests", "Requests that ended here", ["state"], registry=registry
        )
        self._asked = Counter(
            "lmpool_worker_prompt_tokens", "Prompt tokens of these", registry=registry
        )
        self._matched = Counter(
            "lmpool_worker_cached_tokens", "Of these, found in the cache", registry=registry
        )
        self._generated = Counter(
            "lmpool_worker_output_tokens", "Tokens generated for these", registry=registry
        )
        self._sequences = Gauge(
            "lmpool_worker_sequences", "Sequences that wait or run", registry=registry
        )
        self._free = Gauge("lmpool_worker_free_blocks", "KV blocks nobody holds", registry=registry)
        self._reclaimable = Gauge(
            "lmpool_worker_reclaimable_blocks",
            "Cached KV blocks that could be had by forgetting them",
            registry=registry,
        )

    def arrived(self, request_id: str) -> None:
        """Note that a request was taken in."""
        self._waiting_s[request_id] = self._unanswered_s[request_id] = time.monotonic()

    def left(self, request_id: str) -> None:
        """Note that a request ends early, or runs elsewhere: nothing is to be told of it."""
        for since_s in (self._waiting_s, self._unanswered_s, self._first):
            since_s.pop(request_id, None)

    def launched(self, batch: Batch) -> None:
        """Note that a batch begins."""
        now_s = time.monotonic()
        for chunk in batch.prefills:
            arrived_s = self._waiting_s.pop(chunk.sequence.request_id, None)
            if arrived_s is not None:
                self._queue.observe(now_s - arrived_s)
        if batch.preempted:
            self._preempted.inc(len(batch.preempted))

    def stepped(self, prefill_tokens: int, decode_rows: int, took_s: float) -> None:
        """Note what a step computed, and how long it took."""
        self._step.observe(took_s)
        self._prefilled.inc(prefill_tokens)
        self._decoded.inc(decode_rows)

    def reported(self, report: StepReport) -> None:
        """Note what is about to be told to the pool."""
        now_s = time.monotonic()
        if self._unanswered_s:
            for _, output in report.outputs:
                arrived_s = self._unanswered_s.pop(output.id, None)
                if arrived_s is not None and output.token is not None:
                    self._ttft.observe(now_s - arrived_s)
                    self._first[output.id] = (now_s, output.index)
        for end in report.ended:
            self._over(end, now_s)
        self._sequences.set(report.counts.sequences)
        self._free.set(report.counts.free)
        self._reclaimable.set(report.counts.reclaimable)

    def _over(self, end: Ended, now_s: float) -> None:
        first_s, index = self._first.get(end.id, (now_s, end.output_tokens))
        self.left(end.id)
        self._ended.labels(end.state).inc()
        self._asked.inc(end.prompt_tokens)
        self._matched.inc(end.cached_tokens)
        self._generated.inc(end.output_tokens)
        if (further := end.output_tokens - index - 1) > 0:
            self._tpot.observe((now_s - first_s) / further)
