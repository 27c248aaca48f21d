"""What Prometheus is told of lmpoold: routing here, and of the leader the pool and its plans."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from lmpoold.protocol.views import RouteCall, Routed
from lmpoold.shell.metrics import SECONDS, SHORT_S, PoolCollector


class RouterMetrics:
    """Requests through this process; safe to use from one thread."""

    def __init__(self, registry: CollectorRegistry, block_size: int) -> None:
        """Show in `registry`; `block_size` in tokens."""
        self._block_size = block_size
        self._requests = Counter(
            "lmpool_router_requests",
            "Requests by what became of them: routed, parked, refused, dup",
            ["outcome"],
            registry=registry,
        )
        self._refused = Counter(
            "lmpool_router_refused",
            "Requests answered with an error by lmpoold, by code",
            ["code"],
            registry=registry,
        )
        self._asked = Counter(
            "lmpool_router_prompt_tokens", "Prompt tokens of routed requests", registry=registry
        )
        self._matched = Counter(
            "lmpool_router_matched_tokens",
            "Of these, in published blocks of the chosen rank",
            registry=registry,
        )
        self._read = Histogram(
            "lmpool_router_read_seconds",
            "Reading, tokenising and hashing a batch of entries",
            buckets=SHORT_S,
            registry=registry,
        )
        self._route = Histogram(
            "lmpool_router_route_seconds",
            "The call that matches, chooses, reserves and dispatches a batch",
            buckets=SHORT_S,
            registry=registry,
        )

    def read(self, took_s: float) -> None:
        """Note that a batch was read."""
        self._read.observe(took_s)

    def routed(self, calls: Sequence[RouteCall], replies: Sequence[Routed], took_s: float) -> None:
        """Note what `route` did with a batch."""
        self._route.observe(took_s)
        asked = matched = 0
        outcomes: dict[str, int] = {}
        for call, reply in zip(calls, replies, strict=True):
            outcomes[reply.outcome] = outcomes.get(reply.outcome, 0) + 1
            if reply.outcome == "routed":
                asked += call.prompt_tokens
                matched += reply.hit * self._block_size
            elif reply.outcome == "refused":
                self._refused.labels(reply.detail).inc()
        for outcome, count in outcomes.items():
            self._requests.labels(outcome).inc(count)
        self._asked.inc(asked)
        self._matched.inc(matched)

    def refused(self, code: str) -> None:
        """Note that an entry was refused before it came to `route`."""
        self._requests.labels("refused").inc()
        self._refused.labels(code).inc()


class PlannerMetrics:
    """What the leader sees; plans that end while nobody leads are not counted.

    Attributes:
        pool: shown while this process leads.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        """Show in `registry`."""
        self.pool = PoolCollector(shown=False)
        registry.register(self.pool)
        self._leads = Gauge("lmpool_planner_leads", "1 where this lmpoold leads", registry=registry)
        self._settled = Counter(
            "lmpool_planner_settled",
            "Plans that ended, by outcome",
            ["outcome"],
            registry=registry,
        )
        self._moved = Counter(
            "lmpool_planner_moved_blocks",
            "KV blocks that plans brought over, by link",
            ["source", "destination"],
            registry=registry,
        )
        self._took = Histogram(
            "lmpool_planner_plan_seconds",
            "From a plan's begin to its blocks being visible",
            buckets=SECONDS,
            registry=registry,
        )
        self._granted = Counter(
            "lmpool_planner_lease_quota",
            "Requests that placement leases were granted for",
            registry=registry,
        )
        self._reaped = Counter(
            "lmpool_planner_reaped",
            "What had outlived its time and was ended: requests, reservations, ranks, plans",
            registry=registry,
        )

    def leads(self, *, leading: bool) -> None:
        """Note whether this process leads."""
        self._leads.set(int(leading))
        self.pool.shown = leading
        if not leading:
            self.pool.state = None

    def settled(self, outcome: str, source: str, destination: str, blocks: int) -> None:
        """Note a plan that ended."""
        self._settled.labels(outcome).inc()
        if outcome == "finalize":
            self._moved.labels(source, destination).inc(blocks)

    def published(self, took_us: float) -> None:
        """Note how long a plan took."""
        self._took.observe(took_us / 1e6)

    def granted(self, quota: int) -> None:
        """Note a lease."""
        self._granted.inc(quota)

    def reaped(self) -> None:
        """Note a deed of the reaper."""
        self._reaped.inc()
