"""The command lines of compose.yaml, run as processes: the pool comes up, is healthy, answers."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time

import httpx
import pytest

from lmpoold.store.embedded import server_binary
from tests.house.command_line import SCRIPTS
from tests.house.test_compose import SERVICES, filled
from tests.house.tree import ROOT

MODEL = "random:tiny-qwen3"
pytestmark = pytest.mark.timeout(120)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def argv(words):
    """A command line of compose as this checkout runs it, with the smallest model."""
    program, *rest = [filled(word, LMPOOL_MODEL=MODEL) for word in words]
    # Containers have a 9090 each, and names that others know.
    here = {"9090": "0", "worker-0": "127.0.0.1", "worker-1": "127.0.0.1"}
    rest = [here.get(word, word) for word in rest]
    if program == "python":
        return [sys.executable, *rest]
    return [sys.executable, "-m", SCRIPTS[program].partition(":")[0], *rest]


def test_the_command_lines_of_compose_bring_up_a_healthy_pool_that_answers(tmp_path):
    redis_port, http_port = free_port(), free_port()
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "LMPOOL_REDIS_URL": f"redis://127.0.0.1:{redis_port}/0",
        "LMPOOL_API_KEYS": "key-of-compose",
    }

    def ends_well(words):
        words = [word.replace("8000", str(http_port)) for word in argv(words)]
        done = subprocess.run(words, env=environ, capture_output=True, timeout=60, check=False)
        return done.returncode == 0

    def until(check, what):
        until_s = time.monotonic() + 60
        while not check():
            assert time.monotonic() < until_s, (what, *map(text, tmp_path.glob("*.log")))
            time.sleep(0.2)

    def text(log):
        return log.read_text()

    with contextlib.ExitStack() as running:

        def start(name, words):
            log = running.enter_context((tmp_path / f"{name}.log").open("wb"))
            process = subprocess.Popen(words, env=environ, stdout=log, stderr=log, cwd=tmp_path)
            running.callback(process.wait)
            running.callback(process.terminate)

        server = SERVICES["redis"]["command"]
        start("redis", [str(server_binary()), *server[1:], "--port", str(redis_port)])
        assert ends_well(SERVICES["model"]["command"])
        for number in range(SERVICES["lmpoold"]["deploy"]["replicas"]):
            start(f"lmpoold-{number}", argv(SERVICES["lmpoold"]["command"]))
        door = argv(SERVICES["gateway"]["command"])
        start("gateway", [str(http_port) if word == "8000" else word for word in door])
        for name in ("worker-0", "worker-1"):
            start(name, argv(SERVICES[name]["command"]))
        for name in ("lmpoold", "gateway", "worker-0"):
            until(lambda name=name: ends_well(SERVICES[name]["healthcheck"]["test"][1:]), name)
        url, key = f"http://127.0.0.1:{http_port}", {"Authorization": "Bearer key-of-compose"}
        until(lambda: httpx.get(f"{url}/ready").json()["ranks_up"] == 2, "two ranks")
        for name in ("lmpoold-0", "lmpoold-1", "worker-0", "worker-1"):
            rows = map(json.loads, text(tmp_path / f"{name}.log").splitlines())
            (port,) = [row["port"] for row in rows if row["msg"] == "metrics"]
            assert "lmpool_" in httpx.get(f"http://127.0.0.1:{port}/metrics").text
        turn = {"role": "user", "content": "Hi"}
        asked = {"model": MODEL, "messages": [turn], "max_tokens": 4, "ignore_eos": True}
        assert httpx.post(f"{url}/v1/chat/completions", json=asked).status_code == 401
        answer = httpx.post(f"{url}/v1/chat/completions", json=asked, headers=key)
        assert answer.json()["usage"]["completion_tokens"] == 4
