"""What a participant of a transfer holds, and how it lets go, one promise a test."""

import pytest

from lmpoold.protocol.hashing import chain_hashes, domain_root, token_bytes
from tests.unit.page_table import snapshot
from workers.core.blocks import BlockPool
from workers.core.handoff import Handoff, Pinned, Refusal, Reserved, names_agree

SIZE = 2
ROOT = domain_root("model", SIZE)
TOKENS = [1, 1, 2, 2, 3, 3, 4, 4]
CHAIN = chain_hashes(TOKENS, SIZE, ROOT)


def holding(blocks: int, tokens: list[int]) -> Handoff:
    """A pool in which a chain is cached."""
    pool = BlockPool(blocks, SIZE)
    compute(pool, tokens)
    return Handoff(pool)


def compute(pool: BlockPool, tokens: list[int], now_s: float = 1.0) -> None:
    hashes = chain_hashes(tokens, SIZE, ROOT)
    run = pool.match(token_bytes(tokens), hashes, ROOT)
    pool.acquire(run, now_s)
    blocks = run + (pool.allocate(len(hashes) - len(run)) or [])
    for depth in range(len(run), len(hashes)):
        parent = hashes[depth - 1] if depth else ROOT
        part = tokens[depth * SIZE : (depth + 1) * SIZE]
        pool.publish(blocks[depth], hashes[depth], parent, depth, part, now_s)
    pool.release(blocks, now_s)


def received(handoff: Handoff, plan: str, first: int, count: int) -> int:
    tokens = TOKENS[first * SIZE : count * SIZE]
    return handoff.publish(plan, count, ROOT, tokens, 5.0)


@pytest.mark.bar(35)
def test_a_pinned_chain_is_not_reclaimed_and_an_unpinned_one_is():
    handoff = holding(4, TOKENS)
    answer = handoff.pin("p", CHAIN, 1)
    assert isinstance(answer, Pinned)
    assert (answer.first, answer.count, answer.root) == (1, 4, ROOT)
    assert answer.tokens == tuple(TOKENS[SIZE:])
    assert handoff.pool.allocate(1) is None
    handoff.settle("p")
    assert handoff.pool.allocate(4) is not None


def test_a_source_offers_what_it_still_has():
    handoff = holding(4, TOKENS)
    handoff.pool.allocate(1)
    answer = handoff.pin("p", CHAIN, 1)
    assert isinstance(answer, Pinned)
    assert answer.count == 3
    assert handoff.pin("q", CHAIN, 3) == Refusal("source_lost_it")
    handoff.check()


def test_a_pin_is_no_use_of_the_blocks():
    pool = BlockPool(4, SIZE)
    compute(pool, [1, 1, 2, 2], 1.0)
    compute(pool, [5, 5, 6, 6], 2.0)
    handoff = Handoff(pool)
    handoff.pin("p", chain_hashes([1, 1, 2, 2], SIZE, ROOT), 0)
    handoff.settle("p")
    pool.allocate(1)
    left = set(snapshot(pool))
    assert left == {*chain_hashes([1, 1], SIZE, ROOT), *chain_hashes([5, 5, 6, 6], SIZE, ROOT)}


@pytest.mark.bar(32)
def test_reserved_blocks_are_nobody_elses_until_the_plan_is_over():
    handoff = Handoff(BlockPool(4, SIZE))
    answer = handoff.reserve("p", CHAIN)
    assert isinstance(answer, Reserved)
    assert (answer.first, len(answer.refs)) == (0, 4)
    assert handoff.pool.allocate(1) is None
    assert handoff.reserve("q", CHAIN) == Refusal("no_room")
    handoff.settle("p")
    assert handoff.pool.free == 4


def test_a_destination_keeps_the_parents_of_what_it_will_receive():
    handoff = holding(6, TOKENS[:4])
    answer = handoff.reserve("p", CHAIN)
    assert isinstance(answer, Reserved)
    assert (answer.first, len(answer.refs)) == (2, 2)
    handoff.pool.clear_cached()
    assert received(handoff, "p", 2, 4) == 2
    assert list(snapshot(handoff.pool)) == list(CHAIN)
    assert handoff.pool.reclaimable == 4
    handoff.pool.check()


def test_a_destination_that_has_it_all_reserves_nothing():
    handoff = holding(4, TOKENS)
    assert handoff.reserve("p", CHAIN) == Refusal("nothing_missing")
    assert handoff.pool.reclaimable == 4


def test_blocks_reserved_for_what_the_source_lacked_go_free():
    handoff = Handoff(BlockPool(6, SIZE))
    handoff.reserve("p", CHAIN)
    assert received(handoff, "p", 0, 3) == 3
    assert (handoff.pool.free, handoff.pool.reclaimable) == (3, 3)


