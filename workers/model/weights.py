"""Loads a model, or draws a random one, and says when it cannot be served."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from lmpoold.protocol.errors import ConfigError
from lmpoold.text.fingerprint import KVGeometry, kv_geometry
from lmpoold.text.folder import ModelFolder
from lmpoold.text.precision import choose_dtype

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total) while something long goes on."""

_SAMPLES = 64
_SAMPLE_BYTES = 4096
_DRIFTING_ROPE = {"dynamic", "longrope"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model in evaluation mode on its device.

    `digest` tells its weights apart from others', for the handshake between workers.
    """

    folder: ModelFolder
    model: PreTrainedModel
    geometry: KVGeometry
    dtype: torch.dtype
    device: torch.device
    vocab_size: int
    max_model_len: int
    digest: str


def silent(stage: str, done: int, total: int) -> None:
    """A `Progress` that tells nobody."""


def load(
    folder: ModelFolder,
    *,
    dtype: str = "auto",
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> LoadedModel:
    """Load a folder's weights, or draw those of a random shape.

    Args:
        folder: from `resolve` or `prepare`.
        dtype: "float32", "bfloat16", "float16", or "auto" for the one that config.json names.
        device: where the weights go.
        progress: told of the stages.
    Raises: ConfigError: the files are not there, or LMPool does not serve this kind of model.
    """
    described = folder.config()
    chosen: torch.dtype = getattr(torch, choose_dtype(dtype, described))
    config = _config(described)
    geometry = kv_geometry(described)
    reason = unserved(config)
    if reason:
        raise ConfigError(f"{folder.name} has {reason}, which LMPool does not serve")
    # `progress` tells, and stderr is for the log
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    progress("load", 0, 2)
    digest = weights_digest(folder, device=torch.device(device))
    progress("load", 1, 2)
    try:
        model = _random(folder, config, chosen, device) if folder.shape else _read(folder, chosen)
        model = model.to(device).eval()  # type: ignore[arg-type]
    except torch.OutOfMemoryError:
        free, total = torch.cuda.mem_get_info(device)
        raise ConfigError(
            f"the weights of {folder.name} do not fit on {device}: {free / 2**30:.2f} of "
            f"{total / 2**30:.2f} GiB are free; stop what else uses this GPU, take another one "
            "with --device, or load fewer bytes with --dtype bfloat16"
        ) from None
    progress("load", 2, 2)
    return LoadedModel(
        folder=folder,
        model=model,
        geometry=geometry,
        dtype=chosen,
        device=torch.device(device),
        vocab_size=int(config.vocab_size),
        max_model_len=int(config.max_position_embeddings),
        digest=digest,
    )


def unserved(config: PreTrainedConfig) -> str:
    """Return what in a config keeps its model from a paged pool, "" if nothing does."""
    longest = getattr(config, "max_position_embeddings", None)
    if config.is_encoder_decoder:
        return "an encoder"
    if not longest:
        return "no max_position_embeddings"
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    window = getattr(config, "sliding_window", None)
    has_windows = "sliding_attention" in kinds or not getattr(config, "layer_types", None)
    if window and window < longest and has_windows:
        return f"a sliding window of {window} tokens below its context of {longest}"
    if kinds - {"sliding_attention"}:
        return f"layers of {', '.join(sorted(kinds - {'sliding_attention'}))}"
    if getattr(config, "attn_logit_softcapping", None):
        return "soft-capped attention scores"
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in _DRIFTING_ROPE:  # a key would depend on what shares its batch
        return f"{rope['rope_type']} rotary embeddings, whose keys change with the length"
    return ""


def weights_digest(folder: ModelFolder, *, device: torch.device) -> str:
    """Return 32 hex digits that tell one set of weights from another, without reading all of it.

    Files count by name, size, header (every tensor's name, type and shape) and evenly spaced
    samples; random weights by shape, seed and the kind of device that draws them.
    """
    digest = xxhash.xxh3_128()
    if folder.shape is not None:
        digest.update(f"{folder.shape}:{device.type}".encode())
        return digest.hexdigest()
    assert folder.path is not None
    for file in _weight_files(folder.path):
        size = file.stat().st_size
        digest.update(f"{file.name}:{size};".encode())
        with file.open("rb") as stream:
            header_bytes = int.from_bytes(stream.read(8), "little")
            if header_bytes > size:
                raise ConfigError(f"{file} is not a safetensors file, or it was cut short")
            digest.update(stream.read(header_bytes))
            for sample in range(_SAMPLES):
                stream.seek(max(0, size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1))
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _weight_files(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        files = [path / name for name in names]
    else:
        files = [path / "model.safetensors"]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ConfigError(f"{path} lacks its weights: {', '.join(missing)}")
    return files


def _config(described: dict[str, Any]) -> PreTrainedConfig:
    rest = {key: value for key, value in described.items() if key != "model_type"}
    model_type = described.get("model_type", "")
    try:
        return AutoConfig.for_model(model_type, **rest)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"transformers cannot read a {model_type!r} config: {error}") from None


def _random(
    folder: ModelFolder, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device | str
) -> PreTrainedModel:
    assert folder.shape is not None
    target = torch.device(device)
    with torch.random.fork_rng(devices=[target] if target.type == "cuda" else []), target:
        torch.manual_seed(folder.shape.seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=dtype
        )
    return model


def _read(folder: ModelFolder, dtype: torch.dtype) -> PreTrainedModel:
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            str(folder.path), dtype=dtype, local_files_only=True, use_safetensors=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"transformers cannot load {folder.path}: {error}") from None
    return model
