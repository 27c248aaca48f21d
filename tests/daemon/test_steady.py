"""Loops that outlive a lost server and nothing else, and sockets that send at once."""

import asyncio
import gc
import socket

import pytest
from redis.exceptions import ConnectionError as ServerLost

from lmpoold.shell.steady import steadily, uncollected
from lmpoold.store.connect import open_redis
from lmpoold.store.lane import Lane


async def test_a_loop_goes_on_when_the_server_was_lost():
    stop, turns = asyncio.Event(), []

    async def turn():
        turns.append(1)
        if len(turns) < 3:
            raise ServerLost("gone")
        stop.set()

    await asyncio.wait_for(steadily("test", turn, stop), 5)
    assert len(turns) == 3


@pytest.mark.bar(49)
async def test_a_loop_that_breaks_ends_all_the_others_instead_of_looking_alive():
    stop, other = asyncio.Event(), []

    async def broken():
        raise ValueError("a bug")

    async def working():
        other.append(1)
        await asyncio.sleep(0.01)

    async def run_both():
        async with asyncio.timeout(5), asyncio.TaskGroup() as loops:
            loops.create_task(steadily("working", working, stop))
            loops.create_task(steadily("broken", broken, stop))

    with pytest.raises(ExceptionGroup) as error:
        await run_both()
    assert error.group_contains(ValueError, match="a bug")
    assert other


@pytest.mark.bar(53)
async def test_a_connection_over_tcp_does_not_hold_small_writes_back(redis, server_url):
    path = server_url.removeprefix("unix://")

    async def forward(reader, writer):
        far_reader, far = await asyncio.open_unix_connection(path)

        async def pump(source, sink):
            while chunk := await source.read(65536):
                sink.write(chunk)
            sink.close()

        await asyncio.gather(pump(reader, far), pump(far_reader, writer), return_exceptions=True)

    listener = await asyncio.start_server(forward, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    client = open_redis(f"redis://{host}:{port}/0")
    lane = Lane(client, timeout_s=5.0)
    assert await lane.execute("PING") == b"PONG"
    used = lane._transport.get_extra_info("socket")
    assert used.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    connection = await client.connection_pool.get_connection()
    used = connection._writer.get_extra_info("socket")
    assert used.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    await client.connection_pool.release(connection)
    await lane.close()
    await client.aclose()
    listener.close()
    await listener.wait_closed()


def test_nothing_is_collected_within_a_large_import_and_all_is_as_before_after_it():
    frozen = gc.get_freeze_count()
    try:
        with uncollected():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > frozen, "what was imported is not looked at again"
    finally:
        gc.unfreeze()
