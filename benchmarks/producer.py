"""A producer: a process that sends requests at given times and reads their answers.

Plain blocking connections and two threads, as in any program that is not this one: an event loop's
timers and wake-ups would be measured too.
"""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
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
    """What became of one; times in seconds after the start, by one clock for all processes."""

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
    spawn = multiprocessing.get_context("spawn")
    replies: Any = spawn.Queue()
    go = spawn.Barrier(producers + 1)
    processes = [
        spawn.Process(
            target=_produce, args=(url, f"bench-{n}", asks[n::producers], go, replies, patience_s)
        )
        for n in range(producers)
    ]
    for process in processes:
        process.start()
    go.wait(60)
    told: list[Told] = []
    took_s = 0.0
    for _ in processes:
        part, busy_s = replies.get(timeout=patience_s + 60)
        told += part
        took_s += busy_s
    for process in processes:
        process.join()
    missing = [one.id for one in told if not one.tokens and not one.code]
    if missing:
        raise TimeoutError(f"{len(missing)} requests were not answered, {missing[0]} among them")
    return told, took_s


def _produce(
    url: str, client: str, asks: Sequence[Ask], go: Any, replies: Any, patience_s: float
) -> None:
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
    go.wait(60)
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
        sender.xadd(keys.ingress, body)  # type: ignore[arg-type]
    reading.join()
    replies.put((list(told.values()), time.process_time() - busy_s))


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
