"""What a pool of blocks promises, one promise a test."""

import pytest

from lmpoold.protocol.hashing import PrefixHash, chain_hashes, domain_root, token_bytes
from tests.unit.page_table import snapshot
from workers.core.blocks import BlockId, BlockPool
from workers.core.changes import Changes
from workers.core.reclaim import lru
from workers.core.uses import NAMES_PER_BLOCK

ROOT, OTHER_ROOT = PrefixHash("root a"), PrefixHash("root b")
SIZE = 2


def names_of(tokens: list[int]) -> tuple[PrefixHash, ...]:
    return chain_hashes(tokens, SIZE, domain_root("model", SIZE))


def cached_chain(pool: BlockPool, tokens: list[int], now_s: float) -> list[PrefixHash]:
    """Compute, publish and release a chain."""
    hashes = list(names_of(tokens))
    blocks = pool.allocate(len(hashes))
    assert blocks is not None
    for depth, block in enumerate(blocks):
        parent = hashes[depth - 1] if depth else ROOT
        part = tokens[depth * SIZE : (depth + 1) * SIZE]
        assert pool.publish(block, hashes[depth], parent, depth, part, now_s)
    pool.release(blocks, now_s)
    return hashes


def test_a_chain_is_reclaimed_from_its_leaf():
    pool = BlockPool(4, SIZE)
    hashes = cached_chain(pool, [1, 1, 2, 2, 3, 3], 0.0)
    pool.allocate(2)
    assert list(snapshot(pool)) == hashes[:2]


def test_a_shared_ancestor_stays_until_both_branches_are_gone():
    pool = BlockPool(3, SIZE)
    root, *_ = cached_chain(pool, [1, 1, 2, 2], 0.0)
    run = pool.match(token_bytes([1, 1, 3, 3]), names_of([1, 1, 3, 3]), ROOT)
    pool.acquire(run, 1.0)
    fresh = pool.allocate(1)
    other = names_of([1, 1, 3, 3])[1]
    pool.publish(fresh[0], other, root, 1, [3, 3], 1.0)
    pool.release([*run, *fresh], 2.0)
    pool.allocate(1)
    assert set(snapshot(pool)) == {root, other}
    pool.allocate(1)
    assert set(snapshot(pool)) == {root}


def test_a_block_used_twice_outlives_a_younger_one_used_once():
    pool = BlockPool(2, SIZE)
    (old,) = cached_chain(pool, [1, 1], 0.0)
    run = pool.match(token_bytes([1, 1]), [old], ROOT)
    pool.acquire(run, 1.0)
    pool.release(run, 1.0)
    cached_chain(pool, [2, 2], 9.0)
    pool.allocate(1)
    assert set(snapshot(pool)) == {old}


def test_every_allocation_is_a_new_generation():
    pool = BlockPool(1, SIZE)
    seen = []
    for turn in range(3):
        (name,) = cached_chain(pool, [turn, turn], float(turn))
        seen.append(snapshot(pool)[name].generation)
    assert seen == [1, 2, 3]


def test_a_name_that_came_and_went_between_two_reports_is_not_reported():
    pool = BlockPool(1, SIZE)
    cached_chain(pool, [1, 1], 0.0)
    pool.clear_cached()
    assert pool.drain_changes() == Changes({}, ())


def test_a_name_that_went_and_came_back_is_reported_with_its_new_block():
    pool = BlockPool(2, SIZE)
    (name,) = cached_chain(pool, [1, 1], 0.0)
    pool.drain_changes()
    pool.clear_cached()
    cached_chain(pool, [1, 1], 1.0)
    changes = pool.drain_changes()
    assert changes.dels == ()
    assert changes.puts[name].generation == pool.lookup(name).generation


def test_a_name_that_went_came_back_and_went_is_reported_gone():
    pool = BlockPool(2, SIZE)
    (name,) = cached_chain(pool, [1, 1], 0.0)
    pool.drain_changes()
    pool.clear_cached()
    cached_chain(pool, [1, 1], 1.0)
    pool.clear_cached()
    assert pool.drain_changes() == Changes({}, (name,))


def test_a_chain_that_came_back_is_reported_parent_first():
    pool = BlockPool(3, SIZE)
    hashes = cached_chain(pool, [1, 1, 2, 2, 3, 3], 0.0)
    pool.drain_changes()
    pool.clear_cached()
    cached_chain(pool, [1, 1, 2, 2, 3, 3], 1.0)
    assert list(pool.drain_changes().puts) == hashes


