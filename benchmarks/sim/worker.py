"""One worker in virtual time: the real block pool, a line, and steps of modelled length.

It follows the rules of `workers.core.schedule` that reuse and waiting depend on: decode rows first,
then the prefill begun, then the line in order while a step's token budget lasts; a request whose
next block a running prefill is writing is passed over; blocks are published as soon as the step
that completes them ends, generated ones when the request ends.

What it leaves out: an answer's blocks are taken at admission rather than one by one, so nobody is
ever preempted; and steps that only decode are played as one, up to the first that changes anything.

A block's content is one number here, so the pool counts one token a block; names are real chained
hashes over those numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.sim.engine import EngineModel
from lmpoold.protocol.hashing import PrefixHash, next_hash, token_bytes
from lmpoold.protocol.views import Counts
from workers.core.blocks import BlockId, BlockPool
from workers.core.reclaim import ReclaimPolicy


@dataclass(slots=True, eq=False)
class SimRequest:
    """A request on its way; times in virtual seconds."""

    id: str
    arrival_s: float
    input_tokens: int
    output_tokens: int
    ids: tuple[int, ...]
    hashes: Sequence[PrefixHash]
    rank: int = -1
    entry: str = ""
    started: bool = False
    first_token_s: float = -1.0
    finished_s: float = -1.0
    cached_tokens: int = 0
    computed: int = 0
    emitted: int = 0
    published: int = 0
    table: list[BlockId] = field(default_factory=list)

    @property
    def ticket(self) -> str:
        """What the reservation is filed under."""
        return f"{self.id}.0"


@dataclass(frozen=True, slots=True)
class _Step:
    """A step under way, or a run of equal decode steps.

    Attributes:
        chunks: (request, tokens) of prefill; then `times` is 1.
        first_s, growth_s: the first step's length, and how much longer each next one is.
    """

    begun_s: float
    decodes: tuple[SimRequest, ...]
    chunks: tuple[tuple[SimRequest, int], ...]
    times: int
    first_s: float
    growth_s: float

    def end_s(self, times: int) -> float:
        """Return when its first `times` steps are done."""
        longer_s = self.growth_s * times * (times - 1) / 2
        return self.begun_s + self.first_s * times + longer_s


class SimWorker:
    """A worker's cache and engine.

    Attributes:
        admitted: tickets of requests seen since the last report.
        ended: requests that ended since the last report.
        ends_s: when the step under way ends; None while idle.
    """

    def __init__(
        self,
        rank: int,
        engine: EngineModel,
        *,
        blocks: int,
        block_tokens: int,
        policy: ReclaimPolicy,
        root: PrefixHash,
        budget_tokens: int,
        seats: int,
        longest_run_s: float,
    ) -> None:
        """Start empty.

        Args:
            rank: its number.
            engine: how long steps take.
            blocks: of its cache.
            block_tokens: tokens each.
            policy: which cached block goes first.
            root: the domain root of all names.
            budget_tokens: most tokens a step computes.
            seats: most requests that run at once.
            longest_run_s: after which steps that only decode are looked at again.
        """
        self.rank = rank
        self.pool = BlockPool(blocks, 1, policy)
        self.admitted: list[str] = []
        self.ended: list[SimRequest] = []
        self.ends_s: float | None = None
        self._engine = engine
        self._block_tokens = block_tokens
        self._root = root
        self._budget_tokens = budget_tokens
        self._seats = seats
        self._longest_run_s = longest_run_s
        self._line: deque[SimRequest] = deque()
        self._prefilling: list[SimRequest] = []
        self._decoding: list[SimRequest] = []
        self._writing: dict[PrefixHash, SimRequest] = {}
        self._step: _Step | None = None
        self._private_ids = 1 << 30  # of generated blocks, which no trace names

    def take(self, request: SimRequest, now_s: float) -> None:
        """Put a request in line; a run of decode steps is cut at the next step's end."""
        self._line.append(request)
        self.admitted.append(request.ticket)
        step = self._step
        if step is None:
            self.begin(now_s)
        elif step.times > 1:
            times = next(n for n in range(1, step.times + 1) if step.end_s(n) >= now_s)
            self._step = _Step(step.begun_s, step.decodes, (), times, step.first_s, step.growth_s)
            self.ends_s = self._step.end_s(times)

    def begin(self, now_s: float) -> None:
        """Choose the next step, if there is anything to do."""
        decodes = tuple(self._decoding)
        budget = self._budget_tokens - len(decodes)
        chunks: list[tuple[SimRequest, int]] = []
        for request in self._prefilling:
            tokens = min(budget, request.input_tokens - request.computed)
            chunks.append((request, tokens))
            budget -= tokens
        passed = 0
        while budget > 0 and passed < len(self._line):
            if len(self._prefilling) + len(self._decoding) >= self._seats:
                break
            request = self._line[passed]
            if self._is_being_written(request):
                passed += 1
                continue
            if not self._admit(request, now_s):
                break
            del self._line[passed]
            tokens = min(budget, request.input_tokens - request.computed)
            chunks.append((request, tokens))
            budget -= tokens
        if not decodes and not chunks:
            self._step, self.ends_s = None, None
            return
        self._step = self._length(now_s, decodes, tuple(chunks))
        self.ends_s = self._step.end_s(self._step.times)

    def end(self, now_s: float) -> None:
        """Take in what the step under way computed."""
        step = self._step
        assert step is not None, "no step is under way"
        for request, tokens in step.chunks:
            request.computed += tokens
            self._publish(request, request.computed // self._block_tokens, now_s)
            if request.computed == request.input_tokens:
                self._prefilling.remove(request)
                request.first_token_s, request.emitted = now_s, 1
                if request.output_tokens > 1:
                    self._decoding.append(request)
                else:
                    self._finish(request, now_s)
        for request in step.decodes:
            request.emitted += step.times
            if request.emitted >= request.output_tokens:
                self._decoding.remove(request)
                self._finish(request, now_s)

    def counts(self, decode_weight: float) -> Counts:
        """Sum up the load, as the scheduler of a worker does."""
        lacks_blocks = lacks_tokens = 0
        outputs = sum(request.output_tokens for request in self._line)
        for request in self._line:
            found, _ = self.pool.resident(request.hashes)
            lacks_blocks += self._total_blocks(request) - found
            lacks_tokens += request.input_tokens - found * self._block_tokens
        running = self._prefilling + self._decoding
        missing = sum(r.input_tokens - r.computed for r in self._prefilling)
        left = sum(r.output_tokens - r.emitted for r in running)
        free = self.pool.free - lacks_blocks
        return Counts(
            free=max(0, free),
            reclaimable=max(0, self.pool.reclaimable + min(0, free)),
            wait_tokens=round(lacks_tokens + decode_weight * outputs),
            run_tokens=round(missing + decode_weight * left),
            sequences=len(running) + len(self._line),
        )

    def _length(
        self,
        now_s: float,
        decodes: tuple[SimRequest, ...],
        chunks: tuple[tuple[SimRequest, int], ...],
    ) -> _Step:
        first_s = growth_s = 0.0
        batch, times = len(decodes), 1
        if batch:
            context = sum(request.computed + request.emitted for request in decodes)
            first_s = self._engine.decode_step_s(batch, context)
            growth_s = self._engine.context_token_ms * batch / 1000
        for place, (request, tokens) in enumerate(chunks):
            alone = not batch and not place
            first_s += self._engine.prefill_s(tokens, request.computed, alone=alone)
        if not chunks:
            left = min(request.output_tokens - request.emitted for request in decodes)
            times = max(1, min(left, int(self._longest_run_s / first_s)))
        return _Step(now_s, decodes, chunks, times, first_s, growth_s)

    def _total_blocks(self, request: SimRequest) -> int:
        return -(-(request.input_tokens + request.output_tokens - 1) // self._block_tokens)

    def _is_being_written(self, request: SimRequest) -> bool:
        found, _ = self.pool.resident(request.hashes)
        return found < len(request.hashes) and request.hashes[found] in self._writing

    def _admit(self, request: SimRequest, now_s: float) -> bool:
        """Give a request its blocks if there are enough."""
        run = self.pool.match(token_bytes(request.ids), request.hashes, self._root)
        held = sum(self.pool.refs(block) > 0 for block in run)
        total = max(self._total_blocks(request), len(run))
        if total - held > self.pool.available:
            return False
        self.pool.acquire(run, now_s)
        fresh = self.pool.allocate(total - len(run))
        assert fresh is not None, "the blocks were counted"
        request.table, request.published = run + fresh, len(run)
        request.started = True
        request.computed = min(len(run) * self._block_tokens, request.input_tokens - 1)
        request.cached_tokens = request.computed
        for name in request.hashes[len(run) :]:
            self._writing.setdefault(name, request)
        self._prefilling.append(request)
        return True

    def _publish(self, request: SimRequest, complete: int, now_s: float) -> None:
        pool, hashes = self.pool, request.hashes
        for depth in range(request.published, min(complete, len(hashes))):
            name = hashes[depth]
            parent = hashes[depth - 1] if depth else self._root
            content = (request.ids[depth],)
            if not pool.publish(request.table[depth], name, parent, depth, content, now_s):
                twin = pool.find(name, parent, content)
                assert twin is not None, "names of 128 bits do not collide in a trace"
                pool.acquire((twin,), now_s)
                pool.release((request.table[depth],), now_s)
                request.table[depth] = twin
            request.published = depth + 1
            if self._writing.get(name) is request:
                del self._writing[name]

    def _finish(self, request: SimRequest, now_s: float) -> None:
        """Publish what was generated under names of its own, then let the blocks go."""
        complete = (request.input_tokens + request.output_tokens - 1) // self._block_tokens
        if request.published == request.input_tokens // self._block_tokens:
            parent = request.hashes[-1] if request.hashes else self._root
            for depth in range(request.published, complete):
                self._private_ids += 1
                name = next_hash(parent, (self._private_ids,))
                block, content = request.table[depth], (self._private_ids,)
                self.pool.publish(block, name, parent, depth, content, now_s)
                parent = name
        self.pool.release(request.table, now_s)
        request.table = []
        request.finished_s = now_s
        self.ended.append(request)
