"""Blocks between two GPUs: the ways that no CPU has, and how one takes another's place."""

import asyncio
import json
import random

import pytest
import torch

from lmpoold.shell.links import read_nvml
from tests.transport.sides import OPEN_S, begin_move, move, open_pair

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(120),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]
BLOCKS = 160


async def start_pair(start_side, kind, **more):
    config = {"block_tokens": 64, "blocks": BLOCKS, "geometry": "qwen3-0.6b", **more}
    return await asyncio.gather(
        *(start_side(rank, kind=kind, device=f"cuda:{rank}", **config) for rank in (0, 1))
    )


@pytest.mark.parametrize(("kind", "used"), [("peer", "peer"), ("nccl", "nccl"), ("auto", "peer")])
async def test_blocks_arrive_byte_for_byte_in_both_directions(start_side, kind, used):
    sides = await start_pair(start_side, kind)
    for reply in await open_pair(*sides):
        assert (reply.error, reply.result) == ("", used), reply.why
    draw = random.Random(1)
    for turn, count in enumerate((1, 2, 4, 8, 16, 32, 64, 128)):
        src, dst = sides if turn % 2 else reversed(sides)
        await src.do("fill", blocks=list(range(BLOCKS)), seed=draw.randrange(2**40))
        blocks = [draw.sample(range(BLOCKS), count) for _ in range(2)]
        await move(src, dst, f"p{turn}", *blocks)


async def test_both_directions_at_once_over_nccl(start_side):
    one, two = await start_pair(start_side, "nccl", max_ctas=4)
    await open_pair(one, two)
    for side in (one, two):
        await side.do("fill", blocks=list(range(80)), seed=side.rank * 1000)
    sent = [await side.do("digest", blocks=list(range(80))) for side in (one, two)]
    asked = []
    for plan in range(4):
        part, free = range(plan * 20, plan * 20 + 20), range(80 + plan * 20, 100 + plan * 20)
        asked += begin_move(one, two, f"there {plan}", part, free)
        asked += reversed(begin_move(two, one, f"back {plan}", part, free))
    for reply in await asyncio.gather(*asked):
        assert not reply.error, reply.why
    assert await two.do("digest", blocks=list(range(80, 160))) == sent[0]
    assert await one.do("digest", blocks=list(range(80, 160))) == sent[1]


@pytest.mark.parametrize("kind", ["peer", "nccl"])
@pytest.mark.parametrize("victim", [0, 1])
async def test_a_killed_peer_is_noticed_at_once_and_its_successor_moves_again(
    start_side, kind, victim
):
    src, dst = sides = await start_pair(start_side, kind)
    await open_pair(*sides)
    survivor = sides[1 - victim]
    # The victim never does its half, so the survivor waits for it when it dies.
    half = begin_half(src, dst, 1 - victim, deadline_s=30)
    await asyncio.sleep(0.3)
    if kind == "nccl" or victim == 1:
        assert not half.done()
        sides[victim].kill()
        reply = await half
        assert reply.error == "TransferFailed"
        assert reply.took_s < 5
    else:  # a destination that pulls needs nobody
        assert not (await half).error
        sides[victim].kill()
        await asyncio.sleep(0.5)
    successor = await start_side(
        victim,
        kind=kind,
        device=f"cuda:{victim}",
        block_tokens=64,
        blocks=BLOCKS,
        geometry="qwen3-0.6b",
    )
    for opened in await open_pair(successor, survivor, epoch="e2"):
        assert not opened.error, opened.why
    await successor.do("fill", blocks=[1, 2], seed=1)
    await move(successor, survivor, "q", [1, 2], [3, 4])
    await move(survivor, successor, "r", [3, 4], [5, 6])


def begin_half(src, dst, ours, deadline_s):
    """Ask only one side for its half of a move: 0 for the source's."""
    fields = ["lonely", src.rank, dst.rank, list(range(64)), list(range(64))]
    if ours == 0:
        return src.ask("send", move=fields, deadline_s=deadline_s)
    return dst.ask("receive", move=fields, deadline_s=deadline_s)


async def test_a_peer_stopped_amid_moves_ends_them_at_their_deadline_and_the_pair_is_remade(
    start_side,
):
    one, two = sides = await start_pair(start_side, "nccl", block_tokens=256)
    await open_pair(*sides)
    halves = [begin_move(one, two, f"p{at}", range(128), range(128), 2.0) for at in range(40)]
    await asyncio.sleep(0.1)
    two.pause()
    replies = [await source for source, _ in halves]
    assert replies[-1].error in ("TransferTimeout", "TransferFailed")
    assert max(reply.took_s for reply in replies) < 5
    two.resume()
    for _, target in halves:
        await target
    for opened in await open_pair(*sides, epoch="e2"):
        assert not opened.error, opened.why
    await two.do("fill", blocks=[1, 2], seed=1)
    await move(two, one, "q", [1, 2], [3, 4])


@pytest.mark.parametrize("wrong", ["handle", "offset"])
async def test_auto_takes_the_next_way_when_peer_does_not_reach_the_very_pool(start_side, wrong):
    one, two = await start_pair(start_side, "auto")
    offers = [json.loads(await side.do("offer")) for side in (one, two)]
    for offer in offers:
        facts = offer["ways"]["peer"]
        if wrong == "handle":
            facts["handle"] = "00" * 64
        else:
            facts["offset"] += 4096  # maps, copies, and is not our pool's beginning
    texts = [json.dumps(offer) for offer in offers]
    for reply in await asyncio.gather(
        one.ask("open", peer=1, epoch="e", offer=texts[1], deadline_s=OPEN_S),
        two.ask("open", peer=0, epoch="e", offer=texts[0], deadline_s=OPEN_S),
    ):
        assert (reply.error, reply.result) == ("", "nccl"), reply.why
    await one.do("fill", blocks=[1, 2], seed=1)
    await move(one, two, "q", [1, 2], [3, 4])


def test_nvml_names_the_neighbours_that_cuda_can_reach():
    found = read_nvml()
    assert len(found.gpus) == torch.cuda.device_count()
    for low in range(len(found.gpus)):
        for high in found.neighbours(low):
            assert torch.cuda.can_device_access_peer(low, high)
    assert all(one.links > 0 and one.gb_s > 0 for one in found.connections)
