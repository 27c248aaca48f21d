"""In bf16, rounding is all that tells the GPU's logits from those of the unpatched model."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=["qwen3-0.6b", "tiny-llama", "tiny-gemma"])
def measured(cuda, request):
    from benchmarks.micro.parity import measure

    return measure(request.param, 400)


@pytest.mark.parametrize("way", ["cold", "hit", "chunked", "decoded"])
def test_the_error_is_that_of_the_unpatched_model(measured, way):
    found = measured[way]
    assert found["mean_error"] < 1.3 * found["plain_mean_error"]
    assert found["max_error"] < 2.0 * found["plain_max_error"]


@pytest.mark.parametrize("way", ["cold", "hit", "chunked", "decoded"])
def test_where_another_token_is_best_the_two_are_all_but_tied(measured, way):
    assert measured[way]["explained_best"] >= 0.99


@pytest.mark.parametrize("way", ["hit", "chunked", "decoded"])
def test_however_it_is_computed_it_is_the_same_within_rounding(measured, way):
    found = measured[way]
    assert found["max_from_cold"] < 2.0 * found["plain_max_error"]
