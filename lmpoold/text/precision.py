"""Element types of weights and K/V, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmpoold.protocol.errors import ConfigError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes an element, of every type that K/V may have."""


def choose_dtype(wanted: str, config: Mapping[str, Any]) -> str:
    """Return the element type to serve with: `wanted`, or for `auto` the one config.json names.

    Raises: ConfigError: it is none that LMPool serves.
    """
    named = wanted
    if wanted == "auto":
        named = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    if named not in DTYPE_BYTES:
        raise ConfigError(f"dtype must be auto or one of {', '.join(DTYPE_BYTES)}, got {named!r}")
    return named


def dtype_bytes(dtype: str) -> int:
    """Return the bytes of one element of a type that `choose_dtype` returned."""
    return DTYPE_BYTES[dtype]
