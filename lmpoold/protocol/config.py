"""Constants of the pool that live in `cfg`, with their defaults and meaning."""

from __future__ import annotations

from dataclasses import dataclass, fields

from lmpoold.protocol.errors import ConfigError


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

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name.startswith("w_") else 1
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
