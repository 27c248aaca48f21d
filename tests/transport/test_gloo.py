"""Blocks between two processes over gloo: whole, both ways, and whatever becomes of the peer."""

import asyncio
import random

import pytest

from tests.transport.sides import begin_move, move, open_pair

pytestmark = pytest.mark.slow
BLOCKS = 260


@pytest.fixture
async def pair(start_side):
    """Two sides of 64-token blocks, random content in both pools, connected."""
    sides = [await start_side(rank, kind="gloo", block_tokens=64, blocks=BLOCKS) for rank in (0, 1)]
    for side in sides:
        await side.do("fill", blocks=list(range(BLOCKS)), seed=side.rank * 10_000)
    for reply in await open_pair(*sides):
        assert (reply.error, reply.result) == ("", "gloo"), reply.why
    return sides


@pytest.fixture
async def big_pair(start_side):
    """Two sides whose moves take a while: 128 blocks of 2 MiB."""
    sides = [await start_side(rank, kind="gloo", block_tokens=4096, blocks=160) for rank in (0, 1)]
    for reply in await open_pair(*sides):
        assert not reply.error, reply.why
    return sides


def whole_move(src, dst, plan, deadline_s):
    return begin_move(src, dst, plan, range(128), range(128), deadline_s)


@pytest.mark.better(14)
@pytest.mark.parametrize("block_tokens", [16, 64, 256])
async def test_blocks_arrive_byte_for_byte(start_side, block_tokens):
    sides = [
        await start_side(rank, kind="gloo", block_tokens=block_tokens, blocks=BLOCKS)
        for rank in (0, 1)
    ]
    await open_pair(*sides)
    draw = random.Random(block_tokens)
    for turn, count in enumerate((1, 2, 4, 8, 16, 32, 64, 128)):
        src, dst = sides if turn % 2 else reversed(sides)
        await src.do("fill", blocks=list(range(BLOCKS)), seed=draw.randrange(2**40))
        blocks = [draw.sample(range(BLOCKS), count) for _ in range(2)]
        await move(src, dst, f"p{turn}", *blocks)


async def test_blocks_that_were_not_named_stay_as_they_were(pair):
    one, two = pair
    others = list(range(5, BLOCKS))
    before = await two.do("digest", blocks=others)
    await move(one, two, "p", [9, 3, 250], [4, 0, 2])
    assert await two.do("digest", blocks=others) == before


async def test_both_directions_and_several_plans_at_once(pair):
    one, two = pair
    there = [one.ask("digest", blocks=list(range(100))), two.ask("digest", blocks=list(range(100)))]
    sent = [(await reply).result for reply in there]
    asked = []
    for plan in range(4):
        part, free = range(plan * 25, plan * 25 + 25), range(100 + plan * 25, 125 + plan * 25)
        asked += begin_move(one, two, f"there {plan}", part, free)
        asked += reversed(begin_move(two, one, f"back {plan}", part, free))
    for reply in await asyncio.gather(*asked):
        assert not reply.error, reply.why
    assert await two.do("digest", blocks=list(range(100, 200))) == sent[0]
    assert await one.do("digest", blocks=list(range(100, 200))) == sent[1]


async def test_halves_asked_for_in_another_order_still_find_each_other(pair):
    one, two = pair
    moves = [["a", 0, 1, [1], [200]], ["b", 0, 1, [2], [201]], ["c", 0, 1, [3], [202]]]
    asked = [one.ask("send", move=one_move, deadline_s=20) for one_move in moves]
    asked += [two.ask("receive", move=one_move, deadline_s=20) for one_move in reversed(moves)]
    for reply in await asyncio.gather(*asked):
        assert not reply.error, reply.why
    sent = await one.do("digest", blocks=[1, 2, 3])
    assert await two.do("digest", blocks=[200, 201, 202]) == sent


@pytest.mark.better(10)
@pytest.mark.parametrize("victim", [0, 1])
async def test_a_killed_peer_ends_a_move_at_once_and_its_successor_moves_again(
    big_pair, start_side, victim
):
    src, dst = big_pair
    dead, survivor = big_pair[victim], big_pair[1 - victim]
    halves = whole_move(src, dst, "p", deadline_s=30)
    await asyncio.sleep(0.05)
    assert not any(half.done() for half in halves), "the move must be under way"
    dead.kill()
    reply = await halves[1 - victim]
    assert reply.error == "TransferFailed"
    assert reply.took_s < 5, "a dead peer is noticed by itself, not at the deadline"
    assert await survivor.do("way", peer=dead.rank) == ""
    successor = await start_side(victim, kind="gloo", block_tokens=4096, blocks=160)
    for opened in await open_pair(successor, survivor, epoch="e2"):
        assert not opened.error, opened.why
    await successor.do("fill", blocks=[1, 2], seed=1)
    await move(successor, survivor, "q", [1, 2], [3, 4])
    await move(survivor, successor, "r", [3, 4], [5, 6])


