import json

import pytest

from benchmarks.sim.engine import DEFAULT, RESULT, fit, fit_prefill, measured


@pytest.fixture
def result():
    return json.loads(RESULT.read_text(encoding="utf-8"))


@pytest.mark.parametrize("model", ["0.6b", "1.7b"])
def test_the_model_gives_back_what_was_measured(result, model):
    engine = fit(result, model)
    for batch, ms in result["decode_ms"][model].items():
        seconds = engine.decode_step_s(int(batch), int(batch) * result["context_tokens"])
        assert seconds * 1000 == pytest.approx(ms, rel=1e-6)
    for row in result["prefill"]:
        if row["model"] == model:
            cached = row["tokens"] - row["new_tokens"]
            seconds = engine.prefill_s(row["new_tokens"], cached, alone=True)
            assert seconds * 1000 == pytest.approx(row["step_ms"], rel=0.08)


def test_steps_grow_with_batch_and_with_context_and_between_what_was_measured():
    steps = [DEFAULT.decode_step_s(batch, batch * 1024) for batch in (1, 4, 8, 30, 64, 256, 300)]
    assert steps == sorted(steps)
    assert len(set(steps)) == len(steps)
    assert DEFAULT.decode_step_s(8, 80_000) > DEFAULT.decode_step_s(8, 8_000)
    assert DEFAULT.decode_step_s(1, 1) > 0


def test_cached_tokens_are_attended_to_but_not_computed():
    cold = DEFAULT.prefill_s(8192, 0, alone=True)
    hit = DEFAULT.prefill_s(1024, 7168, alone=True)
    short = DEFAULT.prefill_s(1024, 0, alone=True)
    assert short < hit < cold
    assert DEFAULT.prefill_s(1024, 0, alone=False) < short


def test_the_fit_finds_the_constants_that_made_the_rows():
    made = [(n, c, 1.0 + 0.002 * n + 7e-7 * n * n / 2 + 5e-7 * n * c) for n in (64, 1024, 8192)
            for c in (0, 4096)]  # fmt: skip
    assert fit_prefill(made) == pytest.approx((1.0, 0.002, 7e-7, 5e-7), rel=1e-6)


def test_without_an_archived_run_a_built_in_engine_serves(tmp_path):
    assert measured(path=tmp_path / "none.json") is DEFAULT
