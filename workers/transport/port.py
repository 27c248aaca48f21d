"""The port that every way of moving blocks between two workers has.

How a caller uses it, on the worker's event loop:

1. `start()` once; then publish `offer()` in Redis with the worker's epoch.
2. In a plan's prepare, *both* sides call `open(peer, epoch, offer)` with what the peer published.
   It costs nothing while the pair stands; it makes the pair, or makes it anew, otherwise. Both
   sides have to be in `open` at some time before their deadlines: neither can make a pair alone.
3. In execute the source calls `send` and the destination `receive`, in either order.
4. On abort, or when a peer's epoch died, call `close(peer)`.

What a caller may rely on:

- When `send` or `receive` returns *or raises*, nothing of that move touches this side's pool any
  more. A move that raises after its bytes began to flow takes its pair down with it (the next
  `open` remakes it), and may raise up to about a second after its deadline: that is what aborting
  a communicator takes. One that times out before anything flowed leaves the pair as it was.
- A peer that is killed makes moves raise TransferFailed at once; one that is stopped makes them
  raise TransferTimeout at the deadline.
- The peer's memory may be *read* by a late destination (`peer` pulls): the bytes that `receive`
  got are those of the pinned source blocks only while the plan stands. So publish has to check
  the plan's phase and the source's epoch, and a source lets go of its blocks only after the plan
  was aborted there.
- Several moves of one pair may be asked for at once; those of one direction go one after another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Move:
    """Which blocks go where: `src_blocks[i]` of rank `src` to `dst_blocks[i]` of rank `dst`.

    `plan` names the move on both sides: unique for each pair, and never used again.
    """

    plan: str
    src: int
    dst: int
    src_blocks: tuple[int, ...]
    dst_blocks: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.src == self.dst:
            raise ValueError(f"a move needs two ranks, got {self.src} twice")
        if not self.src_blocks or len(self.src_blocks) != len(self.dst_blocks):
            raise ValueError(
                f"a move pairs blocks: {len(self.src_blocks)} cannot go to {len(self.dst_blocks)}"
            )
        if len(set(self.dst_blocks)) != len(self.dst_blocks):
            raise ValueError("two blocks cannot go to one")


@dataclass(frozen=True, slots=True)
class Moved:
    """A move that is over: its bytes, and the seconds its bytes flowed on this side.

    The seconds are those between events on the device (on a CPU: of the copies and sends), without
    the words that both sides exchange before.
    """

    bytes: int
    seconds: float


class Transport(Protocol):
    """A way to move blocks between this worker's pool and its peers' pools.

    Every method is called on the worker's event loop and never holds it for more than a
    millisecond. Deadlines are seconds from the call on.

    Attributes:
        kind: "gloo", "nccl", "peer", or "auto" for the first of these that works for a pair.
    """

    kind: str

    async def start(self) -> None:
        """Listen for peers."""
        ...

    async def stop(self) -> None:
        """Close every pair and stop listening."""
        ...

    def offer(self) -> str:
        """Return what a peer needs to reach this pool: addresses, handles, geometry.

        It holds a secret that lets a peer in, changes with every start of the process and does not
        depend on the epoch. One line of text.
        """
        ...

    async def open(self, peer: int, epoch: str, offer: str, *, deadline_s: float) -> None:
        """Make the pair with `peer`, unless it stands already for this epoch and offer.

        Ends with a move of a known block each way, checked byte for byte.

        Raises:
            TransferTimeout: the peer did not open the pair with us in time.
            TransferFailed: it cannot be reached, its pool has another geometry, or no way works.
        """
        ...

    def stands(self, peer: int, epoch: str) -> bool:
        """Whether the pair with `peer` stands and was made for this epoch of it."""
        ...

    def way(self, peer: int) -> str:
        """Return the kind that a standing pair uses, "" when there is none."""
        ...

    async def send(self, move: Move, *, deadline_s: float) -> Moved:
        """Do the source's half of a move; return when its blocks are no longer read.

        Raises:
            TransferTimeout: the destination did not do its half in time.
            TransferFailed: there is no pair with it, or it was lost.
        """
        ...

    async def receive(self, move: Move, *, deadline_s: float) -> Moved:
        """Do the destination's half of a move; return when the bytes are in the pool.

        Raises: as `send`.
        """
        ...

    async def close(self, peer: int) -> None:
        """Give up the pair and what is in flight on it; return when it touches the pool no more."""
        ...
