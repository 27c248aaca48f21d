"""The real equipment: text half, model, pool, and what the handshake compares."""

from __future__ import annotations

import logging
from collections.abc import Callable

from lmpoold.protocol.errors import ConfigError, TransferFailed
from lmpoold.text.fingerprint import fingerprint, kv_block_bytes
from lmpoold.text.precision import choose_dtype, dtype_bytes
from lmpoold.text.tokenizer import TextModel
from workers.core.detokenise import byte_tokens
from workers.daemon.answers import Vocabulary
from workers.daemon.membership import Pool, identity
from workers.daemon.place import gpu_place
from workers.daemon.plant import PlantConfig, build_plant
from workers.daemon.serve import Equipment
from workers.daemon.settings import WorkerConfig
from workers.model.kv import KVPool
from workers.model.prepare import prepare
from workers.model.size import blocks_for_budget
from workers.transport.build import build_transport
from workers.transport.memory import PoolMemory
from workers.transport.port import Transport

log = logging.getLogger(__name__)


def build_equipment(
    config: WorkerConfig, pool: Pool, progress: Callable[[str, int, int], None]
) -> Equipment:
    """Load a model for a pool.

    Raises: ConfigError: it cannot be had or served, or memory does not hold one request.
    """
    folder = prepare(config.model, cache=config.cache, progress=progress)
    text = TextModel.load(folder)
    dtype = choose_dtype(config.dtype if config.dtype != "auto" else pool.dtype, folder.config())
    block_bytes = kv_block_bytes(folder.config(), pool.block_size, dtype_bytes(dtype))
    blocks = config.blocks
    if config.kv_bytes and not blocks:
        blocks = blocks_for_budget(
            config.kv_bytes,
            block_bytes=block_bytes,
            block_size=pool.block_size,
            max_model_len=pool.max_model_len,
        )
    plant, loaded, kv = build_plant(
        PlantConfig(
            folder=folder,
            device=config.device,
            dtype=dtype,
            block_size=pool.block_size,
            blocks=blocks,
            max_model_len=pool.max_model_len,
            max_rows=config.max_num_seqs,
            max_tokens=config.max_batched_tokens,
            memory_share=config.memory_share,
            threads=config.threads,
            movable=config.transport != "off",
        ),
        progress,
    )
    mark = fingerprint(folder)
    return Equipment(
        plant=plant,
        vocabulary=Vocabulary(text.decode, byte_tokens(text.vocabulary(), text.decode)),
        stop_ids=text.stop_ids,
        fingerprint=mark,
        identity=identity(
            pool, dtype=dtype, mark=mark, block_bytes=block_bytes, digest=loaded.digest
        ),
        blocks=kv.num_blocks,
        transport=_transport(config, kv),
        place=gpu_place(config.device),
    )


def _transport(config: WorkerConfig, pool: KVPool) -> Transport | None:
    if pool.beacon_block is None:
        return None
    memory = PoolMemory.of(pool.data, num_blocks=pool.num_blocks, beacon=pool.beacon_block)
    try:
        return build_transport(config.transport, config.rank, memory, host=config.transfer_host)
    except TransferFailed as error:
        if config.transport != "auto":
            raise ConfigError(f"--transport {config.transport}: {error}") from None
        log.warning("blocks stay on this rank", extra={"why": str(error)})
        return None
