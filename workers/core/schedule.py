"""Which tokens of which sequences the model computes next.

Theory of operation. A sequence waits, then runs: its missing tokens are computed in one or more
prefill chunks, then one token a step. Each step is one batch of mixed rows, chosen by four rules:

1. Decode first. Every decoding sequence gets a row. One that needs a block when none can be had
   takes it from the running sequence of the lowest priority, the latest arrival among equals. The
   loser drops its blocks and waits again, its emitted tokens kept; it finds again what the cache
   still has of it. The first in line never loses its blocks to another, and alone it always fits,
   so somebody always finishes.
2. Then the prefill that has begun, then waiting sequences in the order (priority, arrival), as long
   as the token budget lasts; the last one's chunk is cut there. `max_batched_tokens` being at least
   `max_num_seqs` leaves a begun prefill one token a step or more.
3. A sequence is admitted when all its known tokens fit and every running sequence keeps one block
   to grow into. The first that does not fit stops the line: smaller ones behind it cannot starve
   it, and what runs before it ends in finite time. A step that had to preempt admits nobody.
4. A sequence whose next block a running prefill is computing right now is passed over until that
   block is published (or its writer is gone); it does not stop the line.

Complete blocks are published in `complete`, parent first, generated tokens included. When another
sequence published the same block meanwhile, the twin is adopted and the own copy freed: a running
sequence always holds a chain of mapped blocks up to `published`, which is the invariant that
`BlockPool` counts on.

A batch may be chosen while the one before it is under way: see `UnderWay`. Nobody is preempted for
such a batch; it comes out empty instead, until the step under way has shown who goes on.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Set

from lmpoold.protocol.hashing import PrefixHash
from lmpoold.protocol.views import Counts
from workers.core.batch import Batch, Chunk, StepResult, cut
from workers.core.blocks import BlockId, BlockPool
from workers.core.sequence import Sequence, finish_reason
from workers.core.underway import UnderWay
from workers.core.waiting import WaitingLine, line_order

__all__ = ["Batch", "Chunk", "Counts", "Scheduler", "StepResult"]


class Scheduler:
    """The waiting line and the running set over one `BlockPool`.

    One step: `schedule`, run the model on the batch, `complete`. With `lookahead` 1 the next batch
    may be scheduled before the last one is completed; they complete in their order.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_num_seqs: int,
        max_batched_tokens: int,
        max_model_len: int,
        stop_ids: Set[int] = frozenset(),
        lookahead: int = 0,
    ) -> None:
        """Start empty.

        Args:
            pool: empty or not; whoever else holds blocks of it makes sequences wait.
            max_num_seqs: most sequences running at once, > 0.
            max_batched_tokens: most tokens a step computes; >= `max_num_seqs`.
            max_model_len: most tokens of a sequence, prompt and output together; all of them must
                fit the pool.
            stop_ids: tokens that end an answer.
            lookahead: 1 lets one batch be under way when the next one is chosen.
        Raises: ValueError: the limits contradict each other; the message says which to change.
        """
        if lookahead not in (0, 1):
            raise ValueError(f"lookahead must be 0 or 1, got {lookahead}")
        capacity = pool.num_blocks * pool.block_size
        if max_num_seqs < 1:
            raise ValueError(f"max_num_seqs must be at least 1, got {max_num_seqs}")
        if max_batched_tokens < max_num_seqs:
            raise ValueError(
                f"max_batched_tokens ({max_batched_tokens}) must be at least max_num_seqs "
                f"({max_num_seqs}), or decoding would leave no room to prefill"
            )
        if not 2 <= max_model_len <= capacity:
            raise ValueError(
                f"max_model_len ({max_model_len}) must be between 2 and the pool's {capacity} "
                f"tokens ({pool.num_blocks} blocks of {pool.block_size}): lower max_model_len or "
                "give the KV cache more memory"
            )
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_batched_tokens = max_batched_tokens
        self.max_model_len = max_model_len
        self.stop_ids = frozenset(stop_ids)
        self.lookahead = lookahead
        self._waiting = WaitingLine(pool)
        self._running: dict[str, Sequence] = {}  # in order of admission
        self._by_id: dict[str, Sequence] = {}
        self._writing: dict[PrefixHash, Sequence] = {}  # blocks that running prefills will publish
        self._under_way = UnderWay(pool)
        self._now_s = 0.0  # when the last step was scheduled or completed; stamps early releases

    @property
    def idle(self) -> bool:
        """Whether there is nothing to run and nobody waits."""
        return not self._by_id

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence in line.

        Raises: ValueError: its id is here already, or its tokens leave no room for an output token.
            Admission control upstream answers such requests; here they are a mistake.
        """
        known = len(sequence.tokens)
        if sequence.request_id in self._by_id:
            raise ValueError(f"request {sequence.request_id} is already here")
        if not 0 < sequence.prompt_tokens <= known:
            raise ValueError(f"{sequence.prompt_tokens} prompt tokens among {known} tokens")
        limit = min(sequence.prompt_tokens + sequence.sampling.max_tokens, self.max_model_len)
        if known >= limit:
            raise ValueError(f"{known} tokens leave no room for output: the limit is {limit}")
        sequence.limit = limit
        sequence.name_blocks(self.pool.block_size)
        self._by_id[sequence.request_id] = sequence
        self._waiting.join(sequence)

    def abort(self, request_id: str) -> Sequence | None:
        """Take a sequence out at any stage, also between `schedule` and `complete`.

        Returns None when it is not here. Its published blocks stay cached.
        """
        sequence = self._by_id.pop(request_id, None)
        if sequence is None:
            return None
        if request_id in self._running:
            self._stop_running(sequence)
        else:
            self._waiting.leave(sequence)
        return sequence

    def stop(self, request_id: str) -> Sequence | None:
        """End a running sequence early, say at a stop string; None when it is not running."""
        sequence = self._running.get(request_id)
        if sequence is not None:
            del self._by_id[request_id]
            self._stop_running(sequence)
        return sequence

    def schedule(self, now_s: float) -> Batch:
        """Choose the next batch.

        An empty batch needs no `complete`. It means that the batch under way must be completed
        first; without one, that somebody outside holds the blocks that the first in line needs.

        Raises: ValueError: more than `lookahead` batches are under way.
        """
        if len(self._under_way) > self.lookahead:
            raise ValueError("complete the oldest batch under way first")
        self._now_s = now_s
        preempted = self._grow()
        if preempted is None:
            return Batch((), (), ())
        decodes: list[Chunk] = []
        begun: Sequence | None = None
        for sequence in self._running.values():
            start, promised = sequence.launched, sequence.promised
            known = len(sequence.tokens) + promised
            if known - start > 1:
                begun = sequence  # the only one, as the next begins with what a chunk leaves over
            elif known < sequence.limit:
                after = sequence.drawn_at if promised else None
                decodes.append(Chunk(sequence, start, 1, True, start, after))
        budget = self.max_batched_tokens - len(decodes)
        prefills: list[Chunk] = []
        if begun is not None:
            prefills.append(cut(begun, budget, write_from=begun.launched))
            budget -= prefills[0].length
        if budget and self._waiting and not preempted:
            prefills += self._admit(budget)
        batch = Batch(tuple(decodes), tuple(prefills), tuple(preempted))
        if decodes or prefills:
            self._under_way.launch(batch)
        return batch

    def complete(self, batch: Batch, sampled: abc.Sequence[int], now_s: float) -> list[StepResult]:
        """Take in what the model computed: publish, append, finish.

        Args:
            batch: the oldest one scheduled and not completed, or an empty one.
            sampled: a token for each of `batch.samples`, in that order.
            now_s: as in `schedule`.
        Returns: one result for each sampled token, in row order, but none for a sequence that
            ended since. A result with a finish reason is the sequence's last: it is gone from here.
        Raises: ValueError: the number of tokens does not fit, or it is not this batch's turn.
        """
        self._now_s = now_s
        samples = batch.samples
        if len(sampled) != len(samples):
            raise ValueError(f"{len(samples)} rows sample, got {len(sampled)} tokens")
        if batch.decodes or batch.prefills:
            self._under_way.land(batch, now_s)
        for chunk in batch.prefills:
            if not chunk.samples and self._is_running(chunk.sequence):
                self._advance(chunk.sequence, chunk.start + chunk.length)
        results: list[StepResult] = []
        running, stop_ids = self._running, self.stop_ids
        for at, (chunk, token) in enumerate(zip(samples, sampled, strict=True)):
            sequence = chunk.sequence
            if running.get(sequence.request_id) is not sequence:
                continue
            length = chunk.start + chunk.length
            self._advance(sequence, length)
            sequence.promised -= 1
            sequence.tokens.append(token)
            reason = None
            if token in stop_ids or length + 1 >= sequence.limit:
                reason = finish_reason(sequence, stop_ids, self.max_model_len)
            index = length - sequence.prompt_tokens
            results.append(StepResult(sequence, token, index, at, reason))
            if reason is not None:
                del self._by_id[sequence.request_id]
                self._stop_running(sequence)
        return results

    def load(self, decode_weight: float) -> Counts:
        """Sum up the load; O(running).

        Waiting sequences count what the pool seemed to lack of them when last looked at.

        Args:
            decode_weight: prefill tokens that one decoded token costs as much as.
        """
        waiting, growth, missing, outputs = self._waiting, 0, 0, 0
        for sequence in self._running.values():
            known = len(sequence.tokens)
            growth += self._grows(sequence)
            outputs += sequence.limit - known
            lacks = known - sequence.computed
            missing += lacks if lacks > 1 else 0  # one is what decoding always lacks
        free = self.pool.free - waiting.missing_blocks - growth
        return Counts(
            free=max(0, free),
            reclaimable=max(0, self.pool.reclaimable + min(0, free)),
            wait_tokens=round(waiting.missing_tokens + decode_weight * waiting.output_tokens),
            run_tokens=round(missing + decode_weight * outputs),
            sequences=len(self._by_id),
        )

    def _grow(self) -> list[Sequence] | None:
        """Give every decoding sequence the block for its next token.

        Returns: who was preempted for it; None when the steps under way must end first.
        """
        size, pool = self.pool.block_size, self.pool
        short = [
            s
            for s in self._running.values()
            if len(s.block_table) * size < len(s.tokens) + s.promised < s.limit
        ]
        preempted: list[Sequence] = []
        for sequence in short:
            while self._is_running(sequence):
                block = pool.allocate(1)
                if block is not None:
                    sequence.block_table += block
                    break
                if self._under_way:
                    return None
                victim = max(self._running.values(), key=line_order)
                self._stop_running(victim)
                self._waiting.join(victim)
                preempted.append(victim)
        return preempted

    def _admit(self, budget: int) -> list[Chunk]:
        """Move sequences from the line into the running set while budget, seats and blocks last."""
        pool, size = self.pool, self.pool.block_size
        growth = sum(map(self._grows, self._running.values()))
        chunks: list[Chunk] = []
        passed = 0
        while budget and len(self._running) < self.max_num_seqs:
            if passed >= min(len(self._waiting), self.max_num_seqs):  # bounds the step
                break
            sequence = self._waiting[passed]
            found, held = self._waiting.look(sequence)
            if found < len(sequence.hashes) and sequence.hashes[found] in self._writing:
                passed += 1
                continue
            total = -(-len(sequence.tokens) // size)
            reserve = growth + (sequence.most_blocks(size) > total)
            if total - held + reserve > pool.available:
                break
            run = pool.match(sequence.packed, sequence.hashes, sequence.root)
            held = sum(pool.refs(block) > 0 for block in run)  # less only after a hash collision
            if total - held + reserve > pool.available:
                break
            self._waiting.leave(sequence)
            chunks.append(self._start(sequence, run, total, budget))
            budget -= chunks[-1].length
            growth = reserve
        return chunks

    def _start(self, sequence: Sequence, run: list[BlockId], total: int, budget: int) -> Chunk:
        """Give a sequence its blocks, the first `run` of them shared, and cut its first chunk."""
        pool, size = self.pool, self.pool.block_size
        pool.acquire(run, self._now_s)
        fresh = pool.allocate(total - len(run))
        assert fresh is not None, "admission counted the blocks"
        found = len(run) * size
        sequence.block_table = run + fresh
        sequence.published = len(run)
        sequence.computed = sequence.launched = min(found, len(sequence.tokens) - 1)
        sequence.admissions += 1
        if sequence.admissions == 1:
            sequence.cached_tokens = min(sequence.computed, sequence.prompt_tokens)
        for name in sequence.hashes[len(run) :]:
            self._writing.setdefault(name, sequence)
        self._running[sequence.request_id] = sequence
        return cut(sequence, budget, write_from=found)

    def _advance(self, sequence: Sequence, computed: int) -> None:
        sequence.computed = computed
        if sequence.published < computed // self.pool.block_size:
            self._publish(sequence)

    def _publish(self, sequence: Sequence) -> None:
        """Publish the blocks that are complete now, or adopt a twin that is published already."""
        pool, size, now_s = self.pool, self.pool.block_size, self._now_s
        sequence.name_blocks(size)
        for depth in range(sequence.published, sequence.computed // size):
            block, name = sequence.block_table[depth], sequence.hashes[depth]
            parent = sequence.hashes[depth - 1] if depth else sequence.root
            tokens = sequence.tokens[depth * size : (depth + 1) * size]
            if not pool.publish(block, name, parent, depth, tokens, now_s):
                twin = pool.find(name, parent, tokens)
                if twin is None:  # a collision: this block and all after it stay private
                    self._forget_writing(sequence)
                    return
                pool.acquire((twin,), now_s)
                self._under_way.release([block], now_s)
                sequence.block_table[depth] = twin
            sequence.published = depth + 1
            if self._writing.get(name) is sequence:
                del self._writing[name]

    def _stop_running(self, sequence: Sequence) -> None:
        del self._running[sequence.request_id]
        self._forget_writing(sequence)
        self._under_way.release(sequence.block_table, self._now_s)
        sequence.block_table = []
        sequence.computed = sequence.launched = sequence.promised = sequence.published = 0

    def _forget_writing(self, sequence: Sequence) -> None:
        for name in sequence.hashes[sequence.published :]:
            if self._writing.get(name) is sequence:
                del self._writing[name]

    def _is_running(self, sequence: Sequence) -> bool:
        return self._running.get(sequence.request_id) is sequence

    def _grows(self, sequence: Sequence) -> bool:
        return len(sequence.block_table) * self.pool.block_size < sequence.limit - 1

    def check(self) -> None:
        """Assert every invariant, the pool's included; O(everything)."""
        self.pool.check()
        self._waiting.check()
        size = self.pool.block_size
        holds: dict[BlockId, int] = {}
        assert len(self._by_id) == len(self._waiting) + len(self._running), "somebody is lost"
        assert len(self._running) <= self.max_num_seqs, f"{len(self._running)} running"
        for sequence in self._running.values():
            name = sequence.request_id
            assert self._by_id[name] is sequence, f"{name} runs twice"
            known = len(sequence.tokens) + sequence.promised
            assert 0 <= sequence.computed < len(sequence.tokens), f"{name}: nothing to compute"
            assert sequence.computed <= sequence.launched < known <= sequence.limit, f"{name}: late"
            assert self._under_way or not sequence.promised, f"{name}: nobody keeps the promise"
            assert len(sequence.tokens) < sequence.limit, f"{name}: past its end"
            assert sequence.computed <= len(sequence.block_table) * size, f"{name}: no such blocks"
            for depth, block in enumerate(sequence.block_table):
                holds[block] = holds.get(block, 0) + 1
                if depth < sequence.published:
                    entry = self.pool.lookup(sequence.hashes[depth])
                    assert entry is not None, f"{name}: block {depth} left the map"
                    assert entry.block == block, f"{name}: block {depth} is not its own"
        for block in self._under_way.held():
            holds[block] = holds.get(block, 0) + 1
        for block, count in holds.items():
            assert self.pool.refs(block) >= count, f"block {block}: {count} holders"
        for writing, writer in self._writing.items():
            assert self._is_running(writer), f"{writing}: its writer is gone"
            assert writing in writer.hashes[writer.published :], f"{writing}: written already"
