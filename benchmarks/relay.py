"""The floor under the ingress figures: the same hops with nothing done in them.

Two bare loops on the streams of a pool: the first reads ingress and hands each entry to
the second, the second answers it; each with one function call a batch, as lmpoold and a worker do.
Nothing is read, routed, reserved, scheduled or recorded.
"""

from __future__ import annotations

import asyncio
import contextlib

import click
import uvloop
from redis.exceptions import ResponseError

from lmpoold.protocol.keys import Keyspace
from lmpoold.shell.steady import stop_on_signals
from lmpoold.store.connect import open_redis
from lmpoold.store.lane import Lane
from lmpoold.store.streams import Inbox

GROUP = "relay"
WORK = "w:relay"
LIBRARY = """#!lua name=lmpool_relay
redis.register_function('relay_pass', function(keys, args)
  for i = 1, #args, 3 do
    redis.call('XADD', keys[2], '*', 'id', args[i + 1], 'client', args[i + 2])
    redis.call('XACK', keys[1], 'relay', args[i])
  end
end)
redis.register_function('relay_answer', function(keys, args)
  for i = 1, #args, 3 do
    redis.call('XADD', keys[2] .. args[i + 2], '*', 'id', args[i + 1], 'index', 0, 'token', 65,
      'text', 'A', 'finish_reason', 'length')
    redis.call('XACK', keys[1], 'relay', args[i])
  end
end)
"""


async def relay(url: str, half: str) -> None:
    """Run one half until SIGTERM."""
    keys, stop = Keyspace(), stop_on_signals()
    redis, blocking = open_redis(url), open_redis(url, blocking=True)
    work = f"{keys.prefix}{WORK}"
    if half == "pass":
        source, function, target = keys.ingress, "relay_pass", work
    else:
        source, function, target = work, "relay_answer", keys.out("")
    await redis.function_load(LIBRARY, replace=True)
    with contextlib.suppress(ResponseError):  # a relay that came before has made the group
        await redis.xgroup_create(source, GROUP, id="0", mkstream=True)
    calls, reads = Lane(redis), Lane(blocking, blocking=True)
    inbox = Inbox(reads, source, GROUP, half)

    async def run() -> None:
        while True:
            entries = await inbox.read(64, 1000)
            args = [
                part
                for entry, values in entries
                for part in (entry, values[b"id"], values[b"client"])
            ]
            if args:
                await calls.execute("FCALL", function, 2, source, target, *args)

    loop = asyncio.create_task(run())
    await stop.wait()
    loop.cancel()
    await calls.close()
    await reads.close()
    await redis.aclose()
    await blocking.aclose()


@click.command()
@click.argument("half", type=click.Choice(["pass", "answer"]))
@click.option("--redis-url", required=True)
def main(half: str, redis_url: str) -> None:
    """Relay one HALF of the way: ingress to worker, or worker to asker."""
    uvloop.run(relay(redis_url, half))


if __name__ == "__main__":
    main()
