"""`lmpoolctl up --gateway`: an HTTP door of a pool that somebody started by hand."""

import os
import signal
import socket
import tempfile
from pathlib import Path

import httpx
import pytest

from tests.e2e.ctl_program import MODEL, Running, Up, runs, until

pytestmark = pytest.mark.timeout(120)
TURN = {"role": "user", "content": "Hi"}
ASKED = {"model": MODEL, "messages": [TURN], "max_tokens": 4, "ignore_eos": True}


@pytest.fixture
def scratch():
    with tempfile.TemporaryDirectory(prefix="lmpool-", dir="/tmp") as folder:
        yield Path(folder)


def test_up_opens_a_gateway_keeps_it_alive_and_closes_it(scratch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    up = Up(scratch, scratch / "s", "--gateway", port)
    try:
        url = up.says(r"OpenAI's API: (\S+)/v1")[1]
        chat = f"{url}/v1/chat/completions"
        assert httpx.post(chat, json=ASKED).json()["usage"]["completion_tokens"] == 4
        children = up.children()
        assert set(children) == {"server", "lmpoold", "worker-0", "gateway"}
        os.kill(children["gateway"], signal.SIGKILL)
        up.says(r"gateway ended \(SIGKILL\): starting it again")

        def answers():
            try:
                return httpx.post(chat, json=ASKED).status_code == 200
            except httpx.TransportError:
                return False

        until(answers, "the gateway is back")
        children = up.children()
        assert up.ends(signal.SIGINT) == 0
        assert [name for name, pid in children.items() if runs(pid)] == []
    finally:
        up.end_for_sure()


def test_a_port_that_is_taken_ends_everything_with_exit_2_and_says_which(scratch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ("--model", MODEL, "--workers", 1, "--blocks", 256, "--gateway", port)
        up = Running(scratch, "up", *words, "--state-dir", scratch / "s")
        try:
            up.says(f"cannot listen on 127.0.0.1 port {port}")
            assert up.ends() == 2
        finally:
            up.end_for_sure()