def test_a_release_is_a_touch():
    pool = BlockPool(2, SIZE, lru)
    (first,) = pool.allocate(1)
    pool.publish(first, PrefixHash("first"), ROOT, 0, [1, 1], 1.0)
    cached_chain(pool, [2, 2], 2.0)
    pool.release([first], 3.0)
    pool.allocate(1)
    assert list(snapshot(pool)) == ["first"]


def test_the_same_tokens_in_another_domain_are_a_miss():
    pool = BlockPool(2, SIZE)
    hashes = cached_chain(pool, [1, 1], 0.0)
    assert pool.match(token_bytes([1, 1]), hashes, ROOT) != []
    assert pool.match(token_bytes([1, 1]), hashes, OTHER_ROOT) == []


def test_a_name_with_other_tokens_is_a_miss():
    pool = BlockPool(2, SIZE)
    hashes = cached_chain(pool, [1, 1], 0.0)
    assert pool.match(token_bytes([1, 2]), hashes, ROOT) == []
    assert pool.find(hashes[0], ROOT, [1, 2]) is None
    assert pool.find(PrefixHash("unheard of"), ROOT, [1, 1]) is None


@pytest.mark.better(1)
def test_a_chain_torn_by_a_collision_matches_up_to_the_tear():
    pool = BlockPool(4, SIZE)
    hashes = cached_chain(pool, [1, 1, 2, 2, 3, 3], 0.0)
    torn = [hashes[0], PrefixHash("unheard of"), hashes[2]]
    assert len(pool.match(token_bytes([1, 1, 2, 2, 3, 3]), torn, ROOT)) == 1


def test_what_does_not_fit_is_not_allocated_in_part():
    pool = BlockPool(3, SIZE)
    cached_chain(pool, [1, 1], 0.0)
    pool.allocate(1)
    before = (pool.free, pool.reclaimable)
    assert pool.allocate(3) is None
    assert (pool.free, pool.reclaimable) == before


@pytest.mark.parametrize(
    "misuse",
    [
        lambda pool, held, ready: pool.acquire([ready, held], 0.0),
        lambda pool, held, ready: pool.release([BlockId(3)], 0.0),
        lambda pool, held, ready: pool.publish(BlockId(3), "n", ROOT, 0, [1, 1], 0.0),
        lambda pool, held, ready: pool.publish(ready, "n", ROOT, 0, [1, 1], 0.0),
        lambda pool, held, ready: pool.publish(held, "n", "missing", 1, [1, 1], 0.0),
        lambda pool, held, ready: pool.publish(held, "n", "name", 2, [1, 1], 0.0),
        lambda pool, held, ready: pool.publish(held, "n", ROOT, 0, [1], 0.0),
    ],
)
def test_a_misuse_is_refused_and_changes_nothing(misuse):
    pool = BlockPool(4, SIZE)
    held, ready = pool.allocate(2)
    pool.publish(ready, PrefixHash("name"), ROOT, 0, [0, 0], 0.0)
    with pytest.raises(ValueError, match=r"block"):
        misuse(pool, held, ready)
    pool.check()
    assert (pool.free, pool.refs(held), pool.refs(ready)) == (2, 1, 1)
    assert list(snapshot(pool)) == ["name"]


def test_a_child_needs_a_parent_that_somebody_holds():
    pool = BlockPool(2, SIZE)
    (parent,) = cached_chain(pool, [1, 1], 0.0)
    (block,) = pool.allocate(1)
    with pytest.raises(ValueError, match="no held parent"):
        pool.publish(block, PrefixHash("child"), parent, 1, [2, 2], 0.0)


@pytest.mark.parametrize(("blocks", "size"), [(0, 1), (1, 0), (-1, 4)])
def test_a_pool_needs_blocks_and_tokens(blocks: int, size: int):
    with pytest.raises(ValueError, match="need blocks"):
        BlockPool(blocks, size)


def test_a_block_computed_again_after_it_was_given_up_counts_as_reused():
    pool = BlockPool(2, SIZE)
    (again,) = cached_chain(pool, [1, 1], 0.0)
    pool.clear_cached()
    cached_chain(pool, [1, 1], 1.0)
    cached_chain(pool, [2, 2], 9.0)
    pool.allocate(1)
    assert set(snapshot(pool)) == {again}


def test_uses_of_names_long_gone_are_forgotten():
    pool = BlockPool(1, SIZE)
    for token in range(100):
        cached_chain(pool, [token, token], float(token))
    assert len(pool._past._uses) == NAMES_PER_BLOCK
    cached_chain(pool, [99, 99], 100.0)
    assert len(pool._past._uses) < NAMES_PER_BLOCK + 1
