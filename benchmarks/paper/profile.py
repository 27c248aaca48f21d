"""What a workload has to give, known before anything is launched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmpoold.protocol.hashing import PrefixHash, chain_hashes


def dataset_profile(
    prompts: Sequence[Sequence[int]], block_size: int, root: PrefixHash
) -> dict[str, Any]:
    """Count what could be shared if nothing was ever forgotten, complete blocks only.

    Args:
        prompts: token ids, in the order of sending.
        block_size: tokens a block.
        root: the hash domain.
    """
    seen: set[PrefixHash] = set()
    blocks = shared_requests = shared_blocks = 0
    for tokens in prompts:
        hashes = chain_hashes(tokens, block_size, root)
        known = next((d for d, name in enumerate(hashes) if name not in seen), len(hashes))
        blocks += len(hashes)
        shared_requests += known > 0
        shared_blocks += known
        seen.update(hashes)
    tokens_asked = sum(map(len, prompts))
    return {
        "block_size_tokens": block_size,
        "total_requests": len(prompts),
        "total_prompt_tokens": tokens_asked,
        "longest_prompt_tokens": max(map(len, prompts)),
        "total_complete_blocks": blocks,
        "unique_complete_prefix_hashes": len(seen),
        "shareable_requests": shared_requests,
        "shareable_prefix_blocks": shared_blocks,
        "shareable_prefix_tokens": shared_blocks * block_size,
        "request_prefix_share_rate": shared_requests / len(prompts),
        "token_prefix_share_ratio": shared_blocks * block_size / tokens_asked,
    }
