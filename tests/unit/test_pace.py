"""How fast a worker prefills, as it learns it."""

import pytest

from workers.core.pace import MOST_US, Pace


@pytest.mark.better(20)
def test_the_first_step_of_each_shape_is_left_out():
    pace = Pace()
    pace.observe(100, 0, 9.0)
    assert pace.prefill_us is None
    pace.observe(100, 0, 0.01)
    assert pace.prefill_us == pytest.approx(100.0)
    pace.observe(1000, 0, 9.0)
    assert pace.prefill_us == pytest.approx(100.0)


def test_it_follows_up_and_down():
    pace = Pace()
    for took_s in (0.01, *[0.01] * 3, *[0.02] * 40):
        pace.observe(100, 0, took_s)
    assert pace.prefill_us == pytest.approx(200.0, rel=0.01)
    for _ in range(40):
        pace.observe(100, 0, 0.005)
    assert pace.prefill_us == pytest.approx(50.0, rel=0.01)


def test_steps_that_mostly_decode_say_nothing():
    pace = Pace()
    for _ in range(3):
        pace.observe(0, 5, 1.0)
        pace.observe(8, 5, 1.0)
    assert (pace.prefill_us, pace.samples) == (None, 0)


def test_no_sample_is_beyond_reason():
    pace = Pace()
    for _ in range(2):
        pace.observe(16, 0, 1e9)
    assert pace.prefill_us == MOST_US


def test_a_step_is_expected_to_take_what_ones_like_it_took():
    pace = Pace()
    assert (pace.expect_s(1000, 0), pace.expect_s(0, 8)) == (0.0, 0.0)
    for _ in range(2):
        pace.observe(1000, 0, 0.01)
    pace.observe(0, 8, 0.003)
    assert pace.expect_s(2000, 0) == pytest.approx(0.02)
    assert pace.expect_s(1990, 10) == pytest.approx(0.02)
    assert pace.expect_s(0, 9) == pytest.approx(0.003)
