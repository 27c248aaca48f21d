"""The few calls of the CUDA driver that torch does not offer: mapping a peer process's memory.

torch's own way of sharing tensors would make a context on the peer's GPU (half a gigabyte there)
and keep reference counts in files; these map an allocation into this process's one context. Every
call acts on the context that is current on its thread.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from lmpoold.protocol.errors import TransferFailed

HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


@cache
def _library() -> Any:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise TransferFailed(f"there is no CUDA driver: {error}") from None
    pointer, size = ctypes.c_uint64, ctypes.c_size_t
    library.cuMemGetAddressRange_v2.argtypes = [
        ctypes.POINTER(pointer),
        ctypes.POINTER(size),
        pointer,
    ]
    library.cuIpcGetMemHandle.argtypes = [ctypes.POINTER(_Handle), pointer]
    library.cuIpcOpenMemHandle_v2.argtypes = [ctypes.POINTER(pointer), _Handle, ctypes.c_uint]
    library.cuIpcCloseMemHandle.argtypes = [pointer]
    library.cuMemcpyAsync.argtypes = [pointer, pointer, size, ctypes.c_void_p]
    return library


def _call(name: str, *arguments: Any) -> None:
    library = _library()
    status = getattr(library, name)(*arguments)
    if status:
        text = ctypes.c_char_p()
        library.cuGetErrorString(status, ctypes.byref(text))
        raise TransferFailed(f"{name}: {(text.value or b'?').decode()} ({status})")


def export(address: int) -> tuple[bytes, int]:
    """Return a handle of the allocation that `address` lies in, and its offset there.

    Raises: TransferFailed: it cannot be shared: expandable segments, or no support on this machine.
    """
    base, size, handle = ctypes.c_uint64(), ctypes.c_size_t(), _Handle()
    _call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address)
    _call("cuIpcGetMemHandle", ctypes.byref(handle), base.value)
    return bytes(handle), address - base.value


def map_peer(handle: bytes) -> int:
    """Map another process's allocation; returns its address here. A process cannot map its own.

    Raises: TransferFailed: the two GPUs cannot reach each other, or the processes are apart.
    """
    address = ctypes.c_uint64()
    shared = _Handle.from_buffer_copy(handle)
    _call("cuIpcOpenMemHandle_v2", ctypes.byref(address), shared, _LAZY_PEER_ACCESS)
    return address.value


def unmap_peer(address: int) -> None:
    """Undo `map_peer`. Until then the memory of a peer that has died is not free either."""
    _call("cuIpcCloseMemHandle", address)


def copy(target: int, source: int, size_bytes: int, stream: int) -> None:
    """Enqueue a copy between two addresses of this context."""
    _call("cuMemcpyAsync", target, source, size_bytes, stream)
