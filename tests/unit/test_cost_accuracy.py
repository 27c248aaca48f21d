"""The cost model against transfers that it was not fitted to: recorded ones, so the figures stand.

The processors' transfers were recorded by `benchmarks.micro.cost` on two shared cores; the GPUs' by
`benchmarks.micro.transfer` on two H200, percentiles by size.
"""

import json
from itertools import pairwise

import pytest

from benchmarks.micro.cost import Accuracy, accuracy, evaluate, read_recorded
from lmpoold.core.cost import CostModel
from lmpoold.protocol.calibration import Sample, fit
from lmpoold.protocol.profile import Curve
from tests.house.tree import ROOT

RESULTS = ROOT / "benchmarks" / "results"
CPU = json.loads((RESULTS / "cpu" / "transfers.json").read_text(encoding="utf-8"))
H200 = json.loads((RESULTS / "nvidia-h200-x2" / "transfer.json").read_text(encoding="utf-8"))


def judged() -> dict[str, Accuracy]:
    fitted, held_out = read_recorded(CPU)
    return evaluate(fitted, held_out, CPU["block_bytes"], CPU["way"])


def test_a_calibrated_profile_covers_nineteen_of_twenty_transfers_held_out():
    assert judged()["calibrated"].covered == pytest.approx(0.95, abs=0.04)


def test_what_was_learnt_comes_closer_than_calibration_alone():
    found = judged()
    assert found["learning"].mean_error < 0.7 * found["calibrated"].mean_error
    assert abs(found["learning"].bias) < 0.7 * abs(found["calibrated"].bias)


def test_the_archive_holds_the_accuracy_that_its_transfers_give():
    for name, row in judged().items():
        for field, value in CPU["accuracy"][name].items():
            assert getattr(row, field) == pytest.approx(value)


@pytest.mark.parametrize("block_tokens", [16, 64, 256])
def test_copies_between_gpus_of_sizes_left_out_are_within_a_fifth(block_tokens):
    rows = {
        row["blocks"]: row
        for row in H200["rows"]
        if (row["transport"], row["block_tokens"]) == ("peer", block_tokens)
    }
    fitted, left_out = (1, 4, 16, 64), (2, 8, 32, 128)
    curve = Curve(tuple((blocks, 1000 * rows[blocks]["p95_ms"]) for blocks in fitted))
    predicted = [curve.at(blocks) for blocks in left_out]
    found = accuracy(predicted, [1000 * rows[blocks]["p95_ms"] for blocks in left_out])
    assert found.mean_error < 0.2
    assert found.median_error < 0.12
    medians = accuracy(predicted, [1000 * rows[blocks]["p50_ms"] for blocks in left_out])
    assert medians.covered >= 0.75


def test_the_figures_are_what_their_names_say():
    found = accuracy([110.0, 90.0, 100.0, 150.0], [100.0, 100.0, 100.0, 100.0])
    assert found == Accuracy(
        transfers=4,
        covered=0.75,
        median_error=pytest.approx(0.1),
        mean_error=pytest.approx(0.175),
        bias=pytest.approx(0.125),
    )


@pytest.mark.parametrize(("before", "after"), [(1000.0, 4000.0), (4000.0, 1000.0)])
def test_predictions_rise_and_fall_with_what_plans_take(before, after):
    """A link that becomes slower or faster is followed, either way alike."""
    pair = (0, 1)
    profile = fit([Sample(pair, 8, 0.5 * before, before) for _ in range(20)], 1 << 20)
    model = CostModel(profile=profile, interference=1.0)
    said = []
    for turn in range(20):
        said.append(model.predict(pair, 8, "gloo", float(turn)))
        model = model.learn(pair, 8, "gloo", after, float(turn))
    gaps = [abs(one - after) for one in said]
    assert all(later < earlier for earlier, later in pairwise(gaps))
    assert gaps[-1] < 0.15 * gaps[0]
