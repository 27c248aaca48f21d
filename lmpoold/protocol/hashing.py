"""Names for the blocks of a prompt: chained XXH3-128 with a domain tag.

A block's name depends on every token up to its end, on what computes the K/V (model fingerprint,
block size) and on who may share it (salt). Each part of the domain carries its own tag and length,
so no two kinds of key can spell the same bytes (an adapter named like a salt, say). The hash is not
cryptographic: a worker compares token ids on a hit, so a collision costs a recompute, never a wrong
answer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NewType

import xxhash

PrefixHash = NewType("PrefixHash", str)
"""32 lowercase hex digits: the name of one complete block and of everything before it."""

HASH_DIGITS = 32
SCHEME = "xxh3-128/1"
"""Names the hash and its byte layout; part of the domain, so a change of either parts the pools."""


def domain_root(fingerprint: str, block_size: int, salt: str = "") -> PrefixHash:
    """Return the parent of every first block in one hash domain.

    Args:
        fingerprint: what computes the K/V: the model's fingerprint.
        block_size: tokens per KV block, > 0.
        salt: tenants with different salts never share a block; empty is the common domain.
    """
    parts = [("scheme", SCHEME), ("model", fingerprint), ("block", str(block_size)), ("salt", salt)]
    blob = b"".join(
        b"%s=%d:%s;" % (tag.encode(), len(raw), raw)
        for tag, raw in ((tag, value.encode()) for tag, value in parts)
    )
    return PrefixHash(xxhash.xxh3_128_hexdigest(blob))


def token_bytes(token_ids: Sequence[int]) -> bytes:
    """Return the token ids as little-endian int32, 4 bytes each; OverflowError outside int32."""
    # `array` takes three times as long, and long prompts are packed on every way they go.
    try:
        return struct.pack(f"<{len(token_ids)}i", *token_ids)
    except struct.error as error:
        raise OverflowError(f"token ids must be whole numbers of int32: {error}") from None


def unpack_tokens(packed: bytes) -> tuple[int, ...]:
    """Return the token ids that `token_bytes` packed; ValueError for half of one."""
    if len(packed) % 4:
        raise ValueError(f"packed token ids take 4 bytes each, got {len(packed)}")
    return struct.unpack(f"<{len(packed) // 4}i", packed)


def next_hash(parent: PrefixHash, token_ids: Sequence[int]) -> PrefixHash:
    """Name the block of `token_ids` that follows the block (or domain root) `parent`."""
    digest = xxhash.xxh3_128_hexdigest(bytes.fromhex(parent) + token_bytes(token_ids))
    return PrefixHash(digest)


def chain_hashes(
    token_ids: Sequence[int], block_size: int, root: PrefixHash
) -> tuple[PrefixHash, ...]:
    """Name every complete block of a prompt by all the tokens up to its end.

    Two prompts of one domain share block *i* when their first `(i + 1) * block_size` tokens agree.
    The partial tail has no name.

    Args:
        token_ids: the prompt, length n >= 0, each id in [0, 2**31).
        block_size: tokens per KV block, > 0; the same on every rank.
        root: the domain, from `domain_root`.
    Returns: n // block_size names, root first.
    Raises: ValueError: `block_size` is not positive.
    """
    if block_size <= 0:
        raise ValueError(f"block_size must be positive, got {block_size}")
    return chain_packed(token_bytes(token_ids), block_size, root)


def chain_packed(packed: bytes, block_size: int, root: PrefixHash) -> tuple[PrefixHash, ...]:
    """Name blocks as `chain_hashes` does, of token ids that `token_bytes` has packed."""
    width = 4 * block_size
    digest, previous = xxhash.xxh3_128_digest, bytes.fromhex(root)
    names = []
    for end in range(width, len(packed) + 1, width):
        previous = digest(previous + packed[end - width : end])
        names.append(PrefixHash(previous.hex()))
    return tuple(names)
