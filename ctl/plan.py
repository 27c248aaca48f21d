"""What `up` and `demo` start: the settings of a pool on this machine, and the children's argv."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ctl.supervise import Program
from ctl.target import Target
from lmpoold.protocol.errors import ConfigError

NEEDED_BY_WORKERS = ("torch", "transformers", "safetensors")
NEEDED_BY_GATEWAY = ("starlette", "uvicorn", "httptools")
GATEWAY_DRAIN_S = 5
"""Whoever stops a pool by hand waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """One pool on this machine; None leaves a setting to the program that reads it.

    Attributes:
        threads: of each worker's CPU kernels.
        gateway: port of the HTTP gateway, 0 for a free one; None starts none.
    """

    target: Target
    model: str = "demo"
    workers: int = 2
    lmpoolds: int = 1
    blocks: int | None = None
    block_size: int | None = None
    max_model_len: int | None = None
    dtype: str | None = None
    device: str | None = None
    threads: int = 1
    gateway: int | None = None

    def prepare(self) -> Program | None:
        """Return the program that fetches or converts the model once; None for random weights."""
        if self.model.startswith("random:"):
            return None
        return Program("prepare", (*_module("workers"), "prepare", "--model", self.model))

    def lmpoold_programs(self, url: str) -> list[Program]:
        """Return the control plane's programs."""
        argv = (
            *_module("lmpoold"),
            *self._shared(url),
            *_given("--block-size", self.block_size),
            *_given("--max-model-len", self.max_model_len),
        )
        return [Program(f"lmpoold-{number}", argv) for number in range(self.lmpoolds)]

    def worker_programs(self, url: str) -> list[Program]:
        """Return the workers' programs, by rank."""
        argv = (
            *_module("workers"),
            *self._shared(url),
            *_given("--device", self.device),
            *_given("--blocks", self.blocks),
            *_given("--threads", self.threads),
        )
        return [
            Program(f"worker-{rank}", (*argv, "--rank", str(rank))) for rank in range(self.workers)
        ]

    def gateway_programs(self, url: str) -> list[Program]:
        """Return the HTTP gateway's program, if one is wanted."""
        if self.gateway is None:
            return []
        pool = ("--redis-url", url, "--pool", self.target.pool)
        door = ("--port", str(self.gateway), "--drain-s", str(GATEWAY_DRAIN_S))
        return [Program("gateway", (*_module("lmpoold.gateway"), *pool, *door))]

    def _shared(self, url: str) -> tuple[str, ...]:
        pool = ("--redis-url", url, "--pool", self.target.pool, "--model", self.model)
        return (*pool, *_given("--dtype", self.dtype))


def _module(name: str) -> tuple[str, ...]:
    # -P: a folder called `workers` or `lmpoold` where the user stands must not be run instead.
    return (sys.executable, "-P", "-m", name)


def _given(option: str, value: object) -> tuple[str, ...]:
    return () if value is None else (option, str(value))


def share_of_cores(workers: int) -> int:
    """Return the CPU threads each of `workers` gets on this machine, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // workers)


def child_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the children's environment: they import the very packages that this process does."""
    spec = importlib.util.find_spec("lmpoold")
    roots = [str(Path(folder).parent) for folder in (spec.submodule_search_locations or ())]  # type: ignore[union-attr]
    path = [*roots, *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}


def check_installed(*, gateway: bool = False) -> None:
    """Check that workers, and a gateway, could start here; ConfigError names what is missing."""
    wanted = {"worker": NEEDED_BY_WORKERS} | ({"gateway": NEEDED_BY_GATEWAY} if gateway else {})
    for extra, names in wanted.items():
        missing = [name for name in names if importlib.util.find_spec(name) is None]
        if missing:
            raise ConfigError(
                f"a {extra} needs {', '.join(missing)}: install LMPool with its extra `{extra}`, "
                f"pip install 'lmpool[{extra}]'"
            )
