"""What one worker needs to know."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from lmpoold.protocol.errors import ConfigError

CPU_KV_BYTES = 512 * 2**20
MAX_NUM_SEQS = {"cpu": 64, "cuda": 256}
MAX_BATCHED_TOKENS = {"cpu": 512, "cuda": 8192}
LOOKAHEAD = {"cpu": 0, "cuda": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Settings of one worker; `on` fills in what depends on the device.

    Attributes:
        redis_url: unix://, redis:// or rediss://.
        cache: root of converted models.
        rank: the place it claims in the pool.
        device: `cpu`, `cuda`, `cuda:<index>` or `auto`.
        dtype: of weights and K/V; `auto` takes what the model's config names.
        blocks: KV blocks; 0 takes what `kv_bytes` holds.
        kv_bytes: memory for K/V when `blocks` is 0; 0 goes by the device: on a GPU, what fits.
        memory_share: of a GPU's memory that this worker may take, in (0, 1].
        threads: of the model, on a CPU.
        max_num_seqs: most sequences that run at once; 0 goes by the device.
        max_batched_tokens: most tokens a step computes; 0 goes by the device.
        lookahead: steps prepared while one runs, 0 or 1; None goes by the device.
        block_size: 0 takes the pool's; another one than the pool's is refused.
        transport: how blocks go to other workers: auto, peer, nccl, gloo, or off.
        transfer_host: an address of this host that the other workers reach.
        metrics_host: address on which Prometheus may ask.
        metrics_port: its port, 0 for a free one; None shows nothing.
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
    kv_bytes: int = 0
    memory_share: float = 0.9
    threads: int = 1
    max_num_seqs: int = 0
    max_batched_tokens: int = 0
    lookahead: int | None = None
    block_size: int = 0
    transport: str = "auto"
    transfer_host: str = "127.0.0.1"
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    check: bool = False
    start_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ConfigError(f"threads must be at least 1, got {self.threads}")
        counts = ("rank", "blocks", "block_size", "kv_bytes", "max_num_seqs", "max_batched_tokens")
        for name in counts:
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.lookahead not in (None, 0, 1):
            raise ConfigError(f"lookahead must be 0 or 1, got {self.lookahead}")
        if not 0 < self.memory_share <= 1:
            raise ConfigError(
                f"memory_share must be above 0 and at most 1, got {self.memory_share}"
            )
        if 0 < self.max_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_batched_tokens ({self.max_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}), or decoding would leave no room to prefill"
            )

    def on(self, device: str) -> WorkerConfig:
        """Return these settings for a device that was chosen: `cpu` or `cuda:<index>`."""
        kind = device.partition(":")[0]
        seqs = self.max_num_seqs or MAX_NUM_SEQS[kind]
        return replace(
            self,
            device=device,
            kv_bytes=self.kv_bytes or (CPU_KV_BYTES if kind == "cpu" else 0),
            max_num_seqs=seqs,
            max_batched_tokens=self.max_batched_tokens or max(MAX_BATCHED_TOKENS[kind], seqs),
            lookahead=LOOKAHEAD[kind] if self.lookahead is None else self.lookahead,
        )
