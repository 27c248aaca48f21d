"""Which chain a worker short of blocks moves away."""

from lmpoold.protocol.hashing import chain_hashes, domain_root, token_bytes
from workers.core.blocks import BlockPool
from workers.core.cold import coldest_worth_moving

SIZE = 2
ROOT = domain_root("model", SIZE)


def names(tokens):
    return chain_hashes(tokens, SIZE, ROOT)


def use(pool, tokens, now_s):
    """Compute a prompt, or find it; its blocks stay held until `release`."""
    hashes = names(tokens)
    run = pool.match(token_bytes(tokens), hashes, ROOT)
    pool.acquire(run, now_s)
    blocks = run + (pool.allocate(len(hashes) - len(run)) or [])
    for depth in range(len(run), len(hashes)):
        parent = hashes[depth - 1] if depth else ROOT
        part = tokens[depth * SIZE : (depth + 1) * SIZE]
        assert pool.publish(blocks[depth], hashes[depth], parent, depth, part, now_s)
    return blocks


def cache(pool, tokens, now_s, times=1):
    for _ in range(times):
        pool.release(use(pool, tokens, now_s), now_s)


def test_what_was_never_found_again_is_forgotten_not_moved():
    pool = BlockPool(8, SIZE)
    cache(pool, [1, 1, 2, 2], 1.0)
    assert coldest_worth_moving(pool, 2) is None


def test_the_coldest_chain_that_was_found_again_is_moved():
    pool = BlockPool(8, SIZE)
    cache(pool, [9, 9], 0.0)
    cache(pool, [1, 1, 2, 2], 1.0, times=3)
    cache(pool, [3, 3, 4, 4], 2.0, times=3)
    cold = coldest_worth_moving(pool, 8)
    assert cold.hashes == names([1, 1, 2, 2])
    assert (cold.keep, cold.freed, cold.reuses) == (0, 2, 1.0)


def test_no_more_is_freed_than_what_is_lacking():
    pool = BlockPool(8, SIZE)
    cache(pool, [1, 1, 2, 2, 3, 3], 1.0, times=2)
    cold = coldest_worth_moving(pool, 2)
    assert cold.hashes == names([1, 1, 2, 2, 3, 3])
    assert (cold.keep, cold.freed) == (1, 2)


def test_what_another_chain_goes_on_from_is_kept():
    pool = BlockPool(8, SIZE)
    cache(pool, [1, 1, 2, 2], 1.0, times=4)
    cache(pool, [1, 1, 3, 3], 2.0)
    cold = coldest_worth_moving(pool, 8)
    assert cold.hashes == names([1, 1, 2, 2])
    assert (cold.keep, cold.freed) == (1, 1)


def test_what_somebody_holds_is_kept():
    pool = BlockPool(8, SIZE)
    cache(pool, [1, 1, 2, 2], 1.0, times=2)
    use(pool, [1, 1], 2.0)
    cold = coldest_worth_moving(pool, 8)
    assert (cold.keep, cold.freed) == (1, 1)


def test_the_least_used_block_that_is_freed_says_how_often_it_is_wanted():
    pool = BlockPool(8, SIZE)
    for other in ([7, 7], [8, 8], [9, 9]):
        cache(pool, other, 0.0)
    cache(pool, [1, 1], 1.0, times=6)
    cache(pool, [1, 1, 2, 2], 1.0, times=2)
    assert coldest_worth_moving(pool, 8).reuses == 0.5


def test_a_chain_never_found_is_as_likely_to_be_as_others_were():
    pool = BlockPool(8, SIZE)
    for prompt in ([1, 1], [2, 2], [3, 3], [4, 4]):
        cache(pool, prompt, 1.0)
    assert coldest_worth_moving(pool, 8) is None
    cache(pool, [4, 4], 2.0)
    cold = coldest_worth_moving(pool, 8)
    assert cold.reuses == 0.5, "what was found is expected again"
    use(pool, [4, 4], 3.0)
    assert coldest_worth_moving(pool, 8).reuses == 0.25, "one of four was, of those that are left"


def test_the_chain_that_saves_most_is_moved_not_the_first():
    pool = BlockPool(12, SIZE)
    cache(pool, [1, 1], 1.0, times=2)
    cache(pool, [2, 2, 3, 3, 4, 4], 2.0, times=2)
    assert coldest_worth_moving(pool, 8).hashes == names([2, 2, 3, 3, 4, 4])