@pytest.mark.better(10)
@pytest.mark.parametrize("victim", [0, 1])
async def test_a_stopped_peer_ends_a_move_at_its_deadline(big_pair, victim):
    halves = whole_move(*big_pair, "p", deadline_s=1.5)
    await asyncio.sleep(0.05)
    assert not any(half.done() for half in halves), "the move must be under way"
    stopped, survivor = big_pair[victim], big_pair[1 - victim]
    stopped.pause()
    reply = await halves[1 - victim]
    assert reply.error == "TransferTimeout"
    assert 1.4 < reply.took_s < 4
    stopped.resume()
    assert (await halves[victim]).error in ("TransferFailed", "TransferTimeout")
    for opened in await open_pair(*big_pair):
        assert not opened.error, opened.why
    await survivor.do("fill", blocks=[1, 2], seed=1)
    await move(survivor, stopped, "q", [1, 2], [3, 4])


async def test_after_close_nothing_reaches_the_pool_even_when_the_peer_wakes(big_pair):
    src, dst = big_pair
    await src.do("fill", blocks=list(range(128)), seed=1)
    halves = whole_move(src, dst, "p", deadline_s=30)
    await asyncio.sleep(0.05)
    src.pause()
    closed = await dst.ask("close", peer=0)
    assert not closed.error
    assert closed.took_s < 3
    assert (await halves[1]).error == "TransferFailed"
    held = await dst.do("digest", blocks=list(range(128)))
    src.resume()
    assert (await halves[0]).error == "TransferFailed"
    await asyncio.sleep(0.3)
    assert await dst.do("digest", blocks=list(range(128))) == held


async def test_a_half_whose_other_never_comes_leaves_the_pair_as_it_was(pair):
    one, two = pair
    lonely = [
        one.ask("send", move=["x", 0, 1, [1], [2]], deadline_s=0.3),
        two.ask("receive", move=["y", 0, 1, [1], [2]], deadline_s=0.3),
    ]
    assert [(await half).error for half in lonely] == ["TransferTimeout"] * 2
    assert await one.do("way", peer=1) == await two.do("way", peer=0) == "gloo"
    await move(one, two, "z", [1], [2])


async def test_open_is_idempotent_and_a_new_epoch_remakes_the_pair(pair):
    one, two = pair
    again = await open_pair(one, two)
    assert [reply.error for reply in again] == ["", ""]
    assert max(reply.took_s for reply in again) < 0.05, "nothing was to be done"
    offer = await two.do("offer")
    alone = await one.ask("open", peer=1, epoch="e2", offer=offer, deadline_s=0.5)
    assert alone.error == "TransferTimeout"
    assert await two.do("way", peer=0) == "", "the peer has noticed"
    for reply in await open_pair(one, two, epoch="e2"):
        assert not reply.error, reply.why
    await move(two, one, "p", [1], [2])


async def test_a_peer_that_is_gone_or_of_another_geometry_is_refused_by_name(start_side):
    one = await start_side(0, kind="gloo", block_tokens=16, blocks=4)
    two = await start_side(1, kind="gloo", block_tokens=32, blocks=4)
    refused = await open_pair(one, two)
    assert [reply.error for reply in refused] == ["TransferFailed"] * 2
    assert "2x2x32x2x32 bfloat16" in refused[0].why
    assert "2x2x16x2x32 bfloat16" in refused[0].why
    offer = await one.do("offer")
    await one.end()
    gone = await two.ask(
        "open", peer=0, epoch="e", offer=offer.replace("x16x", "x32x"), deadline_s=5
    )
    assert gone.error == "TransferFailed"
    assert "nobody listens" in gone.why


async def test_who_does_not_know_the_key_is_not_let_in(pair, start_side):
    one, _ = pair
    intruder = await start_side(1, kind="gloo", block_tokens=64, blocks=4)
    offer = (await one.do("offer")).replace('"key":"', '"key":"0')
    reply = await intruder.ask("open", peer=0, epoch="e", offer=offer, deadline_s=5)
    assert reply.error == "LinkLost"
    assert await one.do("way", peer=1) == "gloo"
