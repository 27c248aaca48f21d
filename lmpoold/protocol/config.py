"""Constants of the pool that live in `cfg`, with their defaults and meaning."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from lmpoold.protocol.errors import ConfigError

MOST = 1e12
PAIRS = r"(\d{1,6}-\d{1,6}(,\d{1,6}-\d{1,6})*)?"
MAY_BE_ZERO = re.compile(
    r"w_|bypass_|spill_|origin_hops|max_client_requests|fetch$|fetch_ratio|fetch_slack|foreground|background"
    r"|hot_skew|hot_idle|hot_ratio"
)


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
    w_flight: float = 0.25
    """Cost of a prompt token that a request before it is about to compute there."""
    w_lease: float = 256.0
    """What a placement lease takes off the cost of a rank that holds its prefix."""
    w_hop: float = 64.0
    """Cost of a step away from the request's origin: a neighbour is one, elsewhere two."""
    w_urgent: float = 0.25
    """Share of the waiting work that counts for a request of priority above 0."""
    bypass_slack: float = 256.0
    """How much cheaper another rank must be to take a request from its prefix's owner; never
    more than the prefix saves."""
    spill_gap: float = 1024.0
    """How much longer an owner's queue must be than its neighbour's to let that have a request."""
    spill_slack: float = 512.0
    """How much more such a spill may cost."""
    origin_hops: int = 2
    """How far from its origin a request may go: 0 nowhere, 1 to a neighbour, 2 anywhere."""
    flight_ttl_ms: int = 10_000
    """How long a dispatched prompt counts as being computed if nothing is published."""
    resv_ttl_ms: int = 30_000
    """How long a reservation holds if the worker never takes the request."""
    max_parked: int = 4096
    """Requests that may wait for room; past it they are answered `overloaded`."""
    max_ingress: int = 10_000
    """Ingress backlog past which `submit` answers `overloaded`."""
    max_client_requests: int = 0
    """Requests of one client at a time, past which they are `overloaded`; 0 = no bound."""
    most_falls: int = 8
    """Workers in a row that may be lost while they have a request that makes no progress; then it
    is refused instead of being handed on."""
    late_grace_ms: int = 1000
    """How long after its deadline a worker may still end a request; then the pool does."""
    engine_stall_ms: int = 60_000
    """How long an engine that has work may finish no step; then its rank is taken from it."""
    snapshots_at_once: int = 1
    """Ranks that may send a full snapshot at a time: so many chunks may keep a client waiting. One
    keeps a server busy: the next chunk is made while it is at the last one."""
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
    fetch_slack: float = 2048.0
    """How much cheaper bringing a prefix to another rank must be than its owner's queue. Requests
    of one prefix read it together where it is, so parting them has to be worth more than a turn."""
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
    foreground: int = 1
    """1: a worker short of blocks moves cold chains to a neighbour; 0: it forgets them."""
    foreground_ratio: float = 1.1
    """What a moved chain is expected to save must be this many times what moving it costs."""
    background: int = 1
    """1: hot prefixes are copied ahead of the requests that need them; 0: they are not."""
    hot_threshold: float = 24.0
    """Requests that found a prefix lately, from which on it is hot."""
    hot_skew: float = 2.0
    """Sequences that the owner must have more than the rank that gets a copy."""
    hot_idle: float = 8.0
    """Sequences above which a rank is too busy to get a copy."""
    hot_ratio: float = 1.5
    """Computing a hot prefix must cost this many times what copying it does."""
    hot_cooldown_ms: int = 2000
    """How long a prefix and a link are left alone after a plan."""
    lease_quota: int = 16
    """Requests that each side of a copied prefix gets a lease for."""
    lease_ttl_ms: int = 10_000
    """How long such a lease lasts."""

    pairs: str = ""
    """Ranks with a direct link, as "0-1,2-3": each other's neighbours. For moving blocks it takes
    the place of what the workers say of their GPUs."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "str":
                if not re.fullmatch(PAIRS, value):
                    raise ConfigError(f"{field.name} must be like 0-1,2-3, got {value[:80]!r}")
                continue
            least = 0 if MAY_BE_ZERO.match(field.name) else 1
            if not least <= value <= MOST:
                raise ConfigError(f"{field.name} must be from {least} to {MOST:g}, got {value}")

    def to_fields(self) -> dict[str, str]:
        """Return the constants as `cfg` holds them."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: f"{value:.15g}" if value != str(value) else value for name, value in values}


def check_names(names: Iterable[str]) -> None:
    """Refuse a name that no constant has, with those there are (ConfigError)."""
    known = [field.name for field in fields(PoolConstants)]
    for name in names:
        if name not in known:
            raise ConfigError(f"no constant {name!r}; there are {', '.join(sorted(known))}")


def read_constants(given: Mapping[str, str]) -> dict[str, str]:
    """Return constants, as an operator wrote them, in the form that `cfg` holds.

    Raises: ConfigError: an unknown name, or a value that cannot be; the message says what can.
    """
    kinds = {field.name: field.type for field in fields(PoolConstants)}
    values: dict[str, Any] = {}
    check_names(given)
    for name, text in given.items():
        try:
            values[name] = {"int": int, "float": float, "str": str}[str(kinds[name])](text)
        except ValueError:
            raise ConfigError(
                f"{name} must be a number ({kinds[name]}), got {text[:80]!r}"
            ) from None
    written = PoolConstants(**values).to_fields()
    return {name: written[name] for name in values}


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
