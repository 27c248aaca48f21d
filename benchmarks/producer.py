"""A producer: a process that sends requests at given times and reads their answers.

Plain blocking connections and two threads, as in any program that is not this one: an event loop's
timers and wake-ups would be measured too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import redis

from lmpoold.protocol.keys import Keyspace
from lmpoold.protocol.messages import read_outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request, to be sent `at_s` after the start."""

    id: str
    tokens: list[int]
    output_tokens: int
    at_s: float


@dataclass(slots=True)
class Told:
    """What became of one; times in seconds after the `go` that all producers get at once."""

    id: str
    sent_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0
    tokens: int = 0
    code: str = ""


def ask_all(
    url: str, asks: Sequence[Ask], *, producers: int, patience_s: float
) -> tuple[list[Told], float]:
    """Have so many processes send the requests between them.

    Returns: what became of each, and the processors' seconds they took.
    Raises: TimeoutError: some were not answered in time.
    """
    argv = (sys.executable, "-m", "benchmarks.producer", url)
    processes = [
        subprocess.Popen((*argv, f"bench-{n}"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for n in range(producers)
    ]
    told: list[Told] = []
    took_s = 0.0
    try:
        for n, process in enumerate(processes):
            _say(process, [patience_s, *map(asdict, asks[n::producers])])
        for process in processes:
            _hear(process)
        for process in processes:
            _say(process, "go")
        for process in processes:
            part, busy_s = _hear(process)
            told += [Told(**one) for one in part]
            took_s += busy_s
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    missing = [one.id for one in told if not one.tokens and not one.code]
    if missing:
        raise TimeoutError(f"{len(missing)} requests were not answered, {missing[0]} among them")
    return told, took_s


def _say(process: subprocess.Popen[bytes], words: Any) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(words).encode() + b"\n")
    process.stdin.flush()


def _hear(process: subprocess.Popen[bytes]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("a producer ended early; its error stands above")
    return json.loads(line)


def main() -> None:
    """Be a producer: asks come on stdin, what became of them goes to stdout."""
    url, client = sys.argv[1:]
    patience_s, *rows = json.loads(sys.stdin.readline())
    asks = [Ask(**row) for row in rows]
    keys = Keyspace()
    sender, reader = redis.Redis.from_url(url), redis.Redis.from_url(url)
    told = {ask.id: Told(ask.id) for ask in asks}
    bodies = [
        {
            "id": ask.id,
            "client": client,
            "tokens": json.dumps(ask.tokens),
            "max_tokens": str(ask.output_tokens),
            "ignore_eos": "1",
        }
        for ask in asks
    ]
    for connection in (sender, reader):
        connection.ping()
    print(json.dumps("ready"), flush=True)
    sys.stdin.readline()
    began_s, busy_s = time.monotonic(), time.process_time()
    reading = threading.Thread(
        target=_read, args=(reader, keys.out(client), told, began_s, patience_s)
    )
    reading.start()
    for ask, body in zip(asks, bodies, strict=True):
        wait_s = began_s + ask.at_s - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        told[ask.id].sent_s = time.monotonic() - began_s
        sender.xadd(keys.ingress, body)
    reading.join()
    rows = [asdict(one) for one in told.values()]
    print(json.dumps([rows, time.process_time() - busy_s]), flush=True)


def _read(
    reader: Any, stream: str, told: dict[str, Told], began_s: float, patience_s: float
) -> None:
    last, left = b"0-0", len(told)
    while left and time.monotonic() - began_s < patience_s:
        reply: Any = reader.xread({stream: last}, count=1000, block=500)
        now_s = time.monotonic() - began_s
        for entry, values in reply[0][1] if reply else ():
            last = entry
            for output in read_outputs(values):
                one = told.get(output.id)
                if one is None:
                    continue
                if output.token is not None:
                    one.first_s = one.first_s or now_s
                    one.last_s = now_s
                    one.tokens += 1
                one.code = output.code
                left -= output.ends
    reader.delete(stream)


if __name__ == "__main__":
    main()
