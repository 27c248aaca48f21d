"""How two sides agree on a way: over real links and gloo, with ways that fail as hardware does.

Both sides live in one process here. A way of the GPU's is played by gloo under another name, and
then refuses to connect, on one side or both, or delivers other bytes than were sent.
"""

import asyncio
import logging
import time

import pytest
import torch

from lmpoold.protocol.errors import TransferFailed, TransferTimeout
from workers.transport.gloo import GlooChannel, GlooWire
from workers.transport.memory import PoolMemory
from workers.transport.port import Move
from workers.transport.transport import PairTransport

BLOCKS = 8


class Refusing(GlooWire):
    """As when a handle cannot be mapped."""

    kind = "peer"

    def connect(self, joint):
        raise TransferFailed("cannot be mapped")


class Wrong(GlooWire):
    """As when a mapping ends up elsewhere: bytes arrive, but not those."""

    kind = "nccl"

    def connect(self, joint):
        return WrongChannel(super().connect(joint))


class WrongChannel:
    def __init__(self, channel: GlooChannel) -> None:
        self._channel = channel
        self.send = channel.send
        self.abort = channel.abort

    def receive(self, src_blocks, dst_blocks, into, timeout_s):
        took_s = self._channel.receive(src_blocks, dst_blocks, into, timeout_s)
        into[dst_blocks[-1], -1] ^= 1 << 40
        return took_s


class Sound(GlooWire):
    """A way that works, under the name of one that does not on the other side."""

    kind = "peer"


class Hanging(GlooWire):
    """As a communicator whose peer is not there; only the peer's word ends the wait for it."""

    kind = "peer"

    def connect(self, joint):
        time.sleep(3)
        raise TransferFailed("it took too long")


def side(rank, *ways):
    data = torch.randint(-(2**62), 2**62, (BLOCKS + 2, 512))
    memory = PoolMemory.of(data, num_blocks=BLOCKS, beacon=BLOCKS + 1)
    return PairTransport(rank, memory, [way(memory) for way in ways]), memory


async def opened(one, two):
    await one.start()
    await two.start()
    return await open_both(one, two)


async def open_both(one, two):
    return await asyncio.gather(
        one.open(1, "e", two.offer(), deadline_s=10),
        two.open(0, "e", one.offer(), deadline_s=10),
        return_exceptions=True,
    )


async def check_move(one, two, memory_one, memory_two):
    move = Move("p", 0, 1, (0, 3, 5), (7, 1, 2))
    await asyncio.gather(one.send(move, deadline_s=5), two.receive(move, deadline_s=5))
    assert torch.equal(memory_one.words[[0, 3, 5]], memory_two.words[[7, 1, 2]])


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ((Refusing, GlooWire), (Refusing, GlooWire)),
        ((Refusing, GlooWire), (Sound, GlooWire)),
        ((Sound, GlooWire), (Refusing, GlooWire)),
        ((Hanging, GlooWire), (Refusing, GlooWire)),
        ((Wrong, GlooWire), (Wrong, GlooWire)),
        ((Refusing, Wrong, GlooWire), (Refusing, Wrong, GlooWire)),
        ((Refusing, Wrong, GlooWire), (Wrong, Refusing, GlooWire)),
        ((Refusing, GlooWire), (GlooWire,)),
        ((Wrong, GlooWire), (Refusing, GlooWire)),
    ],
)
async def test_the_first_way_that_both_sides_have_proved_is_taken(low, high, caplog):
    caplog.set_level(logging.WARNING)
    (one, memory_one), (two, memory_two) = side(0, *low), side(1, *high)
    assert await opened(one, two) == [None, None]
    assert one.way(1) == two.way(0) == "gloo"
    await check_move(one, two, memory_one, memory_two)
    tried = [way.kind for way in low[:-1] if way.kind in {other.kind for other in high}]
    told = [record.way for record in caplog.records if record.message == "a way failed"]
    assert sorted(told) == sorted(tried * 2), "one line for each way that failed, on each side"
    await asyncio.gather(one.stop(), two.stop())


async def test_without_a_way_both_sides_hear_why():
    (one, _), (two, _) = side(0, Refusing, Wrong), side(1, Refusing, Wrong)
    low, high = await opened(one, two)
    for error in (low, high):
        assert isinstance(error, TransferFailed)
        assert "peer: cannot be mapped" in str(error)
        assert "nccl: the bytes that arrived are not those that were sent" in str(error)
    assert one.way(1) == two.way(0) == ""
    await asyncio.gather(one.stop(), two.stop())


async def test_sides_with_no_way_in_common_say_so():
    (one, _), (two, _) = side(0, Refusing), side(1, GlooWire)
    for error in await opened(one, two):
        assert isinstance(error, TransferFailed)
        assert "no way in common" in str(error)
    await asyncio.gather(one.stop(), two.stop())


async def test_a_kept_way_is_the_better_one_where_it_works():
    (one, memory_one), (two, memory_two) = side(0, Sound, GlooWire), side(1, Sound, GlooWire)
    assert await opened(one, two) == [None, None]
    assert one.way(1) == two.way(0) == "peer"
    assert one.kind == "auto"
    await check_move(one, two, memory_one, memory_two)
    await asyncio.gather(one.stop(), two.stop())


async def test_a_cancelled_move_takes_its_pair_down_and_open_makes_it_again():
    (one, memory_one), (two, memory_two) = side(0, GlooWire), side(1, GlooWire)
    await opened(one, two)
    waiting = asyncio.create_task(
        two.receive(Move("lonely", 0, 1, (0,), (1,)), deadline_s=30), name="lonely"
    )
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert two.way(0) == "gloo", "nothing flowed yet: the pair stays"
    await check_move(one, two, memory_one, memory_two)
    await one.close(1)
    assert one.way(1) == ""
    await asyncio.sleep(0.05)
    assert two.way(0) == "", "the peer hears of it at once"
    assert await open_both(one, two) == [None, None]
    move = Move("again", 1, 0, (4,), (6,))
    await asyncio.gather(two.send(move, deadline_s=5), one.receive(move, deadline_s=5))
    assert torch.equal(memory_two.words[4], memory_one.words[6])
    await asyncio.gather(one.stop(), two.stop())


async def test_a_peer_that_calls_again_has_lost_the_pair_whatever_its_old_link_says():
    (one, memory_one), (two, memory_two) = side(0, GlooWire), side(1, GlooWire)
    await opened(one, two)
    forgotten = two._standing.pop(0)  # its end of the link stays open, as when a cable is cut
    with pytest.raises(TransferTimeout):
        await two.open(0, "e", one.offer(), deadline_s=0.5)
    assert one.way(1) == ""
    assert await open_both(one, two) == [None, None]
    await check_move(one, two, memory_one, memory_two)
    await forgotten.pair.end("test over")
    await asyncio.gather(one.stop(), two.stop())
