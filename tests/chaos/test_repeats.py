"""What a killed server forgot and has said anew is told from what it says twice."""

from lmpoold.protocol.keys import Keyspace
from lmpoold.protocol.messages import Output
from tests.chaos.load import Askers

STREAM = Keyspace().out("client0")
TOKENS = [Output("q", index, token=7) for index in range(3)]


async def seen(server_url, redis, *, gone=(), trimmed=False):
    """Let a reader see token 1 twice; of the entries, those at the places `gone` are no more."""
    entries = [await redis.xadd(STREAM, {"n": number}) for number in range(4)]
    askers = Askers(server_url, server_url, 2)
    try:
        for number, entry in enumerate(entries):
            if number == 2:
                for place in gone:
                    await redis.xdel(STREAM, entries[place])
                if trimmed:
                    await redis.xtrim(STREAM, minid=entries[2], approximate=False)
            await askers._note(STREAM, entry, TOKENS[(0, 1, 1, 2)[number]])
    finally:
        await redis.delete(STREAM)
        for client in (askers._redis, askers._blocking):
            await client.aclose()
    return [output.index for output in askers.outputs["q"]], askers.forgotten


async def test_an_entry_that_is_no_more_was_forgotten(server_url, redis):
    assert await seen(server_url, redis, gone=[1]) == ([0, 1, 2], 1)


async def test_an_entry_that_stands_was_repeated(server_url, redis):
    assert await seen(server_url, redis) == ([0, 1, 1, 2], 0)


async def test_an_entry_that_was_trimmed_tells_nothing(server_url, redis):
    assert await seen(server_url, redis, trimmed=True) == ([0, 1, 1, 2], 0)
