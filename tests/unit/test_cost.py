"""What moving blocks is predicted to take."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpoold.core.cost import (
    GUESSES,
    HALF_LIFE_S,
    MOST_RATIO,
    RESIDUAL_GUESS_US,
    CostModel,
)
from lmpoold.protocol.errors import ConfigError, DecodeError
from lmpoold.protocol.profile import Curve, Profile, bucket

PAIR = (0, 1)
MB = 1 << 20
CURVE = Curve(((MB, 100.0), (4 * MB, 400.0), (8 * MB, 500.0)))
PROFILE = Profile(
    block_bytes=MB, curves={PAIR: CURVE}, residuals={PAIR: {1: 50.0, 4: 30.0, 8: 90.0}}
)
MODEL = CostModel(profile=PROFILE, interference=1.0)


@pytest.mark.parametrize(
    ("size", "us"),
    [(1, 100.0), (MB, 100.0), (2 * MB, 200.0), (4 * MB, 400.0), (6 * MB, 450.0), (12 * MB, 600.0)],
)
def test_a_curve_is_read_between_its_points_and_beyond_them(size, us):
    assert CURVE.at(size) == pytest.approx(us)


def test_a_curve_with_one_point_grows_with_the_bytes():
    assert Curve(((MB, 10.0),)).at(3 * MB) == pytest.approx(30.0)


def test_a_flat_end_grows_with_the_bytes_all_the_same():
    assert Curve(((MB, 10.0), (2 * MB, 10.0))).at(4 * MB) == pytest.approx(20.0)


@given(
    points=st.lists(st.tuples(st.integers(1, 10**9), st.floats(1, 1e6)), min_size=1, max_size=6),
    sizes=st.lists(st.integers(1, 2 * 10**9), min_size=2, max_size=5),
)
def test_more_bytes_never_take_less(points, sizes):
    curve = Curve(tuple(sorted(dict(points).items())))
    times = [curve.at(size) for size in sorted(sizes)]
    assert all(low <= high * (1 + 1e-9) for low, high in itertools.pairwise(times))


@pytest.mark.parametrize(
    "points", [(), ((0, 1.0),), ((2, 1.0), (1, 2.0)), ((1, 0.0),), ((1, float("nan")),)]
)
def test_points_that_are_no_curve_are_refused(points):
    with pytest.raises(ConfigError, match="a transfer curve needs"):
        Curve(points)


@pytest.mark.parametrize(("blocks", "power"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (64, 64)])
def test_blocks_fall_under_the_next_power_of_two(blocks, power):
    assert bucket(blocks) == power


@pytest.mark.parametrize(("blocks", "us"), [(1, 50.0), (2, 50.0), (4, 50.0), (8, 90.0), (64, 90.0)])
def test_the_residual_never_falls_with_the_blocks(blocks, us):
    assert PROFILE.residual(PAIR, blocks) == us


def test_without_a_measurement_the_way_is_guessed_by():
    model = CostModel(profile=Profile(block_bytes=MB), interference=1.0)
    assert model.predict(PAIR, 1, "peer", 0.0) == GUESSES["peer"].at(MB) + RESIDUAL_GUESS_US
    peer, nccl, gloo = (model.predict(PAIR, 8, way, 0.0) for way in ("peer", "nccl", "gloo"))
    assert peer < nccl < gloo


def test_interference_makes_the_bytes_slower_and_not_the_words():
    loud = CostModel(profile=PROFILE, interference=2.0)
    assert loud.predict(PAIR, 4, "nccl", 0.0) == pytest.approx(2 * 400.0 + 50.0)


@pytest.mark.better(20)
@pytest.mark.parametrize("took", [10.0, 5000.0])
def test_what_happens_pulls_the_prediction_both_ways(took):
    model, before = MODEL, MODEL.predict(PAIR, 4, "nccl", 0.0)
    gaps = [abs(took - before)]
    for _ in range(20):
        model = model.learn(PAIR, 4, "nccl", took, 0.0)
        gaps.append(abs(took - model.predict(PAIR, 4, "nccl", 0.0)))
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 0.15 * gaps[0]


@pytest.mark.better(20)
def test_an_old_sample_loses_its_say():
    model = MODEL
    for _ in range(8):
        model = model.learn(PAIR, 4, "nccl", 5000.0, 0.0)
    now, later, much_later = (
        model.predict(PAIR, 4, "nccl", at_s) for at_s in (0.0, HALF_LIFE_S, 40 * HALF_LIFE_S)
    )
    assert now > later > much_later
    assert much_later == pytest.approx(MODEL.predict(PAIR, 4, "nccl", 0.0), rel=1e-6)


def test_a_sample_says_nothing_of_another_pair():
    model = MODEL.learn(PAIR, 4, "nccl", 9999.0, 0.0)
    assert model.predict((1, 0), 4, "nccl", 0.0) == MODEL.predict((1, 0), 4, "nccl", 0.0)


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_a_pair_that_differs_from_what_is_known_differs_at_every_size(factor):
    model = MODEL
    for _ in range(12):
        model = model.learn(PAIR, 4, "nccl", factor * MODEL.prior(PAIR, 4, "nccl"), 0.0)
    for blocks in (1, 8, 64):
        known = MODEL.predict(PAIR, blocks, "nccl", 0.0)
        assert model.predict(PAIR, blocks, "nccl", 0.0) == pytest.approx(factor * known, rel=0.2)


@pytest.mark.better(20)
def test_one_plan_that_stood_still_says_little_of_other_sizes():
    model = MODEL.learn(PAIR, 4, "nccl", 1e9, 0.0)
    known = MODEL.predict(PAIR, 8, "nccl", 0.0)
    assert model.predict(PAIR, 8, "nccl", 0.0) <= (1 + (MOST_RATIO - 1) / 3) * known * 1.001


def test_the_line_goes_through_both_sizes():
    line = MODEL.line(PAIR, "nccl", 0.0, sizes=(1, 8))
    for blocks in (1, 8):
        wanted = MODEL.predict(PAIR, blocks, "nccl", 0.0)
        assert line.fixed_us + blocks * line.block_us == pytest.approx(wanted)
    assert str(line) == f"{line.fixed_us:.0f} {line.block_us:.0f}"


def test_a_profile_comes_back_as_it_was_written():
    assert Profile.decode(PROFILE.encode()) == PROFILE


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"block_bytes":1,"curves":{"0>1":[]},"residuals":{}}', '{"curves":3}']
)
def test_what_is_no_profile_is_refused(text):
    with pytest.raises(DecodeError, match="not a transfer profile"):
        Profile.decode(text)
