"""What can go wrong, and who acts on it.

LMPoolError
├── ConfigError          the operator: fix it; the process exits 2
│   ├── UnsafeServer         the Redis server's settings would lose or evict pool state
│   ├── PoolUnknown          no lmpoold has described the pool yet: wait for one
│   └── PoolMismatch         this process and the pool's `cfg` disagree; the message names the field
├── ProtocolError        a peer said something we cannot read: drop it, count it, carry on
│   └── DecodeError          not one of our messages
├── Rejected             Redis refused a write: read again and decide again
│   ├── Stale                older epoch, generation or snapshot
│   ├── Conflict             somebody moved first
│   │   └── RankUnknown          the rank never joined, or the server has forgotten it
│   ├── RequestsOver         a step of a worker names requests that the pool has ended
│   └── NoCapacity           a bounded set is full
├── TransferFailed       the plan aborts and the source keeps its blocks
│   └── TransferTimeout      its deadline passed
├── InvalidRequest       the producer: an error entry says what to change
└── RequestFailed        the asker: the pool answered with an error entry
"""

from __future__ import annotations


class LMPoolError(Exception):
    """Anything LMPool raises on purpose."""


class ConfigError(LMPoolError):
    """The operator has to change a setting."""


class UnsafeServer(ConfigError):
    """The Redis server would lose or evict pool state as it is set up."""


class PoolUnknown(ConfigError):
    """No lmpoold has described the pool yet."""


class PoolMismatch(ConfigError):
    """This process and the pool disagree on what is served."""


class ProtocolError(LMPoolError):
    """A peer said something we cannot read."""


class DecodeError(ProtocolError):
    """Bytes that are not one of our messages."""


class Rejected(LMPoolError):
    """Redis refused a write; nothing was changed."""


class Stale(Rejected):
    """The caller acted under an older epoch, generation or snapshot."""


class Conflict(Rejected):
    """Somebody moved first."""


class RankUnknown(Conflict):
    """The rank never joined, or the server has forgotten that it did."""


class RequestsOver(Rejected):
    """A worker spoke of requests that the pool has ended: it drops them and says the rest again.

    Attributes:
        ids: of the requests.
    """

    def __init__(self, ids: str) -> None:
        super().__init__(f"ended by the pool: {ids}")
        self.ids = tuple(ids.split())


class NoCapacity(Rejected):
    """A bounded set is full."""


class TransferFailed(LMPoolError):
    """Blocks were not moved: the pair is lost or was never made. The source still has them."""


class TransferTimeout(TransferFailed):
    """The other half of a move, or of a pair, was not done by its deadline."""


class InvalidRequest(LMPoolError):
    """A request that no worker shall see.

    Attributes:
        code: OpenAI's error code where one exists, e.g. `context_length_exceeded`.
        client: the stream to answer on, if the entry named one that can be used.
    """

    def __init__(self, message: str, *, code: str = "invalid_request", client: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.client = client


class RequestFailed(LMPoolError):
    """The pool answered a request with an error entry.

    Attributes:
        code: the entry's `code`, e.g. `overloaded`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
