"""The engine's turns: it waits only when it has nothing to do, and tells what has changed."""

import queue
import threading
import time
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from benchmarks.idle_worker import IdlePlant, decode
from lmpoold.protocol.hashing import domain_root
from lmpoold.protocol.messages import Dispatch, Payload
from lmpoold.protocol.request import Sampling
from workers.core.batch import Sampled
from workers.core.blocks import BlockPool
from workers.core.schedule import Scheduler
from workers.daemon import commands as commands_module
from workers.daemon.answers import Vocabulary
from workers.daemon.commands import Abort, Add, Handover, Reset, Stop
from workers.daemon.engine import Engine, Plant
from workers.daemon.metrics import WorkerMetrics
from workers.daemon.report import StepReport

BLOCK = 4
ROOT = domain_root("model", BLOCK)


class Driven:
    """An engine over a model that answers at once, and everything it reported."""

    def __init__(self, blocks: int, *, lookahead: int = 0, plant: Plant | None = None) -> None:
        self.reports: list[StepReport] = []
        self._said = threading.Condition()
        self._ended: set[str] = set()
        self.pool = BlockPool(blocks, BLOCK)
        scheduler = Scheduler(
            self.pool,
            max_num_seqs=8,
            max_batched_tokens=4096,
            max_model_len=blocks * BLOCK,
            lookahead=lookahead,
        )
        self.engine = Engine(
            scheduler,
            plant or IdlePlant(),
            vocabulary=Vocabulary(decode, {}),
            root=lambda _: ROOT,
            decode_weight=8,
            clock_offset_s=0.0,
            report=self._take,
            metrics=WorkerMetrics(CollectorRegistry()),
            check=True,
        )
        self.engine.start()

    def _take(self, report: StepReport | None) -> None:
        with self._said:
            if report is not None:
                self.reports.append(report)
                self._ended |= {end.id for end in report.ended}
            self._said.notify_all()

    def ask(self, name: str, tokens: list[int], count: int) -> list[StepReport]:
        """Run one request to its end; returns the reports that it made."""
        before = len(self.reports)
        sampling = Sampling(max_tokens=count, ignore_eos=True)
        payload = Payload(client=name, prompt_tokens=len(tokens), sampling=sampling)
        self.engine.tell(Add(Dispatch("1-0", name, 0, 0, payload, tokens)))
        with self._said:
            assert self._said.wait_for(lambda: name in self._ended, 30)
            return self.reports[before:]

    def close(self) -> None:
        self.engine.tell(Stop())
        assert self.engine.join(10)
        assert self.engine.failure is None


class Slow(IdlePlant):
    """Computes while it launches, as a processor does."""

    def launch(self, batch):
        time.sleep(0.02)
        super().launch(batch)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_what_a_launch_computes_counts_for_the_pace(lookahead):
    driven = Driven(2048, lookahead=lookahead, plant=Slow())
    try:
        for number in range(2):  # the first of a size is not learnt from
            driven.ask(f"r{number}", [number] * 60, 1)
        assert driven.engine.pace.samples == 1
        assert driven.engine.pace.prefill_us * 60 >= 20_000
    finally:
        driven.close()


@pytest.fixture(params=[0, 1], ids=["in step", "one step ahead"])
def driven(request) -> Iterator[Driven]:
    engine = Driven(2048, lookahead=request.param)
    yield engine
    engine.close()


@pytest.mark.better(2)
def test_no_step_waits_for_a_command(monkeypatch):
    waits: list[float | None] = []

    class Watched(queue.Queue):
        def get(self, block=True, timeout=None):
            waits.append(timeout if block else 0.0)
            return super().get(block, timeout)

    monkeypatch.setattr(commands_module.queue, "SimpleQueue", Watched)
    engine = Driven(64)
    steps = len(engine.ask("a", [1, 2, 3], 200))
    engine.close()
    assert steps >= 200
    assert waits.count(0.0) >= steps, "it looks for commands between steps"
    assert set(waits) == {0.0, None}, "a wait for a while, with work to do"
    assert waits.count(None) <= 3, "it waits when it is idle, and only then"


