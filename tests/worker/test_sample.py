"""The sampler draws what `transformers` would, from the row's own seed and nothing else."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from lmpoold.protocol.request import Sampling
from workers.model.sample import SamplingRow, filtered, pick, sample, uniform

FILTERS = list(
    itertools.product((0.3, 1.0, 2.5), (0, 1, 7, 5000), (0.0, 0.4, 0.95, 1.0), (0.0, 0.05, 1.0))
)


def sampling(**settings) -> Sampling:
    return Sampling(max_tokens=1, **settings)


def logits(rows: int, vocab: int, spread: float = 3.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def draw(scores: torch.Tensor, *rows: tuple[Sampling, int]) -> list[int]:
    return sample(scores, [SamplingRow(sampling=s, index=i) for s, i in rows]).tokens


def warped(scores: torch.Tensor, settings: Sampling) -> torch.Tensor:
    warpers = LogitsProcessorList([TemperatureLogitsWarper(settings.temperature)])
    if settings.top_k:
        warpers.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1.0:
        warpers.append(TopPLogitsWarper(settings.top_p))
    if settings.min_p > 0.0:
        warpers.append(MinPLogitsWarper(settings.min_p))
    return warpers(torch.zeros(1, 1, dtype=torch.int64), scores)


@pytest.mark.parametrize("spread", [0.05, 3.0], ids=["flat", "peaked"])
def test_filters_keep_what_the_warpers_of_transformers_keep(spread):
    """All of them in one batch; the flat rows' nuclei are wider than the first look."""
    rows = [sampling(temperature=t, top_k=k, top_p=p, min_p=m) for t, k, p, m in FILTERS]
    scores = logits(len(rows), 3000, spread)
    ours = filtered(scores, rows)
    for at, row in enumerate(rows):
        theirs = warped(scores[at : at + 1], row)[0]
        differing = (ours[at].isfinite() != theirs.isfinite()).sum().item()
        # summing from the other end, a token on the very edge of a wide nucleus may round over
        assert differing <= (2 if spread < 1 and row.top_p < 1 else 0), row
        both = ours[at].isfinite() & theirs.isfinite()
        assert torch.equal(ours[at][both], theirs[both]), row


def test_ties_at_the_kth_best_all_stay():
    scores = torch.tensor([[1.0, 3.0, 2.0, 2.0, 0.0]])
    kept = filtered(scores, [sampling(temperature=1.0, top_k=2)]).isfinite()
    assert kept.tolist() == [[False, True, True, True, False]]


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0},
        {"temperature": 0.6, "top_k": 6},
        {"temperature": 1.5, "top_p": 0.7},
        {"temperature": 1.0, "min_p": 0.2},
        {"temperature": 2.0, "top_k": 15, "top_p": 0.9, "min_p": 0.05},
    ],
)
def test_draws_follow_the_distribution(settings):
    count = 20_000
    scores = logits(1, 20, 1.5).expand(count, -1)
    row = sampling(seed=11, **settings)
    tokens = draw(scores, *((row, index) for index in range(count)))
    seen = torch.bincount(torch.tensor(tokens), minlength=20).double()
    expected = warped(scores[:1], row)[0].double().softmax(-1) * count
    assert seen[expected == 0].sum() == 0
    likely = expected > 5
    chi_square = ((seen - expected) ** 2 / expected)[likely].sum().item()
    assert chi_square < 50  # 19 degrees of freedom: p < 2e-4 beyond 50


def test_temperature_zero_is_the_argmax_and_ignores_the_filters():
    scores = logits(4, 100)
    rows = [
        (sampling(), 0),
        (sampling(seed=5), 9),
        (sampling(top_k=3), 0),
        (sampling(top_p=0.1), 0),
    ]
    assert draw(scores, *rows) == scores.argmax(-1).tolist()


@pytest.mark.parametrize(
    "settings", [{"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}, {"temperature": 1e-7}]
)
def test_the_narrowest_filter_leaves_the_best_token(settings):
    scores = logits(8, 500)
    row = sampling(**{"temperature": 1.0, **settings})
    assert draw(scores, *((row, index) for index in range(8))) == scores.argmax(-1).tolist()


def test_a_draw_does_not_depend_on_its_neighbours_or_its_place():
    scores = logits(6, 800)
    kinds = [
        sampling(temperature=1.0, seed=1),
        sampling(),
        sampling(temperature=0.7, top_p=0.9, seed=2),
        sampling(temperature=1.2, top_k=40, seed=3),
        sampling(temperature=1.0, min_p=0.02, seed=2**64 - 1),
        sampling(temperature=1.0, top_k=2000, seed=-(2**63)),
    ]
    rows = [(kind, 40 + at) for at, kind in enumerate(kinds)]
    together = draw(scores, *rows)
    assert [draw(scores[at : at + 1], row)[0] for at, row in enumerate(rows)] == together
    assert draw(scores.flip(0), *reversed(rows)) == together[::-1]


def test_seed_and_index_both_change_the_draws():
    scores = logits(1, 50, 0.5).expand(40, -1)
    by_index = draw(scores, *((sampling(temperature=1.0, seed=4), i) for i in range(40)))
    by_seed = draw(scores, *((sampling(temperature=1.0, seed=i), 4) for i in range(40)))
    assert len(set(by_index)) > 15
    assert len(set(by_seed)) > 15
    assert by_index != by_seed


@pytest.mark.parametrize(("point", "token"), [(0.0, 1), (0.4999, 1), (0.5, 3), (1 - 2.0**-52, 3)])
def test_a_token_of_no_probability_is_not_drawn_even_on_the_edge(point, token):
    scores = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    assert pick(scores, [point]).tolist() == [token]


@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 10**6))
def test_the_uniform_number_lies_in_the_half_open_interval(seed, index):
    assert 0.0 <= uniform(seed, index) < 1.0


def test_logprobs_are_those_of_the_raw_logits():
    scores = logits(3, 64)
    rows = [
        SamplingRow(sampling=sampling(temperature=2.0, top_k=5, seed=3, logprobs=4), index=0),
        SamplingRow(sampling=sampling(), index=0),
        SamplingRow(sampling=sampling(logprobs=0), index=0),
    ]
    result = sample(scores, rows)
    expected = scores.log_softmax(-1)
    first, none, bare = result.logprobs
    assert none is None
    assert first is not None
    assert bare is not None
    assert first.chosen == pytest.approx(expected[0, result.tokens[0]].item())
    assert [token for token, _ in first.top] == expected[0].topk(4).indices.tolist()
    assert [value for _, value in first.top] == pytest.approx(expected[0].topk(4).values.tolist())
    assert (bare.chosen, bare.top) == (pytest.approx(expected[2].max().item()), ())


def test_a_missing_sampling_row_is_refused():
    with pytest.raises(ValueError, match="1 sampling rows for 2 rows"):
        draw(logits(2, 10), (sampling(), 0))
