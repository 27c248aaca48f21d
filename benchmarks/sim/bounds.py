"""What a trace has to give: to a cache without limits, and to one cache as big as the pool."""

from __future__ import annotations

from benchmarks.traces import Trace
from lmpoold.protocol.hashing import chain_hashes, domain_root, token_bytes
from workers.core.blocks import BlockPool
from workers.core.reclaim import ReclaimPolicy

ROOT = domain_root("bounds", 1)


def ceiling(trace: Trace) -> float:
    """Return the share of prompt tokens that stand in an earlier prompt's complete blocks."""
    seen: set[str] = set()
    found = 0
    for request in trace.requests:
        hashes = chain_hashes(request.blocks, 1, ROOT)
        known = next((d for d, name in enumerate(hashes) if name not in seen), len(hashes))
        found += min(known * trace.block_tokens, request.input_tokens - 1)
        seen.update(hashes[known:])
    return found / trace.input_tokens


def one_cache(trace: Trace, blocks: int, policy: ReclaimPolicy) -> float:
    """Return the share that one cache of `blocks` blocks gives, each request done as it arrives."""
    pool, found = BlockPool(blocks, 1, policy), 0
    for request in trace.requests:
        hashes = chain_hashes(request.blocks, 1, ROOT)
        run = pool.match(token_bytes(request.blocks), hashes, ROOT)
        found += min(len(run) * trace.block_tokens, request.input_tokens - 1)
        pool.acquire(run, request.arrival_s)
        fresh = pool.allocate(len(hashes) - len(run)) or []
        for depth, block in enumerate(fresh, len(run)):
            parent = hashes[depth - 1] if depth else ROOT
            content = (request.blocks[depth],)
            pool.publish(block, hashes[depth], parent, depth, content, request.arrival_s)
        pool.release(run + fresh, request.arrival_s)
        pool.drain_changes()
    return found / trace.input_tokens
