"""What torch.distributed gives the ways: a store for two processes to meet, and a group of them."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any, Protocol

from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from workers.transport.wire import Joint


class Group(Protocol):
    """A process group of two; torch's own types leave these calls out."""

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> Any:
        """Begin to send; returns the work to wait for."""
        ...

    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> Any:
        """Begin to receive; returns the work to wait for."""
        ...

    def abort(self) -> None:
        """End all work."""
        ...


def listen_store(host: str) -> TCPStore:
    """Return a store server on a free port of `host` alone (left to itself it takes them all)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, 0), family=family)
    port = listening.getsockname()[1]
    return TCPStore(
        host, port, None, True, wait_for_workers=False, master_listen_fd=listening.detach()
    )


def pair_store(own: TCPStore, joint: Joint) -> Store:
    """Return the pair's part of the lower rank's store."""
    patience = timedelta(seconds=max(joint.timeout_s, 0.001))
    store = own
    if not joint.low:
        store = TCPStore(
            str(joint.theirs["host"]),
            int(joint.theirs["port"]),
            None,
            False,
            timeout=patience,
            wait_for_workers=False,
        )
    scope = PrefixStore(joint.session, store)
    scope.set_timeout(patience)
    return scope
