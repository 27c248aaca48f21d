"""`lmpoolctl demo`: proves itself or fails, and leaves nothing behind."""

import json
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.ctl_program import Running, lmpoolctl


@pytest.fixture
def room() -> Iterator[str]:
    """Where a demo puts its files: of its own, for others may run beside; short, for sockets."""
    with tempfile.TemporaryDirectory(prefix="d-", dir="/tmp") as folder:
        yield folder
        assert not list(Path(folder).glob("lmpool-*")), "it leaves nothing behind"


@pytest.mark.slow
@pytest.mark.timeout(420)  # it computes a real model, on cores that other tests use too
def test_the_demo_serves_half_of_the_shared_prompt_from_the_cache_from_round_two(room):
    done = lmpoolctl("demo", "--json", within_s=400, TMPDIR=room)
    assert done.returncode == 0, done.stderr
    *answers, last = [json.loads(line) for line in done.stdout.splitlines()]
    summary = last["summary"]
    assert len(answers) == summary["questions"] == 12
    assert summary["failed"] == 0
    assert summary["later_share"] >= 0.5
    assert summary["shared_tokens"] >= 500
    assert answers[0]["reason"] == "no_prefix_hit"
    assert all(answer["answer"] for answer in answers)


def test_a_demo_whose_answers_fail_is_exit_1_and_leaves_nothing(room):
    # A byte a token: the shared prompt is longer than the tiny model's context.
    words = ("demo", "--model", "random:tiny-qwen3", "--workers", 1)
    done = lmpoolctl(*words, within_s=60, TMPDIR=room)
    assert done.returncode == 1
    assert "context_length_exceeded" in done.stdout
    assert "the demo failed" in done.stdout


def test_ctrl_c_ends_a_demo_and_leaves_nothing(tmp_path, room):
    words = ("demo", "--model", "random:tiny-qwen3", "--workers", 1)
    running = Running(tmp_path, *words, TMPDIR=room)
    try:
        running.says("worker-0: ")
        assert running.ends(signal.SIGINT) == 130
    finally:
        running.end_for_sure()
