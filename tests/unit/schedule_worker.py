"""A simulated model behind a scheduler: it notices every slot that holds what it should not."""

from __future__ import annotations

import zlib
from collections import deque

from lmpoold.protocol.hashing import PrefixHash, domain_root
from lmpoold.protocol.request import Sampling
from workers.core.batch import Batch, Chunk, StepResult
from workers.core.blocks import BlockId, BlockPool
from workers.core.schedule import Scheduler
from workers.core.sequence import Sequence, finish_reason

VOCABULARY = 4
STOP = frozenset({3})


def next_token(tokens: list[int]) -> int:
    """What the simulated model samples: a function of everything before, as in greedy decoding."""
    return zlib.crc32(bytes(tokens)) // 7 % VOCABULARY


def prefix_digests(root: PrefixHash, tokens: list[int]) -> list[int]:
    """What the K/V at each position stands for: the token there and all before it."""
    digests, digest = [], zlib.crc32(root.encode())
    for token in tokens:
        digest = zlib.crc32(bytes([token]), digest)
        digests.append(digest)
    return digests


def root_of(salt: str, size: int) -> PrefixHash:
    return domain_root("model", size, salt)


def request(
    name: str,
    tokens: list[int],
    *,
    size: int = 4,
    prompt: int | None = None,
    priority: int = 0,
    arrival: int = 0,
    salt: str = "",
    **sampling: object,
) -> Sequence:
    return Sequence(
        request_id=name,
        attempt=1,
        prompt_tokens=len(tokens) if prompt is None else prompt,
        tokens=list(tokens),
        sampling=Sampling(**{"max_tokens": 4, "ignore_eos": True, **sampling}),
        priority=priority,
        arrival=arrival,
        deadline_ms=0,
        root=root_of(salt, size),
    )


def undisturbed(sequence: Sequence, max_model_len: int) -> tuple[list[int], str]:
    """All tokens that a sequence has in the end when nobody else is there, and why it ends."""
    alone = request("alone", sequence.tokens, prompt=sequence.prompt_tokens)
    alone.sampling = sequence.sampling
    while True:
        alone.tokens.append(next_token(alone.tokens))
        if reason := finish_reason(alone, STOP, max_model_len):
            return alone.tokens, reason


class Worker:
    """A scheduler, and a KV tensor that remembers what was written where.

    A batch is computed when it is scheduled, as on a device that runs what it was given in order;
    the host learns of it at `complete`.
    """

    def __init__(self, blocks: int, size: int = 4, **limits: int) -> None:
        self.pool = BlockPool(blocks, size)
        wanted = {
            "max_num_seqs": 8,
            "max_batched_tokens": 64,
            "max_model_len": blocks * size,
            **limits,
        }
        self.drawn: list[int] = []
        self.under_way: deque[tuple[Batch, list[int]]] = deque()
        self.scheduler = Scheduler(self.pool, stop_ids=STOP, **wanted)
        self.kv: dict[tuple[BlockId, int], int] = {}
        self.now_s = 0.0
        self.computed_tokens = 0
        self.finished: dict[str, tuple[list[int], str]] = {}
        self.preempted: list[str] = []

    def add(self, *sequences: Sequence) -> None:
        for sequence in sequences:
            self.scheduler.add(sequence)

    def schedule(self) -> Batch:
        self.now_s += 1.0
        batch = self.scheduler.schedule(self.now_s)
        self.scheduler.check()
        rows = batch.rows
        assert sum(chunk.length for chunk in rows) <= self.scheduler.max_batched_tokens
        assert len(rows) == len({id(chunk.sequence) for chunk in rows})
        self.preempted += [sequence.request_id for sequence in batch.preempted]
        return batch

    def run(self, batch: Batch) -> list[int]:
        """Write the K/V of every row, then let every row attend to all that is before it."""
        size, written = self.pool.block_size, set()
        tokens = [self._tokens(chunk) for chunk in batch.rows]
        for chunk, known in zip(batch.rows, tokens, strict=True):
            sequence = chunk.sequence
            assert chunk.length > 0
            assert chunk.samples == (chunk.start + chunk.length == len(known))
            assert len(known) < sequence.limit
            digests = prefix_digests(sequence.root, known)
            for position in range(chunk.start, chunk.start + chunk.length):
                if position >= chunk.write_from:
                    slot = (sequence.block_table[position // size], position % size)
                    assert slot not in written
                    assert self.pool.refs(slot[0]) == 1
                    written.add(slot)
                    self.kv[slot] = digests[position]
        for chunk, known in zip(batch.rows, tokens, strict=True):
            sequence = chunk.sequence
            self.computed_tokens += chunk.length
            digests = prefix_digests(sequence.root, known)
            for position in range(chunk.start + chunk.length):
                slot = (sequence.block_table[position // size], position % size)
                assert self.kv[slot] == digests[position]
        paired = zip(batch.rows, tokens, strict=True)
        sampled = [next_token(known) for chunk, known in paired if chunk.samples]
        if batch.rows:
            self.drawn = sampled
        return sampled

    def _tokens(self, chunk: Chunk) -> list[int]:
        """All tokens of a row's sequence, one of them perhaps known to the device alone."""
        tokens = list(chunk.sequence.tokens)
        if chunk.after is not None:
            assert chunk.start == len(tokens)
            tokens.append(self.drawn[chunk.after])
        return tokens

    def complete(self, batch: Batch, sampled: list[int]) -> list[StepResult]:
        results = self.scheduler.complete(batch, sampled, self.now_s)
        self.scheduler.check()
        for result in results:
            sequence = result.sequence
            assert result.token == sequence.tokens[-1]
            assert result.index == len(sequence.tokens) - sequence.prompt_tokens - 1
            if result.finish_reason:
                self.finished[sequence.request_id] = (sequence.tokens, result.finish_reason)
        return results

    def launch(self) -> Batch:
        """Schedule and compute a batch whose outcome the host does not know yet."""
        batch = self.schedule()
        if batch.rows:
            self.under_way.append((batch, self.run(batch)))
        return batch

    def land(self) -> list[StepResult]:
        """Tell the host what came of the oldest batch under way."""
        return self.complete(*self.under_way.popleft())

    def step(self) -> Batch:
        """Go on by a batch: launch one, complete the oldest once enough are under way."""
        batch = self.launch()
        if self.under_way and (len(self.under_way) > self.scheduler.lookahead or not batch.rows):
            self.land()
        return batch

    def drain(self) -> None:
        """Run to the end, which must come, and find every block free or cached."""
        while len(self.under_way) > self.scheduler.lookahead:
            self.land()
        for _ in range(2000):
            if self.scheduler.idle and not self.under_way:
                break
            waited = len(self.under_way)
            batch = self.step()
            assert batch.rows or batch.preempted or waited
        assert self.scheduler.idle
        assert self.pool.available == self.pool.num_blocks


def rows(batch: Batch) -> list[tuple[str, int, int]]:
    return [(chunk.sequence.request_id, chunk.start, chunk.length) for chunk in batch.rows]


def names(batch: Batch) -> list[str]:
    return [chunk.sequence.request_id for chunk in batch.rows]


PROMPT = [0, 1, 2, 3, 3, 2, 1, 0, 1, 1]