def test_what_was_computed_meanwhile_is_kept_and_its_twin_freed():
    handoff = Handoff(BlockPool(8, SIZE))
    handoff.reserve("p", CHAIN)
    compute(handoff.pool, TOKENS[:4])
    kept = snapshot(handoff.pool)
    handoff.pool.drain_changes()
    assert received(handoff, "p", 0, 4) == 2
    now = snapshot(handoff.pool)
    assert {name: now[name] for name in kept} == kept
    assert (handoff.pool.free, handoff.pool.reclaimable) == (4, 4)
    told = handoff.pool.drain_changes().puts
    assert told == now, "the pool had shown other blocks for the twins: it is told of all"


def test_publishing_twice_names_nothing_twice():
    handoff = Handoff(BlockPool(4, SIZE))
    handoff.reserve("p", CHAIN)
    assert received(handoff, "p", 0, 4) == 4
    assert received(handoff, "p", 0, 4) == 0
    handoff.pool.check()


def test_a_moved_chain_is_freed_from_its_leaf_up_to_what_somebody_uses():
    handoff = holding(8, TOKENS)
    compute(handoff.pool, [*TOKENS[:4], 9, 9])
    handoff.pin("p", CHAIN, 0)
    assert handoff.release("p", moved=True) == 2
    assert handoff.pool.resident(CHAIN)[0] == 2
    assert handoff.release("p", moved=True) == 0
    handoff.pool.check()


def test_a_moved_chain_that_another_plan_reads_is_not_freed():
    handoff = holding(8, TOKENS)
    handoff.pin("p", CHAIN, 0)
    handoff.pin("q", CHAIN, 0)
    assert handoff.release("p", moved=True) == 0
    assert handoff.release("q", moved=True) == 4


@pytest.mark.better(15)
def test_a_copied_chain_stays():
    handoff = holding(8, TOKENS)
    handoff.pin("p", CHAIN, 0)
    assert handoff.release("p", moved=False) == 0
    assert handoff.pool.resident(CHAIN)[0] == 4


def test_only_the_part_that_travelled_is_freed():
    handoff = holding(8, TOKENS)
    handoff.pin("p", CHAIN, 3)
    assert handoff.release("p", moved=True) == 1


@pytest.mark.better(16)
@pytest.mark.parametrize("wrong", [[1, 1, 2, 9], [1, 1, 2], [9, 1, 2, 2]])
def test_names_agree_with_their_own_tokens_only(wrong):
    assert names_agree(CHAIN, 0, TOKENS[:4], SIZE, ROOT)
    assert names_agree(CHAIN, 1, TOKENS[2:4], SIZE, ROOT)
    assert not names_agree(CHAIN, 0, wrong, SIZE, ROOT)
    assert not names_agree(CHAIN, 0, TOKENS[:4], SIZE, domain_root("model", SIZE, "salt"))


def test_the_check_notices_a_reserved_block_that_was_given_out_again():
    handoff = Handoff(BlockPool(2, SIZE))
    answer = handoff.reserve("p", CHAIN[:1])
    assert isinstance(answer, Reserved)
    handoff.check()
    block = answer.refs[0].block
    handoff.pool.release([block], 0.0)
    handoff.pool.allocate(2)
    with pytest.raises(AssertionError, match="given out again"):
        handoff.check()


def test_a_source_keeps_what_it_was_told_to():
    handoff = holding(8, TOKENS)
    handoff.pin("p", CHAIN, 0)
    assert handoff.release("p", moved=True, keep=3) == 1
    assert handoff.pool.resident(CHAIN)[0] == 3


def test_scratch_is_taken_from_half_of_the_free_blocks_and_nothing_cached_goes():
    handoff = holding(8, TOKENS)  # four cached, four free
    before = snapshot(handoff.pool)
    assert handoff.scratch("p", 3, source=True) == Refusal("no_room")
    source = handoff.scratch("q", 2, source=True)
    assert isinstance(source, Pinned)
    assert (source.first, source.count, source.tokens, len(source.refs)) == (0, 2, (), 2)
    assert handoff.scratch("q", 2, source=True) is source
    destination = handoff.scratch("r", 1, source=False)
    assert isinstance(destination, Reserved)
    assert not {ref.block for ref in source.refs} & {ref.block for ref in destination.refs}
    handoff.check()
    handoff.pool.check()
    assert handoff.release("q", moved=False) == 0
    handoff.settle("r")
    assert (handoff.pool.free, snapshot(handoff.pool)) == (4, before)
    assert handoff.pool.drain_changes().dels == ()
