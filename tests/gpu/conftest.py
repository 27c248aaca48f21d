"""Where kernels run: on the GPU, or, for their arithmetic alone, in Triton's interpreter.

`TRITON_INTERPRET=1 pytest tests/gpu` needs no GPU, only Triton; what needs a GPU is skipped.
"""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture(scope="session")
def cuda() -> torch.device:
    """A GPU; tests that use it are skipped without one."""
    if not torch.cuda.is_available() or INTERPRETED:
        pytest.skip("needs a CUDA device")
    return torch.device("cuda", 0)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """A GPU, or the CPU under Triton's interpreter."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")
    if INTERPRETED:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1")
    return torch.device("cuda", 0)


@pytest.fixture
def generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(11)
