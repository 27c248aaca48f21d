"""Lane: the connection of the request path, on a real server that is slow, stopped, killed."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, NoScriptError, ReadOnlyError, ResponseError
from redis.exceptions import ConnectionError as ServerLost
from redis.exceptions import TimeoutError as ServerSlow

from lmpoold.store.connect import open_redis
from lmpoold.store.embedded import EmbeddedServer
from lmpoold.store.lane import Lane, Plain


@pytest.fixture
async def server(tmp_path) -> AsyncIterator[EmbeddedServer]:
    """A server that a test may stop or kill."""
    server = EmbeddedServer(tmp_path / "s", fsync="always")
    await server.start()
    yield server
    server.stop()


@pytest.fixture
async def redis(server) -> AsyncIterator[Redis]:
    """A client of that server."""
    redis = open_redis(server.url)
    yield redis
    await redis.aclose()


@pytest.fixture
async def lane(redis) -> AsyncIterator[Lane]:
    """A lane of calls that do not block."""
    lane = Lane(redis, timeout_s=0.3)
    yield lane
    await lane.close()


async def test_calls_made_together_get_their_own_replies(lane):
    replies = await asyncio.gather(*(lane.execute("ECHO", f"{i}") for i in range(500)))
    assert replies == [f"{i}".encode() for i in range(500)]


async def test_long_and_binary_words_arrive_whole(redis):
    value = bytes(range(256)) * 40_000
    lane = Lane(redis)  # of the usual patience: ten megabytes are written through to the disk
    await lane.execute("SET", "k", value)
    assert await lane.execute("GET", "k") == value
    await lane.close()


async def test_an_error_reply_is_the_exception_redis_py_raises_and_later_calls_go_on(lane, redis):
    for words, kind in (
        (("NONSENSE",), ResponseError),
        (("EVALSHA", "0" * 40, 0), NoScriptError),
        (("GET",), ResponseError),
    ):
        with pytest.raises(kind) as ours:
            await lane.execute(*words)
        with pytest.raises(kind) as theirs:
            await redis.execute_command(*words)
        assert (type(ours.value), str(ours.value)) == (type(theirs.value), str(theirs.value))
    assert await lane.execute("ECHO", "x") == b"x"


async def test_a_replica_refuses_writes_by_the_error_that_says_so(lane):
    await lane.execute("REPLICAOF", "127.0.0.1", 1)
    with pytest.raises(ReadOnlyError):
        await lane.execute("SET", "k", "v")


async def test_a_call_whose_caller_left_does_not_shift_the_replies(lane):
    calls = [asyncio.create_task(lane.execute("ECHO", f"{i}")) for i in range(10)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    replies = await asyncio.gather(*calls, return_exceptions=True)
    assert replies[1::2] == [f"{i}".encode() for i in range(1, 10, 2)]
    assert await lane.execute("ECHO", "x") == b"x"


async def test_a_timed_transaction_takes_as_long_as_the_server_was_at_it(lane):
    loops = "for _ = 1, tonumber(ARGV[1]) do end"
    brief_s = await lane.timed(("EVAL", loops, 0, 1))
    assert 0 <= brief_s < await lane.timed(("EVAL", loops, 0, 3_000_000))


@pytest.mark.parametrize("plain", [False, True])
async def test_a_timed_transaction_raises_what_one_of_its_commands_did(lane, redis, plain):
    way = Plain(redis) if plain else lane
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await way.timed(("SET", "k", "v"), ("HSET", "k", "a", "b"), ("SET", "k", "w"))
    assert await way.execute("GET", "k") == b"w"
    with pytest.raises(ResponseError, match="unknown command"):
        await way.timed(("SET", "k", "x"), ("NONSENSE",))
    assert await way.execute("GET", "k") == b"w", "nothing of it was carried out"
    assert await way.timed(("SET", "k", "y")) >= 0


async def test_a_transaction_whose_caller_left_does_not_shift_the_replies(lane):
    await lane.execute("PING")
    leaving = asyncio.create_task(lane.timed(("SET", "k", "v"), ("GET", "k")))
    staying = asyncio.create_task(lane.together(("GET", "k"), ("ECHO", "x")))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == [b"v", b"x"]
    assert await lane.execute("ECHO", "y") == b"y"


async def test_a_server_that_does_not_answer_is_slow_and_the_next_call_reconnects(server, lane):
    await lane.execute("PING")
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        calls = [lane.execute("ECHO", f"{i}") for i in range(3)]
        replies = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(reply) for reply in replies] == [ServerSlow] * 3
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    assert await lane.execute("ECHO", "x") == b"x"


async def test_what_was_in_flight_when_the_server_died_is_lost_and_not_sent_again(server, redis):
    lane = Lane(redis, blocking=True)
    waiting = asyncio.create_task(lane.execute("BLPOP", "nothing", 0))
    await asyncio.sleep(0.1)
    server.kill()
    with pytest.raises(ServerLost):
        await waiting
    with pytest.raises((ServerLost, OSError)):
        await lane.execute("RPUSH", "list", "x")
    await server.start()
    assert await lane.execute("RPUSH", "list", "y") == 1
    await lane.close()


async def test_a_cancelled_blocking_read_frees_its_connection(redis):
    lane = Lane(redis, blocking=True)
    reading = asyncio.create_task(lane.execute("BLPOP", "list", 0))
    await asyncio.sleep(0.1)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    async with asyncio.timeout(5):
        assert await lane.execute("ECHO", "x") == b"x"
    await redis.rpush("list", "kept")
    assert await redis.llen("list") == 1
    await lane.close()


async def test_a_closed_lane_ends_its_calls_and_opens_again(lane):
    call = asyncio.create_task(lane.execute("BLPOP", "nothing", 0))
    await asyncio.sleep(0.1)
    await lane.close()
    with pytest.raises(ServerLost):
        await call
    assert await lane.execute("ECHO", "x") == b"x"


async def test_a_server_with_a_password_is_entered_by_the_url(server, redis):
    await redis.config_set("requirepass", "secret")
    entered = open_redis(server.url.replace("unix://", "unix://:secret@"))
    lane = Lane(entered, timeout_s=1.0)
    assert await lane.execute("ECHO", "x") == b"x"
    await lane.close()
    await entered.aclose()
    stranger = open_redis(server.url.replace("unix://", "unix://:wrong@"))
    with pytest.raises((AuthenticationError, ServerLost), match="invalid username-password"):
        await Lane(stranger, timeout_s=1.0).execute("PING")
    await stranger.aclose()


async def test_commands_that_go_together_are_one_transaction_among_other_calls(lane):
    pairs = [lane.together(("SET", "k", n), ("INCR", "k"), ("APPEND", "all", n)) for n in range(9)]
    others = [lane.execute("GET", "k") for _ in range(9)]
    seen = await asyncio.gather(*(one for pair in zip(pairs, others, strict=True) for one in pair))
    together, alone = seen[::2], seen[1::2]
    assert [(done, int(count)) for done, count, _ in together] == [(b"OK", n + 1) for n in range(9)]
    assert {int(reply) for reply in alone if reply is not None} <= set(range(1, 10))
    assert await lane.execute("GET", "all") == b"012345678"


async def test_of_commands_that_go_together_a_wrong_one_undoes_what_it_can_and_is_raised(lane):
    with pytest.raises(ResponseError, match="unknown command"):
        await lane.together(("SET", "k", 1), ("NONSENSE",))
    assert await lane.execute("GET", "k") is None
    await lane.execute("SET", "text", "x")
    with pytest.raises(ResponseError, match="not an integer"):
        await lane.together(("SET", "k", 1), ("INCR", "text"))
    assert await lane.execute("PING") == b"PONG"


async def test_cancelling_a_call_that_finds_a_broken_connection_is_cancelling(tmp_path):
    """redis-py tells of the connection instead; whoever tries again then goes on for ever."""

    async def hang_up(_, writer):
        writer.close()

    async with await asyncio.start_unix_server(hang_up, tmp_path / "s"):
        for turns in range(60):
            broken = open_redis(f"unix://{tmp_path / 's'}")
            lane = Lane(broken)
            call = asyncio.create_task(lane.execute("PING"))
            for _ in range(turns):
                await asyncio.sleep(0)
            under_way = call.cancel()
            with pytest.raises(asyncio.CancelledError if under_way else ServerLost):
                await call
            await lane.close()
            await broken.aclose()
            if not under_way:
                break
        assert turns > 3, "it was over before it could be cancelled"
