"""What tells two models apart, and how many bytes their K/V takes.

The fingerprint enters every block's name, so two processes that disagree on it never share a
block. It is made of what decides the K/V of a token sequence and can be read without torch: the
architecture and the tokenizer. The weights have a digest of their own, which workers compare when
they join the pool.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from lmpoold.protocol.errors import ConfigError
from lmpoold.text.folder import ModelFolder

VOLATILE_KEYS = frozenset({"transformers_version", "torch_dtype", "dtype", "_name_or_path"})
"""Keys of config.json that tell who wrote it and how it is to be loaded, not what it computes."""
BYTE_TOKENIZER = b"bytes/1"
"""Stands for the tokenizer of a random shape."""
_DEFAULT_HEAD_DIM = {"qwen3": 128, "gemma": 256}


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGeometry:
    """The K/V of one token: `2 * layers * kv_heads * head_dim` elements."""

    layers: int
    kv_heads: int
    head_dim: int

    def block_bytes(self, block_size: int, dtype_bytes: int) -> int:
        """Return the bytes of one block: K and V of `block_size` tokens in every layer."""
        return 2 * self.layers * block_size * self.kv_heads * self.head_dim * dtype_bytes


def canonical_config(config: Mapping[str, Any]) -> bytes:
    """Return config.json with sorted keys and without the volatile ones."""
    kept = {key: value for key, value in config.items() if key not in VOLATILE_KEYS}
    return json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def fingerprint(folder: ModelFolder) -> str:
    """Return 32 lowercase hex digits (XXH3-128) that every process computes alike for one model.

    Raises: ConfigError: the folder lacks config.json or tokenizer.json.
    """
    parts = [b"config", canonical_config(folder.config())]
    if folder.shape is not None:
        parts += [b"shape", f"{folder.shape.name}:{folder.shape.seed}".encode(), BYTE_TOKENIZER]
    else:
        assert folder.path is not None
        file = folder.path / "tokenizer.json"
        if not file.is_file():
            raise ConfigError(f"{folder.path} holds no tokenizer.json, which LMPool needs")
        parts += [b"tokenizer", file.read_bytes()]
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.hexdigest()


def kv_geometry(config: Mapping[str, Any]) -> KVGeometry:
    """Read the K/V sizes out of a config.json; ConfigError names the key that is missing."""
    try:
        heads = int(config["num_attention_heads"])
        layers = int(config["num_hidden_layers"])
        head_dim = config.get("head_dim") or _DEFAULT_HEAD_DIM.get(
            str(config.get("model_type")), int(config["hidden_size"]) // heads
        )
    except KeyError as error:
        raise ConfigError(f"config.json has no {error}: not a decoder that LMPool serves") from None
    kv_heads = config.get("num_key_value_heads") or heads
    return KVGeometry(layers=layers, kv_heads=int(kv_heads), head_dim=int(head_dim))


def kv_block_bytes(config: Mapping[str, Any], block_size: int, dtype_bytes: int) -> int:
    """Return the bytes of one KV block of `block_size` tokens, elements of `dtype_bytes` each."""
    return kv_geometry(config).block_bytes(block_size, dtype_bytes)
