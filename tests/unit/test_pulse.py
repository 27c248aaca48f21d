"""Whether a host's part of the pool is alive."""

import pytest

from ctl.commands.pulse import consumer_of, rank_of
from lmpoold.protocol.views import read_rank_row

NUMBERS = "blocks free reclaimable reserved pages sequences wait_tokens run_tokens reserved_tokens"
NUMBERS += " version epoch requests prompt_tokens cached_tokens output_tokens"


def rank(number, state, host):
    words = " ".join(f"{name}=0" for name in NUMBERS.split())
    return read_rank_row(f"rank={number} state={state} {words} device=cpu host={host} pid=1")


def consumer(name, idle_ms, **more):
    return {"name": name.encode(), "idle": idle_ms, "pending": 0, **more}


@pytest.mark.parametrize(
    ("state", "alive"), [("up", True), ("drain", True), ("down", False), ("lost", False)]
)
def test_a_worker_is_alive_while_its_rank_is_up_or_drains(state, alive):
    rows = [rank(0, "up", "other"), rank(1, state, "here")]
    assert bool(rank_of(rows, "here")) is alive


def test_an_lmpoold_is_alive_if_it_read_lately():
    rows = [consumer("host-7-ab12", 900, inactive=99999)]
    assert "900 ms" in consumer_of(rows, "host", 1000)
    assert consumer_of(rows, "host", 800) == ""


def test_a_host_whose_name_begins_like_anothers_is_not_taken_for_it():
    rows = [consumer("host-2-7-ab12", 1, inactive=1)]
    assert consumer_of(rows, "host", 1000) == ""
    assert consumer_of(rows, "host-2", 1000) != ""


def test_an_older_server_that_cannot_tell_silence_counts_whoever_is_in_the_group():
    assert consumer_of([consumer("host-7-ab12", 999_999)], "host", 1000) != ""
