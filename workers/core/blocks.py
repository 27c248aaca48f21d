"""The worker's KV blocks: who holds them, what they are called, which go first.

Theory of operation. A block is free, writing, ready or cached:

    free     --allocate-->  writing
    writing  --publish-->   ready (ref > 0), or private when its name is taken
    ready    --release-->   cached (ref 0)  --acquire-->  ready
    cached   --reclaim, give_up-->   free
    writing, private  --release-->  free

A transfer holds blocks by the same states (`handoff.py`): it reads ready ones, and writes others.

A ready or cached block stands in the map under its prefix hash, and the map is prefix-closed: the
parent of every mapped name is mapped or the domain root. Three rules keep it so. A block is
published after its parent; a cached block is reclaimed only as a leaf (no mapped child); and
whoever holds a block holds its whole chain, so a child with ref > 0 has a parent with ref > 0. The
last rule also makes every cached block reclaimable sooner or later, leaf first, so the capacity is
a sum of two maintained integers: free + cached.

Every operation costs O(log n) a block touched; only `check`, `table` and `clear_cached` walk it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NewType

from lmpoold.protocol.hashing import PrefixHash, token_bytes
from lmpoold.protocol.views import PageEntry
from workers.core.changes import Changes
from workers.core.reclaim import DEFAULT_POLICY, LeafHeap, ReclaimPolicy
from workers.core.uses import PastUses

BlockId = NewType("BlockId", int)
"""Index of a block in the KV tensor, 0 <= id < num_blocks."""


_NOWHERE = PageEntry(-1, 0, 0, PrefixHash(""))


@dataclass(slots=True, eq=False)
class _Block:
    ref: int = 0
    generation: int = 0
    name: PrefixHash | None = None
    parent: PrefixHash | None = None
    depth: int = 0
    children: int = 0
    access_count: int = 0
    last_access_s: float = 0.0
    entry: PageEntry = _NOWHERE  # as the page table has it, while it is mapped
    tokens: bytes = b""  # packed: 4 bytes a token, and nothing for the garbage collector to walk


class BlockPool:
    """The blocks of one KV tensor.

    Not for several threads. `now_s` is any monotonic clock, in seconds, the same one for all calls.
    """

    def __init__(
        self, num_blocks: int, block_size: int, reclaim: ReclaimPolicy = DEFAULT_POLICY
    ) -> None:
        """Start with every block free.

        Args:
            num_blocks: blocks of the KV tensor, > 0.
            block_size: tokens a block, > 0.
            reclaim: the order in which cached leaves are given up.
        Raises: ValueError: a size is not positive.
        """
        if num_blocks <= 0 or block_size <= 0:
            raise ValueError(f"need blocks and tokens, got {num_blocks} blocks of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._policy = reclaim
        self._blocks = [_Block() for _ in range(num_blocks)]
        self._free = [BlockId(i) for i in reversed(range(num_blocks))]
        self._map: dict[PrefixHash, BlockId] = {}
        self._cached = 0
        self._once_used = 0  # of the cached ones
        self._leaves = LeafHeap()
        self._past = PastUses(num_blocks)
        self._touched: dict[PrefixHash, bool] = {}  # name -> whether the last drain left it mapped

    @property
    def free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def reclaimable(self) -> int:
        """Cached blocks: mapped, held by nobody."""
        return self._cached

    @property
    def once_used(self) -> int:
        """Cached blocks that nothing has found again: what costs least to forget."""
        return self._once_used

    @property
    def reuse_share(self) -> float:
        """Share of the blocks computed lately that were wanted a second time, 0 to 1."""
        return self._past.share

    @property
    def available(self) -> int:
        """Blocks that `allocate` can give."""
        return len(self._free) + self._cached

    def refs(self, block: BlockId) -> int:
        """Return how many holders a block has."""
        return self._blocks[block].ref

    def generation(self, block: BlockId) -> int:
        """Return how often a block was given out to be written: which of its lives this is."""
        return self._blocks[block].generation

    def named(self, block: BlockId) -> PrefixHash | None:
        """Return the name of a mapped block; None while it is free or private."""
        return self._blocks[block].name

    def uses(self, block: BlockId) -> int:
        """Return how often a mapped block was used, its computation included."""
        return self._blocks[block].access_count

    def lonely(self, block: BlockId) -> bool:
        """Whether nobody holds a block and at most one chain goes on from it."""
        return not self._blocks[block].ref and self._blocks[block].children <= 1

    def coldest(self, most: int) -> list[BlockId]:
        """Return the cached leaves that would be reclaimed next, in order."""
        return [BlockId(block) for block in self._leaves.coldest(most)]

    def packed_tokens(self, block: BlockId) -> bytes:
        """Return the token ids of a mapped block, as `token_bytes` packs them."""
        return self._blocks[block].tokens

    def lookup(self, name: PrefixHash) -> PageEntry | None:
        """Return the page entry of a mapped name."""
        block = self._map.get(name)
        return None if block is None else self._blocks[block].entry

    def resident(self, hashes: Sequence[PrefixHash]) -> tuple[int, int]:
        """Count the leading names of one chain that are mapped, and how many of those are held.

        Goes by names alone, in O(log n). Good for estimates; `match` compares the tokens too.
        """
        mapped, blocks = self._map, self._blocks
        found = bisect_left(hashes, True, key=lambda name: name not in mapped)

        def unheld(name: PrefixHash) -> bool:
            block = mapped.get(name)  # None only where a hash collision tore a chain
            return block is None or not blocks[block].ref

        return found, bisect_left(hashes, True, 0, found, key=unheld)

    def match(self, packed: bytes, hashes: Sequence[PrefixHash], root: PrefixHash) -> list[BlockId]:
        """Find the longest run of ready blocks, from the root on, that hold these very tokens.

        Name, tokens and parent must all agree, so the whole prefix does: a hash collision is a
        miss. Nothing is held yet; `acquire` the result before the next `allocate`.

        Args:
            packed: the prompt, as `token_bytes` packs it; `block_size` ids for each of `hashes`.
            hashes: names of its complete blocks, root first.
            root: the domain root the chain starts from.
        """
        found, _ = self.resident(hashes)
        width = 4 * self.block_size
        run: list[BlockId] = []
        parent = root
        for depth, name in enumerate(hashes[:found]):
            block = self._map.get(name)
            if block is None:
                break
            held = self._blocks[block]
            if held.tokens != packed[depth * width : (depth + 1) * width] or held.parent != parent:
                break
            run.append(block)
            parent = name
        return run

    def find(self, name: PrefixHash, parent: PrefixHash, tokens: Sequence[int]) -> BlockId | None:
        """Return the ready block of this name if it holds these tokens after this parent."""
        block = self._map.get(name)
        if block is None:
            return None
        held = self._blocks[block]
        return block if held.parent == parent and held.tokens == token_bytes(tokens) else None

    def acquire(self, blocks: Iterable[BlockId], now_s: float | None) -> None:
        """Hold ready blocks once more, and count it as a use at `now_s`; None counts nothing.

        Together with what the caller holds already, the blocks must form whole chains.

        Raises: ValueError: a block is not ready; nothing was changed.
        """
        chosen = [(block, self._blocks[block]) for block in blocks]
        if any(held.name is None for _, held in chosen):
            raise ValueError("only published blocks can be acquired")
        for block, held in chosen:
            if not held.ref:
                self._cached -= 1
                self._once_used -= held.access_count < 2
                self._leaves.withdraw(block)
            held.ref += 1
            if now_s is not None:
                held.access_count += 1
                held.last_access_s = now_s
                self._past.count(held.access_count)

    def allocate(self, count: int) -> list[BlockId] | None:
        """Take blocks to write, reclaiming cached leaves when free ones run out; all or nothing.

        Returns: `count` blocks, each held once and of a new generation; None when fewer are
            available.
        """
        if count > self.available:
            return None
        while len(self._free) < count:
            self._reclaim()
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            fresh = self._blocks[block]
            fresh.ref = 1
            fresh.generation += 1
        return taken

    def publish(
        self,
        block: BlockId,
        name: PrefixHash,
        parent: PrefixHash,
        depth: int,
        tokens: Sequence[int],
        now_s: float,
    ) -> bool:
        """Make a completely written block findable.

        Args:
            block: held, and not published yet.
            name: the prefix hash of its tokens after `parent`.
            parent: the name before it; the domain root at depth 0.
            depth: blocks before it in its chain.
            tokens: the `block_size` tokens it holds.
            now_s: counts as its first use.
        Returns: False when another block has the name already: this one stays private and is freed
            at release.
        Raises: ValueError: the block is not being written, or its parent is not a held block of the
            depth above.
        """
        new = self._blocks[block]
        if not new.ref or new.name is not None:
            raise ValueError(f"block {block} is not being written")
        if len(tokens) != self.block_size:
            raise ValueError(f"a block holds {self.block_size} tokens, got {len(tokens)}")
        above = None
        if depth:
            above_id = self._map.get(parent)
            above = None if above_id is None else self._blocks[above_id]
            if above is None or not above.ref or above.depth != depth - 1:
                raise ValueError(f"block {block} at depth {depth} has no held parent {parent}")
        if name in self._map:
            return False
        self._touched.setdefault(name, False)
        self._map[name] = block
        if above is not None:
            above.children += 1
        new.name, new.parent, new.depth, new.tokens = name, parent, depth, token_bytes(tokens)
        new.entry = PageEntry(block, new.generation, depth, parent)
        new.access_count, new.last_access_s = 1 + self._past.recall(name), now_s
        self._past.count(new.access_count)
        return True

    def release(self, blocks: Iterable[BlockId], now_s: float | None) -> None:
        """Give up one hold on each block of a chain, in one call so that all get one timestamp.

        A published block without holders is cached; any other goes free at once. Without a
        timestamp the block counts as untouched since its last use.

        Raises: ValueError: a block is held by nobody.
        """
        for block in blocks:
            held = self._blocks[block]
            if not held.ref:
                raise ValueError(f"block {block} is held by nobody")
            held.ref -= 1
            if held.name is not None and now_s is not None:
                held.last_access_s = now_s
            if held.ref:
                continue
            if held.name is None:
                self._free.append(block)
            else:
                self._cached += 1
                self._once_used += held.access_count < 2
                self._offer(block)

    def clear_cached(self) -> None:
        """Forget every block that nobody holds."""
        while self._cached:
            self._reclaim()

    def give_up(self, blocks: Iterable[BlockId]) -> int:
        """Free the cached leaves among mapped blocks, in the order given (deepest first); count."""
        freed = 0
        for block in blocks:
            if block in self._leaves:
                self._leaves.withdraw(block)
                self._forget(block)
                freed += 1
        return freed

    def report(self, names: Iterable[PrefixHash]) -> None:
        """Let the next drain tell what is true of these names, put or del, changed or not."""
        for name in names:
            self._touched[name] = True

    def drain_changes(self) -> Changes:
        """Return what happened to the map since the last drain, net of what came and went."""
        mapped = self._map
        puts = {n: self._blocks[mapped[n]].entry for n in self._touched if n in mapped}
        dels = tuple(name for name, was in self._touched.items() if was and name not in mapped)
        self._touched.clear()
        # Names stand in the order of their first touch. A child that went and came back may stand
        # before its parent; among names that only went, leaf-first reclaiming has put the child
        # first already.
        return Changes(dict(sorted(puts.items(), key=lambda put: put[1].depth)), dels)

    def table(self) -> dict[PrefixHash, PageEntry]:
        """Return the map as a page table has it; drain before, and the next drain builds on it."""
        blocks = self._blocks
        return {name: blocks[at].entry for name, at in self._map.items()}

    def _offer(self, block: BlockId) -> None:
        """Put a block among the leaves, if it is one now."""
        held = self._blocks[block]
        if not held.ref and not held.children:
            key = self._policy(held.access_count, held.last_access_s, held.depth, block)
            self._leaves.put(block, key)

    def _reclaim(self) -> None:
        """Free the cheapest leaf."""
        self._forget(BlockId(self._leaves.pop()))

    def _forget(self, block: BlockId) -> None:
        """Free a block that was a leaf until just now."""
        leaf = self._blocks[block]
        assert leaf.name is not None, "a leaf is mapped"
        self._touched.setdefault(leaf.name, True)
        del self._map[leaf.name]
        self._past.forget(leaf.name, leaf.access_count)
        leaf.name, leaf.entry, leaf.tokens = None, _NOWHERE, b""
        self._cached -= 1
        self._once_used -= leaf.access_count < 2
        self._free.append(block)
        if leaf.depth:
            assert leaf.parent is not None, "a mapped block has a parent"
            above = self._map[leaf.parent]
            self._blocks[above].children -= 1
            self._offer(above)

    def check(self) -> None:
        """Assert every invariant; O(num_blocks)."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        cached = once_used = 0
        for i, block in enumerate(self._blocks):
            assert block.ref >= 0, f"block {i}: ref {block.ref}"
            assert (i in free) == (not block.ref and block.name is None), f"block {i}: lost"
            assert block.name is None or self._map.get(block.name) == i, f"block {i}: unmapped"
            idle = block.name is not None and not block.ref
            cached, once_used = cached + idle, once_used + (idle and block.access_count < 2)
        assert cached == self._cached, f"{self._cached} cached, counted {cached}"
        assert once_used == self._once_used, f"{self._once_used} used once, counted {once_used}"
        children = dict.fromkeys(self._map, 0)
        for name, i in self._map.items():
            block = self._blocks[i]
            assert block.name == name, f"{name}: block {i} is called {block.name}"
            assert len(block.tokens) == 4 * self.block_size, f"block {i}: {block.tokens!r}"
            where = (i, block.generation, block.depth, block.parent)
            assert block.entry == where, f"{name}: {block.entry} for {where}"
            if block.depth:
                assert block.parent is not None, f"{name}: no parent"
                assert block.parent in self._map, f"{name}: its parent is gone"
                above = self._blocks[self._map[block.parent]]
                assert above.depth == block.depth - 1, f"{name}: depth {block.depth}"
                assert above.ref or not block.ref, f"{name}: held without its parent"
                children[block.parent] += 1
        leaves = set()
        for name, i in self._map.items():
            block = self._blocks[i]
            assert block.children == children[name], f"{name}: {block.children} children"
            if not block.ref and not block.children:
                leaves.add(int(i))
        self._leaves.check(leaves)
