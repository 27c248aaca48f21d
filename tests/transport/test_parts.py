"""The parts of transports that need no peer."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmpoold.protocol.errors import ConfigError, TransferFailed
from workers.transport.build import build_transport
from workers.transport.memory import PoolMemory
from workers.transport.offer import read_offer
from workers.transport.peer import runs
from workers.transport.port import Move


def memory(blocks=4, words=33, dtype=torch.int64):
    data = torch.zeros((blocks + 2, words), dtype=dtype)
    return PoolMemory.of(data, num_blocks=blocks, beacon=blocks + 1)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=60),
    st.integers(1, 9),
)
def test_runs_are_the_same_pairs_of_blocks_in_order_and_none_is_too_long(pairs, most):
    src, dst = zip(*pairs, strict=True)
    found = list(runs(src, dst, most))
    flat = [(a + at, b + at) for a, b, count in found for at in range(count)]
    assert flat == pairs
    assert all(1 <= count <= most for _, _, count in found)


def test_neighbours_on_both_sides_are_one_run():
    assert list(runs((3, 4, 5, 9), (7, 8, 9, 1), 64)) == [(3, 7, 3), (9, 1, 1)]
    assert list(runs((3, 4, 5), (7, 9, 10), 64)) == [(3, 7, 1), (4, 9, 2)]


@given(st.integers(0, 2**62 - 1), st.integers(0, 2**62 - 1))
def test_a_beacon_tells_one_process_from_another(one, other):
    pool = memory()
    pool.light(one)
    assert torch.equal(pool.words[pool.beacon], pool.pattern(one))
    assert bool((pool.words[: pool.num_blocks] == 0).all()), "no block that is given out"
    assert torch.equal(pool.pattern(one), pool.pattern(other)) == (one == other)
    assert len(set(pool.pattern(one).tolist())) == 33, "no two words alike, so order shows"


def test_a_pool_is_seen_without_a_copy_whatever_its_type():
    data = torch.zeros((4, 2, 8), dtype=torch.bfloat16)
    pool = PoolMemory.of(data, num_blocks=2, beacon=3)
    pool.words[1] = 0x3F803F803F803F80
    assert torch.equal(data[1], torch.ones((2, 8), dtype=torch.bfloat16))
    assert (pool.block_bytes, pool.geometry) == (32, "2x8 bfloat16")


def test_a_pool_that_cannot_be_moved_is_refused():
    with pytest.raises(ValueError, match="cannot be moved"):
        PoolMemory.of(torch.zeros((4, 6))[:, ::2], num_blocks=2, beacon=3)
    with pytest.raises(ValueError, match="cannot be moved"):
        PoolMemory.of(torch.zeros((4, 3), dtype=torch.bfloat16), num_blocks=2, beacon=3)
    with pytest.raises(ValueError, match="beacon"):
        PoolMemory.of(torch.zeros((4, 8)), num_blocks=4, beacon=3)


@pytest.mark.parametrize(
    ("src", "dst", "reason"),
    [((), (), "pairs blocks"), ((1, 2), (1,), "pairs blocks"), ((1, 2), (3, 3), "go to one")],
)
def test_a_move_that_is_none_cannot_be_made(src, dst, reason):
    with pytest.raises(ValueError, match=reason):
        Move("p", 0, 1, src, dst)
    with pytest.raises(ValueError, match="two ranks"):
        Move("p", 1, 1, (1,), (1,))


async def test_blocks_outside_of_the_pool_are_refused_before_anything_is_said():
    transport = build_transport("gloo", 0, memory())
    with pytest.raises(ValueError, match=r"block ids must be in \[0, 4\)"):
        await transport.send(Move("p", 0, 1, (4,), (0,)), deadline_s=1)
    with pytest.raises(ValueError, match=r"block ids must be in \[0, 4\)"):
        await transport.receive(Move("p", 1, 0, (0,), (-1,)), deadline_s=1)
    with pytest.raises(ValueError, match="rank 0 was asked for rank 2's half"):
        await transport.send(Move("p", 2, 1, (0,), (0,)), deadline_s=1)
    with pytest.raises(TransferFailed, match="open it first"):
        await transport.send(Move("p", 0, 1, (0,), (0,)), deadline_s=1)
    await transport.stop()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rank": 1}', "null", "7"])
def test_an_offer_that_is_none_is_refused(text):
    with pytest.raises(TransferFailed, match="rank 1's offer cannot be read"):
        read_offer(text, 1)


async def test_an_offer_is_one_line_and_only_its_own_rank_s():
    transport = build_transport("auto", 0, memory())
    text = transport.offer()
    await transport.stop()
    assert "\n" not in text
    assert list(read_offer(text, 0).ways) == ["gloo"], "a CPU pool has no other way"
    with pytest.raises(TransferFailed, match="an offer of rank 0 was given for rank 1"):
        read_offer(text, 1)


def test_a_way_that_this_machine_does_not_have_is_refused_with_the_reason():
    with pytest.raises(TransferFailed, match="the pool is on cpu"):
        build_transport("peer", 0, memory())
    with pytest.raises(TransferFailed, match="the pool is on cpu"):
        build_transport("nccl", 0, memory())
    with pytest.raises(ConfigError, match="auto, peer, nccl, gloo"):
        build_transport("rdma", 0, memory())
