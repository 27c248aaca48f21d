"""Asking the machine for its links: what is printed where nothing answers, and by nvidia-smi."""

import pytest

from lmpoold.protocol.errors import ConfigError
from lmpoold.protocol.topology import Connection
from lmpoold.shell.links import read_smi, read_topology
from tests.unit.test_topology import TWO_H200
from workers.daemon.place import gpu_place


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Put a program of this name first on the PATH."""

    def install(script):
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    return install


def test_nvidia_smi_is_asked_for_its_matrix(smi, tmp_path):
    (tmp_path / "matrix").write_text(TWO_H200)
    smi(f'[ "$*" = "topo -m" ] && cat {tmp_path}/matrix')
    found = read_smi()
    assert (found.source, found.connections) == ("nvidia-smi", (Connection(0, 1, links=18),))


def test_its_failure_is_told_in_its_own_words(smi):
    smi("echo 'NVIDIA-SMI has failed' >&2; exit 9")
    with pytest.raises(ConfigError, match="NVIDIA-SMI has failed"):
        read_smi()


def test_pairs_by_hand_ask_nobody(smi):
    smi("exit 1")
    assert read_topology("0-1").source == "pairs"


def test_a_worker_tells_the_pool_its_gpus_place(smi, tmp_path, monkeypatch):
    (tmp_path / "matrix").write_text(TWO_H200)
    smi(f"cat {tmp_path}/matrix")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert gpu_place("cuda:0") == {"gpu": "#1", "near": "#0"}
    assert gpu_place("cpu") == {}


def test_where_nobody_can_say_it_says_nothing(smi, caplog):
    smi("exit 1")
    assert gpu_place("cuda:0") == {}
    assert "direct links are not known" in caplog.text
