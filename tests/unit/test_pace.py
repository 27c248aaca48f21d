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


def test_what_a_step_takes_in_any_case_is_not_the_prompts():
    pace = Pace()
    pace.observe(0, 1, 0.006)
    for _ in range(2):
        pace.observe(1000, 1, 0.106)
    assert pace.prefill_us == pytest.approx(100.0)


def test_a_decode_step_of_many_rows_takes_no_more_than_half_off():
    pace = Pace()
    pace.observe(0, 256, 0.05)
    for _ in range(2):
        pace.observe(1000, 1, 0.02)
    assert pace.prefill_us == pytest.approx(10.0)


def test_short_steps_among_long_ones_hardly_count():
    pace = Pace()
    for _ in range(30):
        pace.observe(1000, 0, 0.1)
        pace.observe(10, 0, 0.005)
    assert pace.prefill_us == pytest.approx(100.0, rel=0.06)


def test_no_sample_is_beyond_reason():
    pace = Pace()
    for _ in range(2):
        pace.observe(16, 0, 1e9)
    assert pace.prefill_us == MOST_US


def test_a_step_is_expected_to_take_what_ones_like_it_took():
    pace = Pace()
    assert (pace.expect_s(1000), pace.expect_s(0)) == (0.0, 0.0)
    pace.observe(0, 8, 0.003)
    assert (pace.expect_s(1000), pace.expect_s(0)) == (0.0, 0.003)
    for _ in range(2):
        pace.observe(1000, 8, 0.013)
    assert pace.expect_s(1000) == pytest.approx(0.013)
    assert pace.expect_s(2000) == pytest.approx(0.023)
