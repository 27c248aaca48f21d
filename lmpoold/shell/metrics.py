"""What Prometheus is told of the pool as a whole, and the port where a process is scraped.

Numbers only: ratios are for the asker to make, from sums. Figures of the pool come from its server,
so every process that shows them shows the same ones; ask for their `max`, not their sum.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lmpoold.protocol.errors import ConfigError
from lmpoold.protocol.state import PoolState

log = logging.getLogger(__name__)

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Buckets for what a person waits for."""
SHORT_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
"""Buckets for calls, steps, and the time between tokens."""

RANK_GAUGES = {
    "blocks": "KV blocks of the rank",
    "free": "KV blocks nobody holds",
    "reclaimable": "cached KV blocks that could be had by forgetting them",
    "reserved": "KV blocks promised to requests on their way",
    "pages": "blocks in the rank's page table",
    "sequences": "sequences that wait or run",
    "wait_tokens": "weighted tokens of waiting sequences",
    "run_tokens": "weighted tokens of running sequences",
}
RANK_COUNTERS = {
    "requests": "requests ended",
    "prompt_tokens": "prompt tokens asked",
    "cached_tokens": "prompt tokens found in the cache",
    "output_tokens": "tokens generated",
}
"""Fields of a rank's row, and what they mean; counters count since the pool began."""
POOL_GAUGES = {
    "ingress": "requests that no lmpoold has routed yet",
    "parked": "requests that wait for a rank with room",
    "dead": "entries that could not be served, the last ones",
    "daemons": "lmpoold that read ingress",
}


class PoolCollector(Collector):
    """The pool as last read.

    Attributes:
        state: what is shown; None while its server does not answer.
        shown: whether there is anything to say at all: of several lmpoold, only the leader does.
    """

    def __init__(self, *, shown: bool = True) -> None:
        self.state: PoolState | None = None
        self.shown = shown

    def collect(self) -> Iterator[Metric]:
        """Yield one family a figure; without a reading, families without samples."""
        state = self.state
        up = GaugeMetricFamily("lmpool_server_up", "Whether the pool's server answers", labels=[])
        if self.shown:
            up.add_metric([], int(state is not None))
        yield up
        yield from _of_pool(state)
        yield from _of_ranks(state or PoolState())
        yield from _of_plans(state or PoolState())


def _of_pool(state: PoolState | None) -> Iterator[Metric]:
    for name, meaning in POOL_GAUGES.items():
        gauge = GaugeMetricFamily(f"lmpool_pool_{name}", meaning, labels=[])
        if state is not None:
            gauge.add_metric([], getattr(state, name))
        yield gauge


def _of_ranks(state: PoolState) -> Iterator[Metric]:
    up = GaugeMetricFamily("lmpool_rank_up", "Whether a rank takes requests", labels=["rank"])
    for row in state.ranks:
        up.add_metric([str(row.rank)], int(row.state == "up"))
    yield up
    for name, meaning in RANK_GAUGES.items():
        gauge = GaugeMetricFamily(f"lmpool_rank_{name}", meaning, labels=["rank"])
        for row in state.ranks:
            gauge.add_metric([str(row.rank)], getattr(row, name))
        yield gauge
    for name, meaning in RANK_COUNTERS.items():
        counter = CounterMetricFamily(f"lmpool_rank_{name}", meaning, labels=["rank"])
        for row in state.ranks:
            counter.add_metric([str(row.rank)], getattr(row, name))
        yield counter


def _of_plans(state: PoolState) -> Iterator[Metric]:
    plans: dict[tuple[str, ...], float] = {}
    oldest_s: dict[tuple[str, ...], float] = {}
    for plan in state.plans:
        plans[plan.phase, plan.why] = plans.get((plan.phase, plan.why), 0) + 1
        oldest_s[(plan.phase,)] = max(oldest_s.get((plan.phase,), 0.0), plan.age_ms / 1000)
    quota: dict[tuple[str, ...], float] = {}
    for lease in state.leases:
        for rank, left in lease.quota.items():
            quota[(str(rank),)] = quota.get((str(rank),), 0) + left
    leases: dict[tuple[str, ...], float] = {(): len(state.leases)}
    families: tuple[tuple[str, str, list[str], dict[tuple[str, ...], float]], ...] = (
        ("plans", "Live transfer plans by phase and reason", ["phase", "why"], plans),
        ("plan_oldest_seconds", "Age of the oldest live plan of a phase", ["phase"], oldest_s),
        ("leases", "Placement leases that are held", [], leases),
        ("lease_quota", "Requests that ranks may still take under leases", ["rank"], quota),
    )
    for name, meaning, labels, values in families:
        gauge = GaugeMetricFamily(f"lmpool_{name}", meaning, labels=labels)
        for label, value in values.items():
            gauge.add_metric(list(label), value)
        yield gauge


def show_metrics(registry: CollectorRegistry, host: str, port: int | None) -> Scraped | None:
    """Open the port where a process is scraped, if one is wanted, and log which it is."""
    if port is None:
        return None
    scraped = Scraped(registry, host, port)
    log.info("metrics", extra={"host": host, "port": scraped.port})
    return scraped


class Scraped:
    """The port where a process is scraped: a thread of its own, `/metrics` and nothing else."""

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        """Listen.

        Args:
            registry: what is shown.
            host: address to listen on.
            port: 0 for a free one; `port` has it then.
        Raises: ConfigError: the address cannot be had.
        """
        try:
            server, thread = start_http_server(port, host, registry)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"cannot show metrics on {host} port {port}: {error}; choose others with "
                "--metrics-host and --metrics-port"
            ) from None
        self._server: Any = server
        self._thread = thread
        self.port: int = server.server_port

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
