"""What the functions refuse, by the first word of their reply, and what it is raised as."""

from __future__ import annotations

from redis.exceptions import ResponseError

from lmpoold.protocol.errors import (
    ConfigError,
    Conflict,
    LMPoolError,
    NoCapacity,
    PoolMismatch,
    PoolUnknown,
    ProtocolError,
    RankUnknown,
    RequestsOver,
    Stale,
)

ERRORS: dict[str, type[LMPoolError]] = {
    "BADARGS": ProtocolError,
    "CFG_MISMATCH": PoolMismatch,
    "FENCED": Stale,
    "FULL": NoCapacity,
    "HELD": Conflict,
    "MISSING": Conflict,
    "NOCFG": PoolUnknown,
    "NORANK": RankUnknown,
    "OVER": RequestsOver,
    "RANK_TAKEN": Conflict,
    "STAGE_SIZE": Conflict,
    "STALE_EPOCH": Stale,
    "TOO_SMALL": ConfigError,
}
"""The first word of an error the functions return, and what it is raised as."""


def translated(error: ResponseError) -> Exception:
    """Return what to raise for an error reply; the reply itself if it is none of ours."""
    word, _, text = str(error).partition(" ")
    if kind := ERRORS.get(word):
        return kind(text)
    if word == "OOM" or "maxmemory" in str(error):
        return NoCapacity(
            "the Redis server is out of memory: raise maxmemory or lower max_parked and max_ingress"
        )
    return error
