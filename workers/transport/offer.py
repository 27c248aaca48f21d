"""What a worker tells its peers of its pool: one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lmpoold.protocol.errors import TransferFailed

Facts = Mapping[str, Any]
"""What one way needs of a pool; only that way reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """How to reach one worker's pool.

    Attributes:
        rank: whose pool it is.
        key: 32 hex digits of this process; who knows them may open a pair with it.
        host: where its door is.
        port: likewise.
        geometry: of a block.
        beacon: the block that holds the pattern.
        nonce: which pattern.
        ways: kind -> facts, the ways that this side can use, best first.
    """

    rank: int
    key: str
    host: str
    port: int
    geometry: str
    beacon: int
    nonce: int
    ways: Mapping[str, Facts]

    def text(self) -> str:
        """Return the line."""
        return json.dumps(asdict(self), separators=(",", ":"))


def read_offer(text: str, peer: int) -> Offer:
    """Read the offer of `peer`.

    Raises: TransferFailed: it is none, or another rank's.
    """
    try:
        offer = Offer(**json.loads(text))
        offer.ways.items()
    except (ValueError, TypeError, AttributeError) as error:
        raise TransferFailed(f"rank {peer}'s offer cannot be read: {error}") from None
    if offer.rank != peer:
        raise TransferFailed(f"an offer of rank {offer.rank} was given for rank {peer}")
    return offer
