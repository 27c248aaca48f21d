"""What a way of moving blocks has to do; the rest (who talks to whom, when) is the pair's.

Everything here blocks and is called on threads of the pair's: `send` on one, `receive` on another,
`abort` on a third.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from workers.transport.offer import Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint:
    """A pair to be connected.

    Attributes:
        session: a name that only this attempt of these two processes has.
        low: whether ours is the lower of the two ranks.
        mine: what we offered for this way.
        theirs: what the peer offered.
        timeout_s: when to give up.
    """

    session: str
    low: bool
    mine: Facts
    theirs: Facts
    timeout_s: float


class Channel(Protocol):
    """A connected pair."""

    def send(self, blocks: Sequence[int], timeout_s: float) -> float:
        """Send blocks of our pool; return the seconds it took once they are no longer read."""
        ...

    def receive(
        self, src_blocks: Sequence[int], dst_blocks: Sequence[int], into: Tensor, timeout_s: float
    ) -> float:
        """Take in the peer's `src_blocks`.

        Args:
            src_blocks: ids in the peer's pool.
            dst_blocks: rows of `into`, as many.
            into: `[block, block_bytes / 8]` int64: our pool, or scratch of that shape.
            timeout_s: when to give up.
        Returns: the seconds the bytes took, once they are there.
        """
        ...

    def abort(self) -> None:
        """End what goes on; return when nothing of it touches the pool any more, in a second."""
        ...


class Wire(Protocol):
    """One way.

    Attributes:
        kind: its name.
        pulls: the destination takes the bytes by itself: `send` has nothing to do.
    """

    kind: str
    pulls: bool

    def facts(self) -> Facts:
        """Return what a peer has to know.

        Raises: TransferFailed: this machine cannot be reached this way; the message says why.
        """
        ...

    def connect(self, joint: Joint) -> Channel:
        """Join the peer, who does the same now. Any exception means that it did not work."""
        ...
