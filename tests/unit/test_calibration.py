"""From measured transfers to what the cost model reads."""

import random

import pytest

from ctl.measured import measured_json, measured_sheets, profile_sheet
from ctl.probing import Measured
from ctl.render import plain
from lmpoold.core.cost import CostModel
from lmpoold.protocol.calibration import Sample, fit, merged, percentile, points_of
from lmpoold.protocol.profile import Profile

PAIR, BACK = (0, 1), (1, 0)
BYTES = 1000


def samples(blocks, travels, rest=50.0, pair=PAIR, serving=False):
    return [Sample(pair, blocks, us, us + rest, serving) for us in travels]


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1), (0.05, 1), (0.5, 10), (0.95, 19), (0.951, 20), (1.0, 20)]
)
def test_a_percentile_is_the_least_value_that_covers_the_share(share, value):
    drawn = random.Random(share).sample(range(1, 21), 20)
    assert percentile(drawn, share) == value


def test_nothing_has_no_percentile():
    with pytest.raises(ValueError, match="no percentile"):
        percentile([], 0.5)


def test_the_fit_covers_what_it_was_made_of():
    draw = random.Random(3)
    found = [
        Sample(PAIR, blocks, travel, travel + draw.uniform(100, 300))
        for blocks in (1, 2, 4, 8, 16)
        for travel in (draw.uniform(0.9, 1.1) * (20 + 10 * blocks) for _ in range(40))
    ]
    model = CostModel(profile=fit(found, BYTES), interference=1.0)
    covered = [one.total_us <= model.predict(PAIR, one.blocks, "gloo", 0.0) for one in found]
    assert sum(covered) / len(covered) >= 0.95


def test_each_pair_has_its_own_curve_and_residuals():
    profile = fit(samples(4, [40.0, 44.0]) + samples(4, [80.0], 9.0, BACK), BYTES)
    assert profile.curves[PAIR].points == ((4 * BYTES, 44.0),)
    assert profile.curves[BACK].points == ((4 * BYTES, 80.0),)
    assert (profile.residual(PAIR, 4), profile.residual(BACK, 4)) == (50.0, 9.0)
    assert profile.slowing == {}


def test_travel_that_no_clock_saw_still_makes_a_curve():
    assert fit(samples(1, [0.0]), BYTES).curves[PAIR].points == ((BYTES, 1.0),)


def test_what_was_measured_beside_computing_slows_the_bytes_and_nothing_else():
    idle = samples(4, [40.0]) + samples(8, [80.0])
    beside = samples(4, [60.0], serving=True) + samples(8, [120.0], 500.0, serving=True)
    profile = fit(idle + beside, BYTES)
    assert profile.slowing == {PAIR: 1.5}
    assert profile.curves == fit(idle, BYTES).curves
    assert profile.residuals == fit(idle, BYTES).residuals
    model = CostModel(profile=profile, interference=9.0)
    assert model.predict(PAIR, 8, "gloo", 0.0) == pytest.approx(1.5 * 80 + 50)


def test_computing_makes_no_link_faster():
    found = samples(4, [40.0]) + samples(4, [30.0], serving=True)
    assert fit(found, BYTES).slowing == {PAIR: 1.0}


def test_samples_beside_computing_alone_make_no_profile():
    assert fit(samples(4, [40.0], serving=True), BYTES) == Profile(block_bytes=BYTES)


def test_a_link_that_was_not_measured_keeps_what_was_known_of_it():
    old = fit(samples(4, [40.0]) + samples(4, [70.0], pair=BACK), BYTES)
    new = fit(samples(4, [90.0]), BYTES)
    both = merged(new, old)
    assert both.curves == {PAIR: new.curves[PAIR], BACK: old.curves[BACK]}
    assert both.residuals == {PAIR: new.residuals[PAIR], BACK: old.residuals[BACK]}
    assert merged(new, fit(samples(4, [1.0], pair=BACK), 2 * BYTES)) == new
    assert merged(new, None) == new


def test_measuring_anew_forgets_how_the_old_measurement_was_slowed():
    old = fit(samples(4, [40.0]) + samples(4, [80.0], serving=True), BYTES)
    assert old.slowing == {PAIR: 2.0}
    assert merged(fit(samples(4, [40.0]), BYTES), old).slowing == {}


def test_a_profile_with_slowing_comes_back_and_one_without_can_still_be_read():
    profile = fit(samples(4, [40.0]) + samples(4, [80.0], serving=True), BYTES)
    assert Profile.decode(profile.encode()) == profile
    old = '{"block_bytes":1000,"curves":{"0>1":[[4000,40.0]]},"residuals":{"0>1":{"4":50}}}'
    assert Profile.decode(old).slowing == {}


def test_the_table_shows_each_size_and_says_what_was_not_measured():
    found = [
        Measured(PAIR, samples(1, [500.0]) + samples(2, [2000.0, 3000.0]), most_blocks=2),
        Measured(BACK, why="its ranks served requests"),
    ]
    profile = fit(found[0].samples, BYTES * BYTES)
    points, remarks = measured_sheets(found, profile, 8)
    assert [row[:6] for row in points.rows] == [
        ("0>1", "1", "1.0", "0.50", "0.50", "2.00"),
        ("0>1", "2", "2.0", "2.00", "3.00", "1.00"),
    ]
    assert "0>1   up to 2 blocks only" in plain(remarks)
    assert "1>0   its ranks served requests" in plain(remarks)
    said = measured_json(found, profile, 8)
    assert said["block_bytes"] == BYTES * BYTES
    assert [len(link["points"]) for link in said["links"]] == [2, 0]
    assert said["links"][0]["points"][1]["travel_p95_us"] == 3000.0
    kept = plain(profile_sheet(profile))
    assert "0>1        2           3.00     0.05" in kept


def test_a_full_measurement_has_no_remark():
    found = [Measured(PAIR, samples(8, [500.0]), most_blocks=8)]
    (points,) = measured_sheets(found, fit(found[0].samples, BYTES), 8)
    assert len(points.rows) == 1
    assert points_of(found[0].samples, BACK) == []
