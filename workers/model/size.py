"""How many KV blocks a memory budget holds. Arithmetic only."""

from __future__ import annotations

from lmpoold.protocol.errors import ConfigError


def _mebibytes(count_bytes: int) -> str:
    return f"{count_bytes / 2**20:,.1f} MiB"


def blocks_for_tokens(tokens: int, block_size: int) -> int:
    """Return the blocks that hold `tokens` tokens, the last one perhaps partly."""
    return -(-tokens // block_size)


def require_blocks(
    num_blocks: int, *, block_bytes: int, block_size: int, max_model_len: int
) -> None:
    """Refuse a pool that could not hold one request of full length.

    Raises: ConfigError: with the numbers, and the settings that change them.
    """
    need = blocks_for_tokens(max_model_len, block_size)
    if num_blocks < need:
        raise ConfigError(
            f"{num_blocks} KV blocks of {block_size} tokens ({_mebibytes(block_bytes)} each) hold "
            f"{max(num_blocks, 0) * block_size} tokens, but one request may take {max_model_len}: "
            f"that is {need} blocks, {_mebibytes((need + 1) * block_bytes)} with the spare one; "
            "raise --kv-bytes (or --blocks), or lower --max-model-len"
        )


def blocks_for_budget(
    budget_bytes: int, *, block_bytes: int, block_size: int, max_model_len: int
) -> int:
    """Return how many blocks fit a budget, after the one that the pool keeps for itself.

    Args:
        budget_bytes: memory for K/V.
        block_bytes: K and V of one block in all layers.
        block_size: tokens a block.
        max_model_len: the most tokens that one request may reach; it must fit.
    Raises: ConfigError: the budget does not hold one such request.
    """
    num_blocks = budget_bytes // block_bytes - 1
    require_blocks(
        num_blocks, block_bytes=block_bytes, block_size=block_size, max_model_len=max_model_len
    )
    return num_blocks
