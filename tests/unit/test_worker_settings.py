"""Worker settings: what nobody set goes by the device, what contradicts itself is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmpoold.protocol.errors import ConfigError
from workers.daemon.settings import WorkerConfig


def config(**settings) -> WorkerConfig:
    return WorkerConfig(redis_url="unix:///s", cache=Path("/c"), **settings)


def test_a_cpu_keeps_step_and_half_a_gibibyte_of_kv():
    on = config().on("cpu")
    assert (on.device, on.lookahead, on.kv_bytes) == ("cpu", 0, 512 * 2**20)
    assert (on.max_num_seqs, on.max_batched_tokens) == (64, 512)


def test_a_gpu_runs_one_step_ahead_and_takes_the_kv_that_fits():
    on = config(device="auto").on("cuda:1")
    assert (on.device, on.lookahead, on.kv_bytes) == ("cuda:1", 1, 0)
    assert (on.max_num_seqs, on.max_batched_tokens) == (256, 8192)


def test_what_was_set_stays():
    given = {"max_num_seqs": 3, "max_batched_tokens": 48, "lookahead": 0, "kv_bytes": 99}
    on = config(**given).on("cuda:0")
    assert {name: getattr(on, name) for name in given} == given


def test_a_step_has_room_for_as_many_sequences_as_were_asked_for():
    assert config(max_num_seqs=4000).on("cpu").max_batched_tokens == 4000


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_num_seqs": 9, "max_batched_tokens": 8}, r"\(8\) must be at least max_num_seqs"),
        ({"lookahead": 2}, "lookahead must be 0 or 1, got 2"),
        ({"memory_share": 0.0}, "memory_share must be above 0"),
        ({"memory_share": 1.1}, "at most 1, got 1.1"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"kv_bytes": -1}, "kv_bytes must not be negative"),
        ({"max_num_seqs": -1}, "max_num_seqs must not be negative"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        config(**settings)
