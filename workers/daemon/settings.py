"""What one worker needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lmpoold.protocol.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Settings of one worker.

    Attributes:
        redis_url: unix://, redis:// or rediss://.
        cache: root of converted models.
        rank: the place it claims in the pool.
        device: a torch device.
        dtype: of weights and K/V; `auto` takes what the model's config names.
        blocks: KV blocks; 0 takes what `kv_bytes` holds.
        kv_bytes: memory for K/V when `blocks` is 0.
        threads: of the model, on a CPU.
        max_num_seqs: most sequences that run at once.
        max_batched_tokens: most tokens a step computes.
        block_size: 0 takes the pool's; another one than the pool's is refused.
        transport: how blocks go to other workers: auto, peer, nccl, gloo, or off.
        transfer_host: an address of this host that the other workers reach.
        check: assert every invariant of the blocks whenever a plan touches them.
        start_timeout_s: how long to wait for a server, a pool and a free rank.
    """

    redis_url: str
    cache: Path
    pool: str = "default"
    model: str = "demo"
    rank: int = 0
    device: str = "cpu"
    dtype: str = "auto"
    blocks: int = 0
    kv_bytes: int = 512 * 2**20
    threads: int = 1
    max_num_seqs: int = 64
    max_batched_tokens: int = 512
    block_size: int = 0
    transport: str = "auto"
    transfer_host: str = "127.0.0.1"
    check: bool = False
    start_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        for name in ("threads", "max_num_seqs", "max_batched_tokens", "kv_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("rank", "blocks", "block_size"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.max_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_batched_tokens ({self.max_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}), or decoding would leave no room to prefill"
            )
