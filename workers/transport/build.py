"""Which ways a worker tries, by name."""

from __future__ import annotations

from collections.abc import Callable

from lmpoold.protocol.errors import ConfigError
from workers.transport.gloo import GlooWire
from workers.transport.memory import PoolMemory
from workers.transport.nccl import NcclWire
from workers.transport.peer import PeerWire
from workers.transport.transport import PairTransport
from workers.transport.wire import Wire

KINDS = ("auto", "peer", "nccl", "gloo")
SERVING_CTAS = 4
"""Multiprocessors that NCCL may hold while it waits for a peer or moves blocks: each is one that
the model's kernels, made for all of them, have to do without."""


def build_transport(
    kind: str,
    rank: int,
    memory: PoolMemory,
    *,
    host: str = "127.0.0.1",
    max_ctas: int | None = SERVING_CTAS,
) -> PairTransport:
    """Return a transport.

    Args:
        kind: one of `KINDS`; "auto" tries the others in that order, for each pair anew.
        rank: ours.
        memory: our pool.
        host: an address of ours that peers reach.
        max_ctas: how many multiprocessors NCCL may take from the model; None for its own choice.
    Raises:
        ConfigError: there is no such kind.
        TransferFailed: it does not work on this machine; the message says why.
    """
    make: dict[str, Callable[[], Wire]] = {
        "peer": lambda: PeerWire(memory),
        "nccl": lambda: NcclWire(memory, host=host, max_ctas=max_ctas),
        "gloo": lambda: GlooWire(memory, host=host),
    }
    if kind not in KINDS:
        raise ConfigError(f"transport must be one of {', '.join(KINDS)}, got {kind!r}")
    wires = [one() for name, one in make.items() if kind in ("auto", name)]
    return PairTransport(rank, memory, wires, host=host)
