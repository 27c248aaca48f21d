"""The engine thread: schedule, run the model, report. It never touches Redis.

Commands come in by a queue, reports go out by a callback; these are the only two places where the
thread and the event loop meet. The thread waits for the queue while it has nothing to do, and while
the device is far from done: a transfer plan gets its blocks then, not when a long step is over.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from lmpoold.protocol.hashing import PrefixHash
from lmpoold.protocol.messages import Dispatch, Output
from lmpoold.protocol.views import Ended
from workers.core.batch import Batch, Sampled
from workers.core.handoff import Handoff
from workers.core.pace import Pace
from workers.core.schedule import Scheduler
from workers.core.sequence import Sequence as Progress
from workers.daemon.answers import Answer, Vocabulary, logprobs_text
from workers.daemon.commands import Abort, Add, Command, Commands, Handover, Reset, Stop
from workers.daemon.metrics import WorkerMetrics
from workers.daemon.report import StepReport

STALL_S = 0.002
"""How often a scheduler that has work and no blocks for it is asked again."""
LONG_S = 0.004
"""During steps from so long on blocks are handed over; the end of a shorter one is near anyway."""
LOOK_S = 0.001
"""How often the device is asked, during such a step, whether it is done already. So long before it
should be, the thread waits for the device alone: looking would notice the end late."""


class Plant(Protocol):
    """Whatever computes batches: the model, or a stand-in that measures everything around it."""

    def launch(self, batch: Batch) -> None:
        """Start to compute a batch; one more may be under way."""
        ...

    def ready(self) -> bool:
        """Whether `collect` would not wait."""
        ...

    def collect(self) -> Sampled:
        """Return what the oldest batch under way drew, waiting for it."""
        ...


@dataclass(slots=True)
class _Outbox:
    """What the current turn has to say."""

    outputs: list[tuple[str, Output]] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)
    snapshot: bool = False


class Engine:
    """One scheduler and one plant on a thread of their own.

    Attributes:
        failure: what ended the thread, None while it lives or after Stop.
        shortage_blocks: cached blocks that must go for what waits and runs; from any thread.
        pace: how fast it prefills, as learnt so far; its numbers may be read from any thread.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        plant: Plant,
        *,
        vocabulary: Vocabulary,
        root: Callable[[str], PrefixHash],
        decode_weight: float,
        clock_offset_s: float,
        report: Callable[[StepReport | None], None],
        metrics: WorkerMetrics,
        check: bool = False,
    ) -> None:
        """Prepare the thread.

        Args:
            scheduler: owned by the thread from `start` on.
            plant: likewise.
            vocabulary: tokens to text.
            root: a salt's hash domain.
            decode_weight: prefill tokens that one output token counts for in the load.
            clock_offset_s: the server's unix time minus this host's.
            report: called on this thread with each report, and with None when it ends.
            metrics: told of arrivals, steps and reports.
            check: assert every invariant after each handover; a broken one ends the thread.
        """
        self._scheduler = scheduler
        self._plant = plant
        self._under_way: deque[tuple[Batch, float]] = deque()  # when each was launched
        self._collected_s = 0.0
        self._vocabulary = vocabulary
        self._root = root
        self._decode_weight = decode_weight
        self._clock_offset_s = clock_offset_s
        self._report = report
        self._metrics = metrics
        self._check = check
        self._handoff = Handoff(scheduler.pool)
        self.pace = Pace()
        self.shortage_blocks = 0
        self._commands = Commands()
        self._answers: dict[str, Answer] = {}
        self._deadlines: list[tuple[int, str, int]] = []
        self._arrivals = itertools.count()
        self._out = _Outbox()
        self._epoch = ""
        self._stalled = False
        self._moved_s: float | None = None
        """When it last finished a step or had nothing to do; None while it has nothing."""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def tell(self, command: Command) -> None:
        """Hand a command over, from any thread."""
        self._commands.put(command)

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread after Stop; False if it still runs."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stuck_s(self, now_s: float) -> float:
        """Return for how long it has had work and finished no step of it; from any thread."""
        moved_s = self._moved_s
        return 0.0 if moved_s is None else max(0.0, now_s - moved_s)

    def weigh_decodes(self, weight: float) -> None:
        """Count an output token as so many prefill tokens from now on; from any thread."""
        self._decode_weight = weight

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def _busy(self) -> bool:
        return bool(self._under_way) or not self._scheduler.idle

    def _run(self) -> None:
        try:
            while self._take_commands():
                self._expire()
                if self._busy:
                    self._step()
                self._send()
        except BaseException as error:  # noqa: BLE001  (the loop has to hear of it, and ends us)
            self.failure = error
        finally:
            self._report(None)

    def _take_commands(self) -> bool:
        """Carry out what is queued; wait for the first only when idle. False on Stop."""
        wait_s: float | None = 0.0
        if not self._busy:
            wait_s = self._moved_s = None
        elif self._stalled:
            wait_s = STALL_S
        while True:
            command = self._commands.get(wait_s)
            if command is None:
                return True
            wait_s = 0.0
            if self._moved_s is None:
                self._moved_s = time.monotonic()
            match command:
                case Add(dispatch):
                    self._add(dispatch)
                case Abort(request_id, code, message, held):
                    if held is not None:
                        self._add(held)
                    self._end(request_id, code, message)
                case Reset(epoch, forget):
                    if forget:
                        for request_id in list(self._answers):
                            self._end(request_id, "", "")
                        self._out = _Outbox()
                    self._epoch = epoch
                    self._out.snapshot = True
                case Handover():
                    while command.after_steps and self._under_way:
                        self._take_in()
                    self._hand_over(command)
                case Stop():
                    return False

    def _hand_over(self, handover: Handover) -> None:
        handover.done(handover.act(self._handoff, time.monotonic()))
        if self._check:
            self._scheduler.check()
            self._handoff.check()

    def _add(self, dispatch: Dispatch) -> None:
        if dispatch.id in self._answers:
            return  # delivered twice after a lost connection
        payload = dispatch.payload
        answer = Answer(dispatch, self._vocabulary)
        sequence = Progress(
            request_id=dispatch.id,
            attempt=dispatch.attempt,
            prompt_tokens=payload.prompt_tokens,
            tokens=list(dispatch.tokens),
            packed=dispatch.packed,
            sampling=payload.sampling,
            priority=payload.priority,
            arrival=next(self._arrivals),
            deadline_ms=payload.deadline_ms,
            root=self._root(payload.salt),
        )
        try:
            self._scheduler.add(sequence)
        except ValueError as error:
            # One request that cannot run must not end those that do.
            self._fail(answer, sequence, "worker_failed", f"this worker cannot run it: {error}")
            return
        self._answers[dispatch.id] = answer
        self._metrics.arrived(dispatch.id)
        if payload.deadline_ms:
            heapq.heappush(self._deadlines, (payload.deadline_ms, dispatch.id, dispatch.attempt))
        self._out.admitted.append(f"{dispatch.id}.{dispatch.attempt}")

    def _end(self, request_id: str, code: str, message: str) -> None:
        """End a request early; without a code nobody is told."""
        answer = self._answers.pop(request_id, None)
        self._metrics.left(request_id)
        sequence = self._scheduler.abort(request_id)
        if answer is not None and sequence is not None and code:
            self._fail(answer, sequence, code, message)

    def _fail(self, answer: Answer, sequence: Progress, code: str, message: str) -> None:
        """Tell the asker and the pool that a request ended with an error."""
        emitted = sequence.output_tokens
        client = answer.dispatch.payload.client
        self._out.outputs.append((client, answer.failed(emitted, code, message)))
        state = "cancelled" if code == "cancelled" else "failed"
        self._out.ended.append(self._ended(answer, sequence, state, code, emitted))

    def _expire(self) -> None:
        if not self._deadlines:
            return
        now_ms = (time.time() + self._clock_offset_s) * 1000
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, request_id, attempt = heapq.heappop(self._deadlines)
            answer = self._answers.get(request_id)
            if answer is not None and answer.dispatch.attempt == attempt:
                self._end(request_id, "deadline_exceeded", "its deadline passed while it ran")

    def _step(self) -> None:
        """Give the device its next batch, then take in the one before as soon as it is done."""
        batch = self._scheduler.schedule(time.monotonic())
        launched = bool(batch.rows)
        if launched:
            began_s = time.monotonic()  # a processor computes it here, a GPU from here on
            self._plant.launch(batch)
            self._metrics.launched(batch)
            self._under_way.append((batch, began_s))
        self._stalled = not self._under_way  # somebody else holds the blocks it needs
        if len(self._under_way) > (self._scheduler.lookahead if launched else 0):
            self._take_in()

    def _hand_over_meanwhile(self) -> None:
        """Carry out handovers until the step should soon be done."""
        batch, launched_s = self._under_way[0]
        long_s = self.pace.expect_s(batch.prefill_tokens)
        if long_s < LONG_S:
            return
        until_s = max(launched_s, self._collected_s) + long_s - LOOK_S
        while (left_s := until_s - time.monotonic()) > 0 and not self._plant.ready():
            handover = self._commands.handover(min(LOOK_S, left_s))
            if handover is not None:
                self._hand_over(handover)

    def _take_in(self) -> None:
        self._hand_over_meanwhile()
        batch, launched_s = self._under_way.popleft()
        sampled = self._plant.collect()
        self._moved_s = now_s = time.monotonic()
        self._learn(batch, now_s - max(launched_s, self._collected_s))
        self._collected_s = now_s
        results = self._scheduler.complete(batch, sampled.tokens, now_s)
        outputs = self._out.outputs
        for sequence, token, index, at, reason in results:
            answer = self._answers[sequence.request_id]
            asked = sampled.logprobs[at]
            logprobs = ""
            if asked is not None:
                logprobs = logprobs_text(token, asked.chosen, asked.top, self._vocabulary.decode)
            output = answer.next(token, index, reason or "", logprobs, sequence.cached_tokens)
            outputs.append((answer.client, output))
            if output.finish_reason:
                if reason is None:
                    self._scheduler.stop(sequence.request_id)
                del self._answers[sequence.request_id]
                self._out.ended.append(
                    self._ended(answer, sequence, "done", output.finish_reason, index + 1)
                )

    def _learn(self, batch: Batch, took_s: float) -> None:
        tokens = batch.prefill_tokens
        self.pace.observe(tokens, len(batch.decodes), took_s)
        self._metrics.stepped(tokens, len(batch.decodes), took_s)

    def figures(self) -> dict[str, float]:
        """What moving blocks is weighed against; from any thread.

        Returns: `prefill_us` a computed token, once known; `once_used` cached blocks that nothing
            found again; `reuse_share` of blocks that were wanted a second time.
        """
        pool = self._scheduler.pool
        known = {"once_used": float(pool.once_used), "reuse_share": pool.reuse_share}
        if self.pace.prefill_us is not None:
            known["prefill_us"] = self.pace.prefill_us
        return known

    def _ended(
        self, answer: Answer, sequence: Progress, state: str, reason: str, emitted: int
    ) -> Ended:
        dispatch = answer.dispatch
        return Ended(
            id=dispatch.id,
            attempt=dispatch.attempt,
            entry=dispatch.entry,
            state=state,
            finish_reason=reason,
            prompt_tokens=dispatch.payload.prompt_tokens,
            cached_tokens=sequence.cached_tokens,
            output_tokens=emitted,
        )

    def _send(self) -> None:
        out, self._out = self._out, _Outbox()
        changes = self._scheduler.pool.drain_changes()
        counts = self._scheduler.load(self._decode_weight)
        self.shortage_blocks = self._scheduler.pool.reclaimable - counts.reclaimable
        report = StepReport(
            epoch=self._epoch,
            counts=counts,
            outputs=out.outputs,
            ended=out.ended,
            admitted=out.admitted,
            puts={} if out.snapshot else changes.puts,
            dels=() if out.snapshot else changes.dels,
            snapshot=self._scheduler.pool.table() if out.snapshot else None,
        )
        self._metrics.reported(report)
        self._report(report)