@pytest.mark.better(6)
def test_a_step_tells_of_the_blocks_it_changed_however_many_there_are(driven):
    for n in range(15):  # 15 prompts of 100 blocks
        driven.ask(f"fill{n}", [1000 + n] * 400, 1)
    assert driven.pool.reclaimable >= 1500
    reports = driven.ask("a", list(range(40)), 8)
    puts = {name for report in reports for name in report.puts}
    assert len(puts) == 11, "ten blocks of its prompt, one of its answer"
    assert not any(report.dels for report in reports)
    assert all(report.snapshot is None for report in driven.reports)


@pytest.mark.better(6)
def test_the_whole_table_is_told_once_to_a_new_epoch(driven):
    driven.ask("a", list(range(40)), 1)
    driven.engine.tell(Reset("7", forget=False))
    driven.ask("b", list(range(100, 108)), 4)
    after = [report for report in driven.reports if report.epoch == "7"]
    whole = [report.snapshot for report in after if report.snapshot is not None]
    assert len(whole) == 1
    assert after[0].snapshot is whole[0]
    assert len(whole[0]) >= 10


def test_what_an_output_token_counts_for_can_be_changed_while_it_serves(driven):
    def counted(name: str) -> int:
        """What a request of one block and 100 tokens more counts for when it is new."""
        reports = driven.ask(name, [ord(name)] * BLOCK, 100)
        return max(one.counts.run_tokens + one.counts.wait_tokens for one in reports)

    before = counted("a")
    driven.engine.weigh_decodes(2.0)
    after = counted("b")
    assert 99 * 8 <= before <= 100 * 8 + BLOCK
    assert 99 * 2 <= after <= 100 * 2 + BLOCK


def test_a_request_that_was_held_back_is_ended_without_a_step(driven):
    sampling = Sampling(max_tokens=9, ignore_eos=True)
    payload = Payload(client="c", prompt_tokens=8, sampling=sampling)
    held = Dispatch("1-0", "held", 0, 0, payload, list(range(8)))
    driven.engine.tell(Abort("held", "cancelled", "cancelled by its asker", held))
    driven.ask("after", [1, 2, 3], 1)
    (output,) = [one for report in driven.reports for _, one in report.outputs if one.id == "held"]
    assert (output.code, output.index) == ("cancelled", 0)
    (end,) = [end for report in driven.reports for end in report.ended if end.id == "held"]
    assert (end.entry, end.state, end.output_tokens) == ("1-0", "cancelled", 0)
    assert driven.pool.free == driven.pool.num_blocks - driven.pool.reclaimable


class SlowPlant(IdlePlant):
    """Ends its steps when a test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.done = threading.Event()
        self.done.set()

    def ready(self) -> bool:
        return self.done.is_set()

    def collect(self) -> Sampled:
        assert self.done.wait(30)
        return super().collect()


@pytest.mark.parametrize("lookahead", [0, 1])
def test_blocks_are_handed_over_while_a_long_step_computes(lookahead):
    plant = SlowPlant()
    driven = Driven(64, lookahead=lookahead, plant=plant)
    driven.ask("before", list(range(40)), 1)
    driven.engine.pace.prefill_us = 1e6  # a step of 40 tokens should take 40 seconds
    plant.done.clear()
    sampling = Sampling(max_tokens=2, ignore_eos=True)
    for name in ("long", "behind it"):
        payload = Payload(client=name, prompt_tokens=40, sampling=sampling)
        tokens = [ord(letter) for letter in name[:1] * 40]
        driven.engine.tell(Add(Dispatch("1-0", name, 0, 0, payload, tokens)))
    reserved: queue.Queue = queue.Queue()
    driven.engine.tell(
        Handover(lambda handoff, _: handoff.reserve("p", ("ab" * 16,)), reserved.put)
    )
    assert reserved.get(timeout=10).first == 0
    assert "long" not in driven._ended, "its step has not ended, nor has it to"
    last: queue.Queue = queue.Queue()
    driven.engine.tell(Handover(lambda handoff, _: handoff.settle("p"), last.put, after_steps=True))
    with pytest.raises(queue.Empty):
        last.get(timeout=0.1)
    plant.done.set()
    last.get(timeout=10)
    with driven._said:
        assert driven._said.wait_for(lambda: {"long", "behind it"} <= driven._ended, 30)
    driven.close()
