"""Constants of the pool that live in `cfg`, with their defaults and meaning."""

from __future__ import annotations

from dataclasses import dataclass, fields

from lmpoold.protocol.errors import ConfigError

SWITCHES = frozenset({"fetch", "fetch_ratio"})
"""Constants that mean something at 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConstants:
    """The numbers of the route rule and of every limit; stored in `cfg`, changeable there.

    Costs are in token equivalents: one token of prefill is 1.
    """

    w_wait: float = 1.0
    """Cost of a token that waits before this request (queue and reservations)."""
    w_run: float = 0.25
    """Cost of a token of running sequences: they share steps instead of preceding them."""
    w_seq: float = 32.0
    """Cost of a sequence on the rank: each step is longer by its row."""
    w_decode: float = 8.0
    """Prefill tokens that one output token counts for."""
    w_prefill: float = 1.0
    """Cost of a prompt token whose K/V the rank lacks."""
    w_reclaim: float = 0.5
    """Cost of a token of cache that has to be forgotten to make room."""
    resv_ttl_ms: int = 30_000
    """How long a reservation holds if the worker never takes the request."""
    max_parked: int = 4096
    """Requests that may wait for room; past it they are answered `overloaded`."""
    max_ingress: int = 10_000
    """Ingress backlog past which `submit` answers `overloaded`."""
    req_ttl_s: int = 3600
    """How long the record of an ended request is kept."""
    out_ttl_ms: int = 600_000
    """How long an output stream outlives its last entry."""
    out_maxlen: int = 4096
    """Entries an output stream keeps, about."""
    default_deadline_ms: int = 600_000
    """Deadline of a request that names none, from when lmpoold reads it."""
    fetch: int = 1
    """1: a route may bring a prefix along from a neighbour; 0: it may not."""
    fetch_ratio: float = 1.5
    """Computing a prefix must cost this many times what moving it does."""
    fetch_min_blocks: int = 1
    """Fewer missing blocks than this are computed."""
    fetch_wait_ms: int = 2000
    """How long a request waits for its prefix before the worker computes it."""
    plan_prepare_ms: int = 5000
    """How long both sides of a plan may take to prepare."""
    plan_execute_ms: int = 10_000
    """How long the blocks of a plan may travel."""
    plan_settle_ms: int = 2000
    """How often a side is asked again to clear up or to stop."""
    plan_fence_ms: int = 30_000
    """How long a living side may leave that undone before its epoch is ended."""
    plan_ttl_s: int = 600
    """How long the record of a settled plan is kept."""
    plans_per_rank: int = 4
    """Plans that a rank takes part in at once, at most."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            may_be_zero = field.name.startswith("w_") or field.name in SWITCHES
            least = 0 if may_be_zero else 1
            if not value >= least:
                raise ConfigError(f"{field.name} must be at least {least}, got {value}")

    def to_fields(self) -> dict[str, str]:
        """Return the constants as `cfg` holds them."""
        return {field.name: f"{getattr(self, field.name):.15g}" for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolIdentity:
    """What every process of a pool must agree on; the handshake compares field by field."""

    protocol: str
    model: str
    fingerprint: str
    dtype: str
    block_size: int
    kv_block_bytes: int
    domain: str
    max_model_len: int

    def to_fields(self) -> dict[str, str]:
        """Return the identity as `cfg` holds it."""
        return {field.name: str(getattr(self, field.name)) for field in fields(self)}
