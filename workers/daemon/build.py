"""The real equipment: text half, model, pool, and what the handshake compares."""

from __future__ import annotations

from collections.abc import Callable

from lmpoold.text.fingerprint import fingerprint, kv_block_bytes
from lmpoold.text.precision import choose_dtype, dtype_bytes
from lmpoold.text.tokenizer import TextModel
from workers.core.detokenise import byte_tokens
from workers.daemon.answers import Vocabulary
from workers.daemon.membership import Pool, identity
from workers.daemon.plant import PlantConfig, build_plant
from workers.daemon.serve import Equipment
from workers.daemon.settings import WorkerConfig
from workers.model.prepare import prepare
from workers.model.size import blocks_for_budget


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
    )
