"""The pool against an oracle that keeps nothing but plain lists and searches them."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from lmpoold.protocol.hashing import PrefixHash, chain_hashes, domain_root
from lmpoold.protocol.views import PageEntry
from workers.core.blocks import BlockId, BlockPool, Changes
from workers.core.reclaim import lfu_then_lru, lru

SIZE, BLOCKS = 2, 7
ROOTS = (PrefixHash("root a"), PrefixHash("root b"))


def weak_hashes(tokens: list[int], root: PrefixHash) -> list[PrefixHash]:
    """Names that often collide: across parents, depths and domains."""
    ends = range(SIZE, len(tokens) + 1, SIZE)
    return [PrefixHash(f"{tokens[end - 1]}{(sum(tokens[:end]) + len(root)) % 2}") for end in ends]


@dataclass
class Chain:
    """A sequence as the pool sees one: everything below `published` is mapped and held."""

    root: PrefixHash
    tokens: list[int]
    hashes: list[PrefixHash]
    blocks: list[BlockId]
    published: int


@dataclass
class Known:
    """What the oracle knows of one block."""

    ref: int = 0
    generation: int = 0
    name: PrefixHash | None = None
    parent: PrefixHash | None = None
    depth: int = 0
    prefix: tuple[object, ...] = ()  # the domain root and every token up to the block's end
    uses: int = 0
    touched_s: float = 0.0


@dataclass
class Oracle:
    policy: object
    blocks: list[Known] = field(default_factory=lambda: [Known() for _ in range(BLOCKS)])

    def named(self) -> dict[PrefixHash, int]:
        return {known.name: i for i, known in enumerate(self.blocks) if known.name is not None}

    def free(self) -> list[int]:
        return [i for i, known in enumerate(self.blocks) if not known.ref and known.name is None]

    def cached(self) -> list[int]:
        return [i for i, known in enumerate(self.blocks) if not known.ref and known.name]

    def reclaim(self) -> None:
        leaves = [
            (self.policy(known.uses, known.touched_s, known.depth, i), i)
            for i, known in enumerate(self.blocks)
            if i in self.cached() and not any(self.is_child(other, known) for other in self.blocks)
        ]
        _, victim = min(leaves)
        self.blocks[victim] = Known(generation=self.blocks[victim].generation)

    @staticmethod
    def is_child(other: Known, known: Known) -> bool:
        return other.name is not None and other.depth > 0 and other.parent == known.name

    def entries(self) -> dict[PrefixHash, PageEntry]:
        return {
            name: PageEntry(
                i, self.blocks[i].generation, self.blocks[i].depth, self.blocks[i].parent
            )
            for name, i in self.named().items()
        }

    def match(self, chain: Chain) -> list[int]:
        run, named = [], self.named()
        for depth, name in enumerate(chain.hashes):
            block = named.get(name)
            prefix = (chain.root, *chain.tokens[: (depth + 1) * SIZE])
            if block is None or self.blocks[block].prefix != prefix:
                break
            run.append(block)
        return run


class PoolWalk(RuleBasedStateMachine):
    """Sequences come, publish, adopt twins, share, leave; the pool and the oracle stay equal."""

    chains = Bundle("chains")
    policy = staticmethod(lfu_then_lru)

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS, SIZE, self.policy)
        self.oracle = Oracle(self.policy)
        self.now_s = 0.0
        self.reported: dict[PrefixHash, PageEntry] = {}

    @rule(seconds=st.sampled_from([0.0, 1.0]))
    def time_passes(self, seconds: float):
        self.now_s += seconds

    @rule(
        target=chains,
        tokens=st.lists(st.integers(0, 1), max_size=SIZE * (BLOCKS + 1)),
        root=st.sampled_from(ROOTS),
        weak=st.booleans(),
    )
    def begin(self, tokens: list[int], root: PrefixHash, weak: bool):
        hashes = weak_hashes(tokens, root) if weak else list(chain_hashes_of(tokens, root))
        chain = Chain(root, tokens, hashes, [], 0)
        run = self.pool.match(tokens, hashes, root)
        assert run == self.oracle.match(chain)
        found, held = self.pool.resident(hashes)
        assert found >= len(run)
        if not weak:
            assert found == len(run)
            assert held == sum(self.oracle.blocks[block].ref > 0 for block in run)
        self.pool.acquire(run, self.now_s)
        for block in run:
            known = self.oracle.blocks[block]
            known.ref, known.uses, known.touched_s = known.ref + 1, known.uses + 1, self.now_s
        wanted = len(hashes) - len(run)
        room = len(self.oracle.free()) + len(self.oracle.cached())
        fresh = self.pool.allocate(wanted)
        assert (fresh is None) == (wanted > room)
        if fresh is None:
            self.give_back(run)
            return multiple()
        self.oracle_allocates(fresh)
        chain.blocks, chain.published = run + fresh, len(run)
        return chain

    def oracle_allocates(self, fresh: list[BlockId]) -> None:
        while len(self.oracle.free()) < len(fresh):
            self.oracle.reclaim()
        assert set(fresh) <= set(self.oracle.free())
        for block in fresh:
            self.oracle.blocks[block].ref = 1
            self.oracle.blocks[block].generation += 1

    @rule(chain=chains)
    def publish_next(self, chain: Chain):
        depth = chain.published
        if depth == len(chain.hashes):
            return
        name, block = chain.hashes[depth], chain.blocks[depth]
        parent = chain.hashes[depth - 1] if depth else chain.root
        tokens = chain.tokens[depth * SIZE : (depth + 1) * SIZE]
        prefix = (chain.root, *chain.tokens[: (depth + 1) * SIZE])
        taken_by = self.oracle.named().get(name)
        fresh = self.pool.publish(block, name, parent, depth, tokens, self.now_s)
        assert fresh == (taken_by is None)
        if fresh:
            known = self.oracle.blocks[block]
            known.name, known.parent, known.depth, known.prefix = name, parent, depth, prefix
            known.uses, known.touched_s = 1, self.now_s
            chain.published += 1
            return
        twin = self.pool.find(name, parent, tokens)
        same = self.oracle.blocks[taken_by].prefix == prefix
        assert twin == (taken_by if same else None)
        if twin is not None:
            self.pool.acquire([twin], self.now_s)
            known = self.oracle.blocks[twin]
            known.ref, known.uses, known.touched_s = known.ref + 1, known.uses + 1, self.now_s
            self.give_back([block])
            chain.blocks[depth] = twin
            chain.published += 1

    @rule(chain=consumes(chains))
    def leave(self, chain: Chain):
        self.give_back(chain.blocks)

    def give_back(self, blocks: list[BlockId]) -> None:
        self.pool.release(blocks, self.now_s)
        for block in blocks:
            known = self.oracle.blocks[block]
            known.ref, known.touched_s = known.ref - 1, self.now_s

    @rule()
    def clear(self):
        self.pool.clear_cached()
        while self.oracle.cached():
            self.oracle.reclaim()

    @rule()
    def drain(self):
        changes, now = self.pool.drain_changes(), self.oracle.entries()
        before, self.reported = self.reported, now
        assert changes.puts == {
            name: entry for name, entry in now.items() if before.get(name) != entry
        }
        assert set(changes.dels) == before.keys() - now.keys()
        assert len(set(changes.dels)) == len(changes.dels)
        depths = [entry.depth for entry in changes.puts.values()]
        assert depths == sorted(depths)
        gone: set[PrefixHash] = set()
        for name in changes.dels:
            children = {
                child for child, entry in before.items() if entry.depth > 0 and entry.parent == name
            }
            assert children - now.keys() <= gone
            gone.add(name)

    @invariant()
    def pool_and_oracle_agree(self):
        self.pool.check()
        assert self.pool.snapshot() == self.oracle.entries()
        assert self.pool.free == len(self.oracle.free())
        assert self.pool.reclaimable == len(self.oracle.cached())
        assert self.pool.available == self.pool.free + self.pool.reclaimable
        for i, known in enumerate(self.oracle.blocks):
            assert self.pool.refs(BlockId(i)) == known.ref
        for name in self.oracle.named():
            assert self.pool.lookup(name) == self.oracle.entries()[name]


def chain_hashes_of(tokens: list[int], root: PrefixHash) -> tuple[PrefixHash, ...]:
    return chain_hashes(tokens, SIZE, domain_root("model", SIZE, root))


class LruPoolWalk(PoolWalk):
    policy = staticmethod(lru)


TestPoolWalk = PoolWalk.TestCase
TestLruPoolWalk = LruPoolWalk.TestCase
TestPoolWalk.settings = TestLruPoolWalk.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None
)

ROOT = ROOTS[0]


def cached_chain(pool: BlockPool, tokens: list[int], now_s: float) -> list[PrefixHash]:
    """Compute, publish and release a chain."""
    hashes = list(chain_hashes_of(tokens, ROOT))
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
    assert list(pool.snapshot()) == hashes[:2]


def test_a_shared_ancestor_stays_until_both_branches_are_gone():
    pool = BlockPool(3, SIZE)
    root, *_ = cached_chain(pool, [1, 1, 2, 2], 0.0)
    run = pool.match([1, 1, 3, 3], chain_hashes_of([1, 1, 3, 3], ROOT), ROOT)
    pool.acquire(run, 1.0)
    fresh = pool.allocate(1)
    other = chain_hashes_of([1, 1, 3, 3], ROOT)[1]
    pool.publish(fresh[0], other, root, 1, [3, 3], 1.0)
    pool.release([*run, *fresh], 2.0)
    pool.allocate(1)
    assert set(pool.snapshot()) == {root, other}
    pool.allocate(1)
    assert set(pool.snapshot()) == {root}


def test_a_block_used_twice_outlives_a_younger_one_used_once():
    pool = BlockPool(2, SIZE)
    (old,) = cached_chain(pool, [1, 1], 0.0)
    run = pool.match([1, 1], [old], ROOT)
    pool.acquire(run, 1.0)
    pool.release(run, 1.0)
    cached_chain(pool, [2, 2], 9.0)
    pool.allocate(1)
    assert set(pool.snapshot()) == {old}


def test_every_allocation_is_a_new_generation():
    pool = BlockPool(1, SIZE)
    seen = []
    for turn in range(3):
        (name,) = cached_chain(pool, [turn, turn], float(turn))
        seen.append(pool.snapshot()[name].generation)
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


def test_the_same_tokens_in_another_domain_are_a_miss():
    pool = BlockPool(2, SIZE)
    hashes = cached_chain(pool, [1, 1], 0.0)
    assert pool.match([1, 1], hashes, ROOT) != []
    assert pool.match([1, 1], hashes, ROOTS[1]) == []


def test_a_name_with_other_tokens_is_a_miss():
    pool = BlockPool(2, SIZE)
    hashes = cached_chain(pool, [1, 1], 0.0)
    assert pool.match([1, 2], hashes, ROOT) == []
    assert pool.find(hashes[0], ROOT, [1, 2]) is None
    assert pool.find(PrefixHash("unheard of"), ROOT, [1, 1]) is None


def test_a_chain_torn_by_a_collision_matches_up_to_the_tear():
    pool = BlockPool(4, SIZE)
    hashes = cached_chain(pool, [1, 1, 2, 2, 3, 3], 0.0)
    torn = [hashes[0], PrefixHash("unheard of"), hashes[2]]
    assert len(pool.match([1, 1, 2, 2, 3, 3], torn, ROOT)) == 1


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
    assert list(pool.snapshot()) == ["name"]


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
