"""What Prometheus is told: requests, times and tokens of this gateway, and the pool's ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lmpoold.protocol.messages import Usage
from lmpoold.protocol.views import RankRow

TTFT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TPOT_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
GAUGES = {
    "blocks": "KV blocks of the rank",
    "free": "KV blocks nobody holds",
    "reclaimable": "cached KV blocks that could be had by forgetting them",
    "reserved": "KV blocks promised to requests on their way",
    "pages": "blocks in the rank's page table",
    "sequences": "sequences that wait or run",
    "wait_tokens": "weighted tokens of waiting sequences",
    "run_tokens": "weighted tokens of running sequences",
}
COUNTERS = {
    "requests": "requests ended",
    "prompt_tokens": "prompt tokens asked",
    "cached_tokens": "prompt tokens found in the cache",
    "output_tokens": "tokens generated",
}
"""Fields of a rank's row, and what they mean; counters count since the pool began."""


class _Ranks(Collector):
    """The pool's ranks as of the last scrape; None while its server does not answer."""

    def __init__(self) -> None:
        self.rows: Sequence[RankRow] | None = None

    def collect(self) -> Iterator[Metric]:
        """Yield one family a field."""
        answers = int(self.rows is not None)
        yield GaugeMetricFamily("lmpool_server_up", "Whether the pool's server answers", answers)
        rows = self.rows or ()
        up = GaugeMetricFamily("lmpool_rank_up", "Whether a rank takes requests", labels=["rank"])
        for row in rows:
            up.add_metric([str(row.rank)], int(row.state == "up"))
        yield up
        for name, meaning in GAUGES.items():
            gauge = GaugeMetricFamily(f"lmpool_rank_{name}", meaning, labels=["rank"])
            for row in rows:
                gauge.add_metric([str(row.rank)], getattr(row, name))
            yield gauge
        for name, meaning in COUNTERS.items():
            counter = CounterMetricFamily(f"lmpool_rank_{name}", meaning, labels=["rank"])
            for row in rows:
                counter.add_metric([str(row.rank)], getattr(row, name))
            yield counter


class Metrics:
    """The gateway's own registry: several may live in one process."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._ranks = _Ranks()
        registry.register(self._ranks)
        self._requests = Counter(
            "lmpool_gateway_requests",
            "HTTP requests for tokens by endpoint and status; 499: the caller left",
            ["endpoint", "code"],
            registry=registry,
        )
        self.under_way = Gauge(
            "lmpool_gateway_under_way", "HTTP requests being answered", registry=registry
        )
        self.ttft = Histogram(
            "lmpool_gateway_ttft_seconds",
            "From the request's arrival to a choice's first token",
            buckets=TTFT_S,
            registry=registry,
        )
        self.tpot = Histogram(
            "lmpool_gateway_tpot_seconds",
            "Mean time between a choice's tokens",
            buckets=TPOT_S,
            registry=registry,
        )
        self._asked = Counter(
            "lmpool_gateway_prompt_tokens", "Prompt tokens asked", registry=registry
        )
        self._matched = Counter(
            "lmpool_gateway_cached_tokens", "Of these, found in the cache", registry=registry
        )
        self._generated = Counter(
            "lmpool_gateway_output_tokens", "Tokens generated", registry=registry
        )

    def ended(self, endpoint: str, status: int) -> None:
        """Count a request by how it ended."""
        self._requests.labels(endpoint, str(status)).inc()

    def used(self, usage: Usage) -> None:
        """Count a finished choice's tokens."""
        self._asked.inc(usage.prompt_tokens)
        self._matched.inc(usage.cached_tokens)
        self._generated.inc(usage.completion_tokens)

    def page(self, ranks: Sequence[RankRow] | None) -> bytes:
        """Return the text of a scrape."""
        self._ranks.rows = ranks
        return generate_latest(self._registry)
