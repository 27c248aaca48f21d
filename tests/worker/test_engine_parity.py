"""The engine over a real model: in every situation its greedy output is that of `generate`."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Mapping, Sequence

import pytest
from prometheus_client import CollectorRegistry

from lmpoold.protocol.hashing import domain_root
from lmpoold.protocol.messages import Dispatch, Output, Payload
from lmpoold.protocol.request import Sampling
from workers.core.batch import Batch, Sampled
from workers.core.blocks import BlockPool
from workers.core.schedule import Scheduler
from workers.daemon.answers import Vocabulary
from workers.daemon.commands import Abort, Add, Reset, Stop
from workers.daemon.engine import Engine
from workers.daemon.metrics import WorkerMetrics
from workers.daemon.plant import ModelPlant
from workers.daemon.report import StepReport
from workers.model.kv import KVPool
from workers.model.runner import ModelRunner
from workers.model.torch_backend import TorchBackend
from workers.model.weights import load

BLOCK = 16
ROOT = domain_root("test", BLOCK)
COUNT = 12


class Watched:
    """A plant that remembers what its batches looked like."""

    def __init__(self, plant: ModelPlant) -> None:
        self._plant = plant
        self.batches: list[Batch] = []

    def launch(self, batch: Batch) -> None:
        self.batches.append(batch)
        self._plant.launch(batch)

    def ready(self) -> bool:
        return self._plant.ready()

    def collect(self) -> Sampled:
        return self._plant.collect()


class Driver:
    """An engine on its thread, fed and read by a test."""

    def __init__(
        self,
        loaded,
        *,
        lookahead: int,
        blocks: int = 128,
        max_num_seqs: int = 16,
        budget: int = 512,
    ):
        kv = KVPool(blocks, loaded.geometry, block_size=BLOCK, dtype=loaded.dtype)
        self.plant = Watched(ModelPlant(ModelRunner(loaded, kv, TorchBackend())))
        self.scheduler = Scheduler(
            BlockPool(blocks, BLOCK),
            max_num_seqs=max_num_seqs,
            max_batched_tokens=budget,
            max_model_len=min(blocks * BLOCK, loaded.max_model_len),
            lookahead=lookahead,
        )
        self.arrived = threading.Condition()
        self.outputs: dict[str, list[Output]] = {}
        self.ended: dict[str, int] = {}
        self.reports: list[StepReport] = []
        self.engine = Engine(
            self.scheduler,
            self.plant,
            vocabulary=Vocabulary(lambda ids: "".join(f"<{token}>" for token in ids), {}),
            root=lambda salt: ROOT,
            decode_weight=8,
            clock_offset_s=0.0,
            report=self._take,
            metrics=WorkerMetrics(CollectorRegistry()),
        )
        self.engine.start()

    def _take(self, report: StepReport | None) -> None:
        with self.arrived:
            if report is not None:
                self.reports.append(report)
                for _, output in report.outputs:
                    self.outputs.setdefault(output.id, []).append(output)
                for end in report.ended:
                    self.ended[end.id] = end.cached_tokens
            self.arrived.notify_all()

    def add(
        self,
        name: str,
        tokens: Sequence[int],
        count: int = COUNT,
        drawn: Mapping[str, object] | None = None,
        **fields,
    ) -> None:
        options = {"max_tokens": count, "ignore_eos": True, **(drawn or {})}
        sampling = Sampling(**options)
        payload = Payload(client=name, prompt_tokens=len(tokens), sampling=sampling, **fields)
        self.engine.tell(Add(Dispatch("1-0", name, 0, 0, payload, list(tokens))))

    def wait(self, *names: str) -> list[list[int]]:
        with self.arrived:
            assert self.arrived.wait_for(
                lambda: self.engine.failure is not None or set(names) <= set(self.ended), 120
            )
        assert self.engine.failure is None
        return [[output.token for output in self.outputs[name]] for name in names]

    def close(self) -> None:
        self.engine.tell(Stop())
        assert self.engine.join(10)
        assert self.engine.failure is None
        self.scheduler.check()
        self.scheduler.pool.check()
        assert self.scheduler.pool.available == self.scheduler.pool.num_blocks


# Two tiny models under both ways to step; the demo model as CPUs run it, for it takes minutes.
SERVED = [
    pytest.param((name, ahead), id=f"{name}-{'one step ahead' if ahead else 'in step'}")
    for name in ("tiny-qwen3", "tiny-llama")
    for ahead in (0, 1)
]


@pytest.fixture(
    scope="module",
    params=[*SERVED, pytest.param(("demo", 0), id="demo-in step", marks=pytest.mark.slow)],
)
def served(request, random_model, demo_folder):
    """(the model served, the same one as `transformers` made it, steps ahead), in float32."""
    name, ahead = request.param
    if name == "demo":
        plain = load(demo_folder, dtype="float32").model
        return load(demo_folder, dtype="float32"), plain, ahead
    return *random_model(name), ahead


@pytest.fixture
def drive(served):
    """Start engines; each must end with nothing held."""
    loaded, _, ahead = served
    started = []

    def start(**options) -> Driver:
        started.append(Driver(loaded, lookahead=ahead, **options))
        return started[-1]

    yield start
    for driver in started:
        driver.close()


@pytest.fixture
def expect(served, reference):
    known: dict[tuple[int, ...], list[int]] = {}

    def of(tokens, count=COUNT):
        key = (*tokens, count)
        if key not in known:
            known[key] = reference(served[1], tokens, count)
        return known[key]

    return of


def prompt(length: int, seed: int = 0) -> list[int]:
    draw = random.Random(f"{length} {seed}")
    return [draw.randrange(3, 500) for _ in range(length)]


pytestmark = pytest.mark.timeout(300)


def test_a_cold_prompt(drive, expect):
    driver = drive()
    driver.add("a", prompt(37))
    assert driver.wait("a") == [expect(prompt(37))]
    assert driver.ended["a"] == 0


@pytest.mark.better(1)
def test_a_prefix_hit(drive, expect):
    driver = drive()
    shared = prompt(50)
    driver.add("a", shared)
    driver.wait("a")
    driver.add("b", shared + prompt(20, 1))
    assert driver.wait("b") == [expect(shared + prompt(20, 1))]
    assert driver.ended["b"] == 48


@pytest.mark.better(5)
def test_a_fully_cached_block_aligned_prompt(drive, expect):
    driver = drive()
    driver.add("a", prompt(64))
    driver.add("b", prompt(64))
    first = driver.wait("a", "b")
    driver.add("c", prompt(64))
    assert [*first, *driver.wait("c")] == [expect(prompt(64))] * 3
    assert driver.ended["c"] >= 63
    assert driver.plant.batches[-COUNT].prefills[0].length == 1


def test_a_chunked_prefill(drive, expect):
    driver = drive(budget=24, max_num_seqs=8)
    driver.add("a", prompt(150))
    assert driver.wait("a") == [expect(prompt(150))]
    assert sum(bool(batch.prefills) for batch in driver.plant.batches) >= 7


def test_mixed_batches_of_eight_lengths(drive, expect):
    driver = drive(budget=64, max_num_seqs=8)
    lengths = (1, 5, 16, 31, 32, 47, 90, 140)
    names = [f"r{length}" for length in lengths]
    for name, length in zip(names, lengths, strict=True):
        driver.add(name, prompt(length))
    assert driver.wait(*names) == [expect(prompt(length)) for length in lengths]
    assert any(batch.decodes and batch.prefills for batch in driver.plant.batches)
    assert max(len(batch.rows) for batch in driver.plant.batches) == 8


def test_after_preemption(drive, expect):
    driver = drive(blocks=12)
    names = [f"r{seed}" for seed in range(4)]
    for seed, name in enumerate(names):
        driver.add(name, prompt(40, seed), 28)
    outputs = driver.wait(*names)
    assert outputs == [expect(prompt(40, seed), 28) for seed in range(4)]
    assert any(batch.preempted for batch in driver.plant.batches)


@pytest.mark.bar(30)
def test_after_reclaim_in_a_pool_too_small_for_the_load(drive, expect):
    driver = drive(blocks=10)
    for seed in range(6):
        name = f"r{seed}"
        driver.add(name, prompt(100, seed % 3))
        assert driver.wait(name) == [expect(prompt(100, seed % 3))]
    forgotten = [name for report in driver.reports for name in report.dels]
    assert forgotten


def test_a_resumed_request_goes_on_where_it_was(drive, expect):
    driver = drive()
    whole = expect(prompt(37))
    sampling = Sampling(max_tokens=COUNT, ignore_eos=True)
    payload = Payload(client="a", prompt_tokens=37, sampling=sampling)
    tokens = [*prompt(37), *whole[:5]]
    driver.engine.tell(Add(Dispatch("1-0", "a", 1, 0, payload, tokens)))
    assert driver.wait("a") == [whole[5:]]
    assert [output.index for output in driver.outputs["a"]] == list(range(5, COUNT))


def test_a_stop_string_ends_one_answer_and_not_its_neighbour(drive, expect):
    driver = drive()
    whole = expect(prompt(37))
    stop = f"<{whole[5]}>"
    driver.add("a", prompt(37), drawn={"stop": (stop,)})
    driver.add("b", prompt(33))
    outputs = driver.wait("a", "b")
    assert outputs == [whole[: whole.index(whole[5]) + 1], expect(prompt(33))]
    assert driver.outputs["a"][-1].finish_reason == "stop"
    driver.add("c", prompt(37))
    assert driver.wait("c") == [whole]


def test_a_stop_token_ends_an_answer_where_it_is_drawn(drive, expect):
    driver = drive()
    whole = expect(prompt(37))
    driver.scheduler.stop_ids = frozenset({whole[5]})
    driver.add("a", prompt(37), drawn={"ignore_eos": False})
    assert driver.wait("a") == [whole[: whole.index(whole[5]) + 1]]


def test_drawn_tokens_depend_on_the_request_alone(served, drive):
    settings = {"temperature": 1.0, "top_k": 40, "seed": 7}
    alone = Driver(served[0], lookahead=0)
    alone.add("a", prompt(37), drawn=settings)
    (expected,) = alone.wait("a")
    alone.close()
    driver = drive(budget=24, max_num_seqs=4)
    for seed in range(3):
        driver.add(f"n{seed}", prompt(20, seed), drawn={"temperature": 1.0, "seed": seed})
    driver.add("a", prompt(37), drawn=settings)
    assert driver.wait("a") == [expected]
    assert len(set(expected)) > 1


def test_logprobs_go_to_the_request_that_asked(drive, expect):
    driver = drive()
    driver.add("a", prompt(37), drawn={"logprobs": 2})
    driver.add("b", prompt(33))
    driver.wait("a", "b")
    rows = [json.loads(output.logprobs) for output in driver.outputs["a"]]
    assert [row["top"][0][0] for row in rows] == expect(prompt(37))
    assert [row["top"][0][2] for row in rows] == [row["logprob"] for row in rows]
    assert {output.logprobs for output in driver.outputs["b"]} == {""}


def test_an_abort_frees_its_blocks_and_leaves_its_neighbour_alone(drive, expect):
    driver = drive()
    driver.add("a", prompt(60), 400)
    driver.add("b", prompt(33))
    driver.wait("b")
    driver.engine.tell(Abort("a", "cancelled", "cancelled by its asker"))
    with driver.arrived:
        assert driver.arrived.wait_for(lambda: "a" in driver.ended, 30)
    last = driver.outputs["a"][-1]
    assert (last.code, last.index) == ("cancelled", len(driver.outputs["a"]) - 1)
    assert driver.wait("b") == [expect(prompt(33))]


def test_a_deadline_ends_a_request_that_runs(drive):
    driver = drive()
    driver.add("a", prompt(20), 400, deadline_ms=1)
    with driver.arrived:
        assert driver.arrived.wait_for(lambda: "a" in driver.ended, 30)
    assert driver.outputs["a"][-1].code == "deadline_exceeded"


def test_a_reset_drops_requests_and_reports_the_whole_table(drive):
    driver = drive()
    driver.add("a", prompt(64))
    driver.wait("a")
    driver.add("b", prompt(40, 1), 400)
    driver.engine.tell(Reset("7", forget=True))
    with driver.arrived:
        assert driver.arrived.wait_for(
            lambda: any(report.snapshot is not None for report in driver.reports), 30
        )
        whole = next(report for report in driver.reports if report.snapshot is not None)
    assert whole.epoch == "7"
    assert not whole.outputs
    assert len(whole.snapshot) >= 4


def test_a_request_that_cannot_run_fails_alone(drive, expect):
    driver = drive()
    driver.add("bad", prompt(128 * BLOCK + 1))
    driver.add("good", prompt(20))
    assert driver.wait("good", "bad")[0] == expect(prompt(20))
    (only,) = driver.outputs["bad"]
    assert only.code == "worker_failed"
    assert "cannot run it" in only.message
