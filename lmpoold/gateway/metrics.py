"""What Prometheus is told: requests, times and tokens of this gateway, and the pool behind it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lmpoold.protocol.messages import Usage
from lmpoold.protocol.state import PoolState
from lmpoold.shell.metrics import SECONDS, SHORT_S, PoolCollector


class Metrics:
    """The gateway's own registry: several may live in one process.

    Attributes:
        under_way: requests being answered, for the caller to count.
    """

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self._pool = PoolCollector()
        registry.register(self._pool)
        self._requests = Counter(
            "lmpool_gateway_requests",
            "HTTP requests for tokens by endpoint and status; 499: the caller left",
            ["endpoint", "code"],
            registry=registry,
        )
        self.under_way = 0
        Gauge(
            "lmpool_gateway_under_way", "HTTP requests being answered", registry=registry
        ).set_function(lambda: self.under_way)
        self.ttft = Histogram(
            "lmpool_gateway_ttft_seconds",
            "From the request's arrival to a choice's first token",
            buckets=SECONDS,
            registry=registry,
        )
        self.tpot = Histogram(
            "lmpool_gateway_tpot_seconds",
            "Mean time between a choice's tokens",
            buckets=SHORT_S,
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

    def page(self, state: PoolState | None) -> bytes:
        """Return the text of a scrape; None: the pool's server does not answer."""
        self._pool.state = state
        return generate_latest(self.registry)
