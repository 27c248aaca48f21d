"""`--device`: what is there is taken, what is not is named with the cure."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from lmpoold.protocol.errors import ConfigError
from workers.model.device import choose_device


@pytest.fixture
def gpus(monkeypatch):
    """Make torch report so many GPUs."""

    def have(count: int, built: str | None = "13.0") -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.version, "cuda", built)

    return have


@pytest.mark.parametrize(
    ("count", "wanted", "rank", "chosen"),
    [
        (0, "cpu", 0, "cpu"),
        (0, "auto", 3, "cpu"),
        (2, "cpu", 0, "cpu"),
        (2, "auto", 1, "cuda:1"),
        (2, "cuda", 3, "cuda:1"),
        (2, "cuda:1", 0, "cuda:1"),
    ],
)
def test_a_device_that_is_there_is_taken(gpus, count, wanted, rank, chosen):
    gpus(count)
    assert choose_device(wanted, rank) == chosen


@pytest.mark.parametrize(
    ("count", "built", "wanted", "words"),
    [
        (0, None, "cuda:0", "built for CPUs only; install a build with CUDA, or .* --device cpu"),
        (0, "13.0", "cuda", "finds no GPU; check nvidia-smi"),
        (1, "13.0", "cuda:1", "only cuda:0 is here"),
        (4, "13.0", "cuda:7", "cuda:0 to cuda:3 are here"),
        (4, "13.0", "cuda:x", "give cpu, cuda, cuda:<index> or auto"),
        (4, "13.0", "cuda:", "give cpu, cuda"),
        (4, "13.0", "tpu", "'tpu': give cpu"),
    ],
)
def test_one_that_is_not_there_is_refused_with_the_cure(gpus, count, built, wanted, words):
    gpus(count, built)
    with pytest.raises(ConfigError, match=words):
        choose_device(wanted, 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="tells what happens without a GPU")
@pytest.mark.timeout(120)
def test_the_command_ends_with_one_line_and_code_2_before_it_looks_for_a_server():
    argv = [sys.executable, "-m", "workers", "--redis-url", "unix:///nowhere", "--device", "cuda:0"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("lmpool-worker: device cuda:0: torch ")
    assert done.stderr.endswith("start with --device cpu\n")
    assert done.stderr.count("\n") == 1
