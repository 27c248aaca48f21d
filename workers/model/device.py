"""Which device a worker computes on, decided before anything is loaded."""

from __future__ import annotations

import torch

from lmpoold.protocol.errors import ConfigError


def choose_device(wanted: str, rank: int) -> str:
    """Return `cpu` or `cuda:<index>`.

    Args:
        wanted: `cpu`; `cuda:<index>`; `cuda`, the GPU whose number is the rank's, counted round;
            `auto`, the same where there is a GPU, else the CPU.
        rank: the worker's.
    Raises: ConfigError: this machine has no such device; the message says what it has.
    """
    if wanted == "cpu":
        return wanted
    kind, _, number = wanted.partition(":")
    named = kind == "cuda" and (not number or number.isdecimal()) and wanted != "cuda:"
    if not named and wanted != "auto":
        raise ConfigError(f"device {wanted!r}: give cpu, cuda, cuda:<index> or auto")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "auto" and not count:
        return "cpu"
    if not count:
        raise ConfigError(f"device {wanted}: {_why_no_gpu()}, or start with --device cpu")
    if not number:
        return f"cuda:{rank % count}"
    if int(number) >= count:
        there = "only cuda:0 is" if count == 1 else f"cuda:0 to cuda:{count - 1} are"
        raise ConfigError(f"device {wanted}: {there} here; CUDA_VISIBLE_DEVICES decides which")
    return f"cuda:{int(number)}"


def _why_no_gpu() -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built for CPUs only; install a build with CUDA"
    return (
        f"torch {torch.__version__} finds no GPU; check nvidia-smi, the driver and "
        "CUDA_VISIBLE_DEVICES"
    )
