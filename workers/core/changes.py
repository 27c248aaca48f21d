"""What happened to a pool's map of names, as a delta tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lmpoold.protocol.hashing import PrefixHash
from lmpoold.protocol.views import PageEntry


@dataclass(frozen=True, slots=True)
class Changes:
    """The net difference of the map between two drains: `puts` parent first, `dels` leaf first."""

    puts: Mapping[PrefixHash, PageEntry]
    dels: tuple[PrefixHash, ...]
