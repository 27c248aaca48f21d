"""What a step does on the host does not grow with the cache, nor with the time a request waits."""

from collections.abc import Callable

import pytest

from lmpoold.protocol.hashing import PrefixHash
from tests.unit.schedule_worker import Worker, names, request, root_of
from workers.core import sequence
from workers.core.blocks import BlockPool
from workers.core.cold import coldest_worth_moving

SMALL, LARGE = 200, 20_000
SHORTAGE = 37


class Counted(float):
    """A number that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: float) -> bool:
        Counted.compared += 1
        return float(self) < float(other)

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return isinstance(other, float) and float(self) == float(other)

    __hash__ = float.__hash__


def full_pool(blocks: int) -> BlockPool:
    """A pool whose blocks are all cached: prompts of one block, used once each but one in eight."""
    pool = BlockPool(blocks, 1, lambda uses, at, depth, block: (Counted(at), -depth, block))
    for n in range(blocks):
        name = PrefixHash(f"{n:032x}")
        (block,) = pool.allocate(1)
        pool.publish(block, name, root_of("", 1), 0, [n], float(n))
        if n % 8 == 0:
            pool.acquire([block], float(n))
            pool.release([block], float(n))
        pool.release([block], float(n))
    assert pool.reclaimable == blocks
    return pool


@pytest.mark.better(9)
@pytest.mark.parametrize(
    "work",
    [
        pytest.param(lambda pool: pool.allocate(SHORTAGE), id="making room"),
        pytest.param(lambda pool: coldest_worth_moving(pool, SHORTAGE), id="choosing what to move"),
    ],
)
def test_room_is_found_in_a_large_cache_as_soon_as_in_a_small_one(
    work: Callable[[BlockPool], object],
):
    compared = {}
    for blocks in (SMALL, LARGE):
        pool = full_pool(blocks)
        Counted.compared = 0
        assert work(pool) is not None
        compared[blocks] = Counted.compared
        pool.check()
    assert 0 < compared[LARGE] < 4 * compared[SMALL], "by its logarithm, not by its size"


@pytest.mark.better(9)
def test_a_request_is_hashed_once_however_long_it_waits(monkeypatch):
    hashed: list[int] = []
    chain_packed = sequence.chain_packed

    def counting(packed, size, root):
        hashed.append(len(packed) // 4)
        return chain_packed(packed, size, root)

    monkeypatch.setattr(sequence, "chain_packed", counting)
    worker = Worker(12, max_num_seqs=2)
    worker.add(request("first", [0] * 30, max_tokens=17))
    worker.step()
    hashed.clear()
    worker.add(request("waits", [1] * 31, arrival=1, max_tokens=1))
    for _ in range(12):
        assert "waits" not in names(worker.step())
    assert [length for length in hashed if length >= 28] == [28]
    worker.drain()
    assert "waits" in worker.finished
    assert [length for length in hashed if length >= 28] == [28]
