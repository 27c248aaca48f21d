"""The pool against an oracle that keeps nothing but plain lists and searches them."""

from dataclasses import dataclass, field

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

from lmpoold.protocol.hashing import PrefixHash, chain_hashes, domain_root, token_bytes
from lmpoold.protocol.views import PageEntry
from tests.unit.page_table import snapshot
from workers.core.blocks import BlockId, BlockPool
from workers.core.reclaim import DEFAULT_POLICY, lfu_then_lru, lru
from workers.core.uses import NAMES_PER_BLOCK

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
    past_uses: list[tuple[PrefixHash, int]] = field(default_factory=list)  # the oldest first

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
        gone = self.blocks[victim]
        self.past_uses = [*self.past_uses, (gone.name, gone.uses)][-NAMES_PER_BLOCK * BLOCKS :]
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
        run = self.pool.match(token_bytes(tokens), hashes, root)
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
            past = dict(self.oracle.past_uses)
            known.uses, known.touched_s = 1 + past.pop(name, 0), self.now_s
            self.oracle.past_uses = list(past.items())
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
        assert snapshot(self.pool) == self.oracle.entries()
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


class DefaultPoolWalk(PoolWalk):
    policy = staticmethod(DEFAULT_POLICY)


TestPoolWalk = PoolWalk.TestCase
TestDefaultPoolWalk = DefaultPoolWalk.TestCase
TestLruPoolWalk = LruPoolWalk.TestCase
TestPoolWalk.settings = TestLruPoolWalk.settings = TestDefaultPoolWalk.settings = settings(
    max_examples=max(40, settings().max_examples // 4), stateful_step_count=40, deadline=None
)
