"""Each Redis key and stream of a pool, spelled once, under one hash tag."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lmpoold.protocol.errors import ConfigError

DEFAULT_POOL = "default"
INGRESS_GROUP = "sched"
_POOL = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class Keyspace:
    """The keys of one pool, all under the hash tag `{<pool>}`: a pool lies on one cluster node."""

    pool: str = DEFAULT_POOL

    def __post_init__(self) -> None:
        if not _POOL.fullmatch(self.pool):
            raise ConfigError(
                f"pool name {self.pool!r} must be 1 to 64 of letters, digits and . _ -"
            )

    @property
    def prefix(self) -> str:
        """What every key of the pool begins with."""
        return f"lmpool:{{{self.pool}}}:"

    @property
    def load(self) -> str:
        """HASH rank -> load row; KEYS[1] of every function."""
        return self.prefix + "load"

    @property
    def cfg(self) -> str:
        """HASH of what the pool serves and its constants."""
        return self.prefix + "cfg"

    @property
    def ingress(self) -> str:
        """STREAM that producers write to; group `sched`."""
        return self.prefix + "in"

    @property
    def staging(self) -> str:
        """ZSET PX of ranks whose turn it is to send a snapshot, by when it ends."""
        return self.prefix + "staging"

    @property
    def parked(self) -> str:
        """ZSET of request ids no rank can take now, by priority, then by deadline."""
        return self.prefix + "parked"

    @property
    def due(self) -> str:
        """ZSET of requests that wait for a rank or are at one, by when the pool ends them."""
        return self.prefix + "due"

    @property
    def parked_requests(self) -> str:
        """HASH of parked requests: `<id>:p` payload, `<id>:t` tokens, `<id>:a` attempt."""
        return self.prefix + "parked:req"

    @property
    def wake(self) -> str:
        """LIST with one element when parked requests may find room."""
        return self.prefix + "wake"

    @property
    def dead(self) -> str:
        """STREAM of entries that could not be served, with the reason."""
        return self.prefix + "dead"

    @property
    def lead(self) -> str:
        """STRING PX: the lmpoold that leads."""
        return self.prefix + "sched:lead"

    @property
    def plans(self) -> str:
        """ZSET of live transfer plans, by the deadline of their phase (unix ms)."""
        return self.prefix + "plans"

    @property
    def plan_log(self) -> str:
        """STREAM of settled plans with their figures."""
        return self.prefix + "plans:log"

    @property
    def plan_refusals(self) -> str:
        """STREAM of plans that were weighed and not begun, with the numbers."""
        return self.prefix + "plans:refused"

    @property
    def probe_log(self) -> str:
        """STREAM of settled plans that measured a link, with their figures."""
        return self.prefix + "plans:probed"

    @property
    def links(self) -> str:
        """HASH `source>destination` -> what moving blocks costs on that link."""
        return self.prefix + "links"

    @property
    def no_links(self) -> str:
        """HASH `low>high` -> why two ranks that live have no link."""
        return self.prefix + "links:refused"

    @property
    def hot(self) -> str:
        """ZSET of hashes of found blocks, by how many requests found them lately."""
        return self.prefix + "hot"

    @property
    def profile(self) -> str:
        """STRING: what calibration measured, JSON."""
        return self.prefix + "profile"

    def plan(self, plan_id: str) -> str:
        """HASH of a transfer plan."""
        return f"{self.prefix}plan:{plan_id}"

    def rank_facts(self, rank: int) -> str:
        """HASH of what a rank's worker says of itself."""
        return f"{self.prefix}r:{rank}:info"

    def worker(self, rank: int) -> str:
        """STREAM of routes, cancels and plan orders for a rank; its group is named by its epoch."""
        return f"{self.prefix}w:{rank}"

    def out(self, client: str) -> str:
        """STREAM of answers for a client."""
        return f"{self.prefix}out:{client}"

    def open(self, client: str) -> str:
        """SET of a client's open requests, while their number is bounded."""
        return f"{self.prefix}open:{client}"

    @property
    def leases(self) -> str:
        """HASH prefix hash -> placement lease."""
        return self.prefix + "leases"

    @property
    def fence(self) -> str:
        """STRING: the last fencing token."""
        return self.prefix + "sched:fence"

    def request(self, request_id: str) -> str:
        """HASH of a request's state."""
        return f"{self.prefix}req:{request_id}"

    def emitted(self, request_id: str) -> str:
        """STRING of the token ids a running request has emitted, each followed by a blank."""
        return f"{self.prefix}emitted:{request_id}"

    def pages(self, rank: int) -> str:
        """HASH prefix hash -> block:generation:depth:parent: the page table of a rank."""
        return f"{self.prefix}r:{rank}:pages"

    def stage(self, rank: int, epoch: str, version: int) -> str:
        """HASH in which a worker stages a full snapshot."""
        return f"{self.prefix}r:{rank}:stage:{epoch}:{version}"

    def reservations(self, rank: int) -> str:
        """HASH request.attempt -> blocks:tokens:deadline_ms:deepest."""
        return f"{self.prefix}r:{rank}:resv"

    def over(self, rank: int) -> str:
        """STRING PX: the pool has ended requests that the rank may still speak of."""
        return f"{self.prefix}r:{rank}:over"

    def alive(self, rank: int) -> str:
        """STRING PX: the epoch of the worker that holds a rank."""
        return f"{self.prefix}r:{rank}:alive"

    def boot(self, rank: int) -> str:
        """STRING EX: how far a worker is with loading, `stage done total`."""
        return f"{self.prefix}r:{rank}:boot"
