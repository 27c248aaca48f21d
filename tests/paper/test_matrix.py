"""The matrix over real processes: interrupted, taken up, and written down."""

import asyncio
import json

import pytest

from benchmarks.paper.load import at_rate, one_phase, rhythm_of
from benchmarks.paper.matrix import Matrix, Settings, result_name
from benchmarks.paper.plots import plot_matrix
from benchmarks.paper.replay import trace_workload
from benchmarks.paper.workloads import workload
from benchmarks.traces import Trace, TraceRequest

SMALL = Settings(requests=16, chars=6, repetitions=1, modes=("multi-gpu", "kv-routing"))


class Interrupted(Exception):
    pass


@pytest.mark.timeout(240)
@pytest.mark.slow
def test_an_interrupted_matrix_goes_on_where_it_was_and_every_trial_begins_empty(tmp_path):
    said = []

    def stop_after_the_first(line):
        said.append(line)
        if line.startswith("[1/"):
            raise Interrupted

    with pytest.raises(Interrupted):
        asyncio.run(Matrix(("routing-5x",), SMALL, tmp_path).run(stop_after_the_first))
    path = tmp_path / "routing-tiny-qwen3-5x.json"
    first = json.loads(path.read_text())
    assert list(first["results"]) == ["multi-gpu"]
    assert first["metadata"]["complete"] is False

    said.clear()
    found = asyncio.run(Matrix(("routing-5x",), SMALL, tmp_path).run(said.append))["routing-5x"]
    assert said[1] == "1 of 2 trials are there already"
    assert found == json.loads(path.read_text())
    assert found["metadata"]["complete"] is True
    assert found["metadata"]["dataset_profile"]["total_requests"] == 16
    in_turn, routed = (found["results"][mode]["trials"] for mode in SMALL.modes)
    assert in_turn == first["results"]["multi-gpu"]["trials"]
    assert [row["requests"] for row in in_turn[0]["ranks"]] == [8, 8]
    # Sixteen groups, one request each: whatever is found was left by another trial.
    assert in_turn[0]["workers"]["token_reuse"] == routed[0]["workers"]["token_reuse"] == 0
    assert routed[0]["same_answers_share"] == 1
    assert routed[0]["requests"] == 16
    assert routed[0]["ttft_ms"]["mean"] > 0
    assert plot_matrix(found, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_results_are_named_by_workload_model_and_variant():
    assert result_name("routing-3x", SMALL) == "routing-tiny-qwen3-3x.json"
    oracle = Settings(model="random:qwen3-1.7b", oracle=True)
    assert result_name("load-skew", oracle) == "load-skew-qwen3-1.7b-oracle.json"


def test_arrivals_by_poisson_come_at_the_rate_and_by_the_seed():
    draw = rhythm_of(4000, None)
    times_s = draw(50.0, 1)
    assert times_s == draw(50.0, 1) != draw(50.0, 2)
    assert times_s == sorted(times_s)
    assert 4000 / times_s[-1] == pytest.approx(50, rel=0.1)


def test_the_rhythm_of_a_trace_is_kept_at_another_rate():
    assert at_rate([10.0, 11.0, 11.0, 14.0], 1.5) == [0.0, 0.5, 0.5, 2.0]


def test_a_trace_becomes_prompts_that_share_what_its_ids_share():
    requests = (
        TraceRequest(0.0, 100, 16, (7, 8, 9)),
        TraceRequest(1.0, 100, 8, (7, 8, 5)),
        TraceRequest(2.5, 90, 1, (1, 8, 9)),
        TraceRequest(3.0, 9000, 1, (7,)),
    )
    trace = Trace("toy", 32, requests)
    work, times_s, left_out = trace_workload(trace, shrink=2, longest=1000, cache_tokens=640)
    first, second, third = (prompt.text for prompt in work.prompts)
    assert (len(first), len(second), len(third)) == (50, 50, 45)
    assert first[:32] == second[:32]
    assert first[32:48] != second[32:48]
    assert first[48:] != second[48:], "tails are nobody else's"
    assert first[:16] != third[:16]
    assert first[16:45] == third[16:45]
    assert [prompt.max_tokens for prompt in work.prompts] == [8, 4, 1]
    assert (times_s, left_out, work.budget_tokens) == ([0.0, 1.0, 2.5], 1, 320)


def test_an_open_loop_has_no_barriers():
    work = workload("memory-skew", seed=0, chars=6)
    assert [phase.name for phase in one_phase(work).phases] == ["all"]
    assert one_phase(work).prompts == work.prompts
