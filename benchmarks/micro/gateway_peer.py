"""What the gateway is measured beside: a socket, a bare uvicorn application, routers before it.

The socket answers anything at once, unread: it costs what waking two processes does. The
application answers completions at once: the least that an HTTP server of this kind costs. A router
is any program that takes `--host --port --worker-urls --policy --prometheus-port`, as
`vllm-router` and `sglang-router launch` do.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.types import Receive, Scope, Send

from benchmarks.micro.gateway_caller import Caller, Refused

READY_S = 60.0
TOKEN = {"id": "cmpl-0", "object": "text_completion", "created": 0, "model": "stub"}
USAGE = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}


def _token(reason: str | None) -> dict[str, Any]:
    choice = {"index": 0, "text": "A", "logprobs": None, "finish_reason": reason}
    return {**TOKEN, "choices": [choice]}


async def stub(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer completions with the letter A, anything else with an empty object."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    asked = json.loads(body) if body else {}
    start: dict[str, Any] = {"type": "http.response.start", "status": 200}
    if asked.get("stream"):
        await send({**start, "headers": [(b"content-type", b"text/event-stream")]})
        for left in reversed(range(asked["max_tokens"])):
            event = b"data: " + json.dumps(_token(None if left else "length")).encode() + b"\n\n"
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        return
    answer = json.dumps({**_token("length"), "usage": USAGE} if asked else {}).encode()
    length = (b"content-length", str(len(answer)).encode())
    await send({**start, "headers": [(b"content-type", b"application/json"), length]})
    await send({"type": "http.response.body", "body": answer})


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(10)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _start(running: AsyncExitStack, argv: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        child = subprocess.Popen(argv, stdout=file, stderr=file)
    running.callback(_end, child)
    return child


async def _started(
    running: AsyncExitStack, argv: Sequence[str], port: int, log: Path, connections: int
) -> list[Caller]:
    """Start a program and connect once it answers; it ends with `running`."""
    child = _start(running, argv, log)
    async with asyncio.timeout(READY_S):
        while child.poll() is None:
            try:
                caller = await Caller.to(port)
                await caller.seconds(tokens=1, stream=False)
            except (OSError, EOFError, Refused):
                await asyncio.sleep(0.2)
            else:
                return [caller] + [await Caller.to(port) for _ in range(connections - 1)]
    said = await asyncio.to_thread(log.read_text)
    raise SystemExit(f"{argv[0]} ended before it answered:\n{said[-2000:]}")


@asynccontextmanager
async def running_peers(
    folder: Path, commands: Sequence[str], connections: int
) -> AsyncIterator[dict[str, list[Caller]]]:
    """Yield connections to a mere socket, to the bare application, and to each router before it.

    Args:
        folder: for logs.
        commands: each starts a router, which gets the name of its program.
        connections: to each.
    """
    async with AsyncExitStack() as running:
        door = _free_port()
        argv = [sys.executable, "-m", "benchmarks.micro.gateway_socket", str(door)]
        log = folder / "socket.log"
        callers = {"socket": await _started(running, argv, door, log, connections)}
        port = _free_port()
        argv = [sys.executable, "-m", "uvicorn", f"{__name__}:stub", "--port", str(port)]
        argv += ["--log-level", "warning", "--no-access-log", "--http", "httptools"]
        callers["bare"] = await _started(running, argv, port, folder / "bare.log", connections)
        for command in commands:
            argv, door = shlex.split(command), _free_port()
            name = Path(argv[0]).name
            argv += ["--host", "127.0.0.1", "--port", str(door), "--policy", "round_robin"]
            argv += ["--worker-urls", f"http://127.0.0.1:{port}"]
            argv += ["--prometheus-port", str(_free_port())]
            log = folder / f"{name}.log"
            callers[name] = await _started(running, argv, door, log, connections)
        yield callers
