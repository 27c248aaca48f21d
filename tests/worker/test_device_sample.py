"""The sampler of a device draws what the reference draws."""

from __future__ import annotations

import importlib.util
import itertools
import os

import pytest
import torch

from lmpoold.protocol.request import Sampling
from workers.model.device_sample import DeviceSampler
from workers.model.sample import SamplingRow, filtered, sample

VOCAB = 5000  # two chunks, the last one cut short
GRID = itertools.product((0.3, 1.0, 2.5), (0, 1, 7, 6000), (0.0, 0.4, 0.95, 1.0), (0.0, 0.05, 1.0))
FILTERS = [Sampling(max_tokens=1, temperature=t, top_k=k, top_p=p, min_p=m) for t, k, p, m in GRID]
KERNELS = torch.cuda.is_available() or (
    importlib.util.find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(
    params=[
        "torch",
        pytest.param(
            "triton",
            marks=pytest.mark.skipif(not KERNELS, reason="needs a GPU, or TRITON_INTERPRET=1"),
        ),
    ]
)
def draw(request):
    """Draw through a sampler, by the plain code or by the kernels."""
    samplers = {}

    def get(vocab: int, rows: int) -> DeviceSampler:
        device = "cpu" if request.param == "torch" else DEVICE
        if (vocab, rows) not in samplers:
            samplers[vocab, rows] = DeviceSampler(vocab, rows, device)
        return samplers[vocab, rows]

    def run(logits: torch.Tensor, rows: list[SamplingRow], points=None) -> list[int]:
        sampler = get(logits.shape[1], max(8, len(rows)))
        sampler.fill(rows)
        if points is not None:
            sampler.point[: len(rows)] = torch.tensor(points, dtype=torch.float64)
        if request.param == "torch" or sampler.device.type == "cuda":
            return sampler.draw(logits.to(sampler.device)).tolist()
        from workers.model.triton.draw import Kernels

        kernels = Kernels(sampler.vocab, sampler.max_rows, sampler.device, sampler)
        return kernels.draw(logits).tolist()

    return run


def scores(rows: int, spread: float, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


@pytest.mark.parametrize("spread", [0.05, 3.0], ids=["flat", "peaked"])
def test_tokens_are_those_of_the_reference(draw, spread):
    """Every mix of filters in one batch, seeds and places all different."""
    logits = scores(len(FILTERS), spread)
    different = 0
    for index in range(3):
        rows = [
            SamplingRow(sampling=_seeded(one, seed), index=index)
            for seed, one in enumerate(FILTERS)
        ]
        ours, theirs = draw(logits, rows), sample(logits, rows).tokens
        different += sum(a != b for a, b in zip(ours, theirs, strict=True))
    # a point on the very edge between two tokens may round to the other side
    assert different <= (3 if spread < 1 else 0)


def _seeded(one: Sampling, seed: int) -> Sampling:
    return Sampling(
        max_tokens=1,
        temperature=one.temperature,
        top_k=one.top_k,
        top_p=one.top_p,
        min_p=one.min_p,
        seed=seed,
    )


def test_what_can_be_drawn_is_what_the_filters_keep(draw):
    """Points all over [0, 1), the ends included: no token from outside, none left out."""
    logits = scores(1, 1.0, vocab=60)
    points = [*(at / 997 for at in range(997)), 1 - 2**-53]
    for one in FILTERS:
        kept = filtered(logits, [one])[0]
        likely = kept.softmax(-1) > 2 / 997
        rows = [SamplingRow(sampling=one, index=0)] * len(points)
        drawn = set(draw(logits.expand(len(points), -1).contiguous(), rows, points))
        assert drawn <= set(kept.isfinite().nonzero()[:, 0].tolist()), one
        assert drawn >= set(likely.nonzero()[:, 0].tolist()), one


def test_greedy_and_drawn_rows_share_a_batch(draw):
    logits = scores(4, 3.0)
    greedy = SamplingRow(sampling=Sampling(max_tokens=1), index=0)
    drawn = SamplingRow(sampling=Sampling(max_tokens=1, temperature=2.0, seed=5), index=9)
    rows = [greedy, drawn, greedy, drawn]
    tokens = draw(logits, rows)
    assert tokens == sample(logits, rows).tokens
    assert [tokens[0], tokens[2]] == logits.argmax(-1).tolist()[::2]
    assert draw(logits, [greedy] * 4) == logits.argmax(-1).tolist()


def test_a_row_draws_the_same_whoever_stands_beside_it(draw):
    logits = scores(8, 1.0)
    rows = [SamplingRow(sampling=_seeded(FILTERS[at * 17], at), index=at) for at in range(8)]
    together = draw(logits, rows)
    assert [draw(logits[at : at + 1], [rows[at]])[0] for at in range(8)] == together
    assert draw(logits.flip(0).contiguous(), rows[::-1]) == together[::-1]


def test_equals_of_the_last_token_that_is_kept_stay(draw):
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 0.0, -torch.inf, 2.0, -5.0]])
    one = Sampling(max_tokens=1, temperature=1.0, top_k=2)
    points = [at / 64 for at in range(64)]
    rows = [SamplingRow(sampling=one, index=0)] * 64
    assert set(draw(logits.expand(64, -1).contiguous(), rows, points)) == {1, 2, 3, 6}


def test_masked_tokens_and_lone_survivors_are_no_trouble(draw):
    logits = torch.full((3, VOCAB), -torch.inf)
    logits[0, 4321] = -7.0
    logits[1, [5, 4500]] = 0.0
    logits[2] = 0.0
    one = Sampling(max_tokens=1, temperature=1.0, top_k=50, top_p=0.9, min_p=0.1, seed=3)
    first, second, third = draw(logits, [SamplingRow(sampling=one, index=0)] * 3)
    assert first == 4321
    assert second in (5, 4500)
    assert 0 <= third < VOCAB


def test_shares_are_those_of_the_distribution(draw):
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0, -1.0, 0.5]]).expand(400, -1).contiguous()
    one = Sampling(max_tokens=1, temperature=1.3, top_k=4)
    wanted = filtered(logits[:1], [one])[0].softmax(-1)
    counts = torch.zeros(6)
    for index in range(10):
        rows = [SamplingRow(sampling=_seeded(one, seed), index=index) for seed in range(400)]
        counts += torch.bincount(torch.tensor(draw(logits, rows)), minlength=6)
    assert (counts / counts.sum() - wanted).abs().max() < 0.03


WIDE = 9000
"""Tokens: enough for several chunks, and for more candidates than a row has room for."""
FEW = [
    Sampling(max_tokens=1, temperature=t, top_k=k, top_p=p, min_p=m)
    for t, k, p, m in itertools.product((0.6, 1.5), (1, 20, 256), (0.5, 1.0), (0.0, 0.2))
] + [Sampling(max_tokens=1), Sampling(max_tokens=1, temperature=1.0, min_p=0.05)]
"""Rows of which none searches the whole vocabulary."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_keep_few_tokens_draw_those_of_the_reference(draw, dtype):
    logits = scores(len(FEW), 3.0, vocab=WIDE).to(dtype)
    rows = [SamplingRow(sampling=_seeded(one, at), index=at) for at, one in enumerate(FEW)]
    tokens = draw(logits, rows)
    if dtype is torch.float32:
        assert tokens == sample(logits, rows).tokens
        return
    # Many are equal in bfloat16, and those equal to the last one that is kept stay here.
    for logit, row, token in zip(logits.float(), rows, tokens, strict=True):
        floor = logit.max()
        if row.sampling.temperature:
            floor = logit[filtered(logit[None], [row.sampling])[0].isfinite()].min()
        assert logit[token] >= floor, row


def test_equals_without_room_are_drawn_all_the_same(draw):
    """More tokens equal the k-th best than candidates have room for."""
    logits = torch.zeros(64, WIDE)
    logits[:, 7] = 1.0
    one = Sampling(max_tokens=1, temperature=1.0, top_k=20, top_p=0.95, min_p=0.1)
    points = [at / 64 for at in range(63)] + [1 - 2**-53]
    drawn = draw(logits, [SamplingRow(sampling=one, index=0)] * 64, points)
    assert drawn[0] == 0
    assert drawn == sorted(drawn)
    for token, point in zip(drawn, points, strict=True):
        assert abs(token / WIDE - point) < 0.01, (token, point)


def test_rows_are_told_apart_by_whether_they_search_the_vocabulary():
    sampler = DeviceSampler(100, 4, "cpu")
    for one, few in (
        (Sampling(max_tokens=1, temperature=1.0, top_k=20, top_p=0.9), True),
        (Sampling(max_tokens=1, temperature=1.0, min_p=0.1), True),
        (Sampling(max_tokens=1, temperature=1.0, top_p=0.9), False),
        (Sampling(max_tokens=1, temperature=1.0, top_k=100, top_p=0.9), False),  # all of them
        (Sampling(max_tokens=1, top_p=0.9), True),  # greedy, whatever it says
    ):
        sampler.fill([SamplingRow(sampling=one, index=0)])
        assert sampler.few is few, one
    sampler = DeviceSampler(1000, 4, "cpu")
    sampler.fill(
        [SamplingRow(sampling=Sampling(max_tokens=1, temperature=1.0, top_k=257), index=0)]
    )
    assert not sampler.few


def test_too_many_rows_are_refused():
    sampler = DeviceSampler(10, 2, "cpu")
    with pytest.raises(ValueError, match="room for 2"):
        sampler.fill([SamplingRow(sampling=FILTERS[0], index=0)] * 3)


def test_rows_that_are_all_greedy_are_told_apart():
    sampler = DeviceSampler(10, 2, "cpu")
    greedy, drawn = Sampling(max_tokens=1), Sampling(max_tokens=1, temperature=1.0)
    seen = []
    for one in (greedy, drawn, greedy):
        sampler.fill([SamplingRow(sampling=one, index=0)])
        seen.append(sampler.greedy)
    assert seen == [True, False, True]
    logits = scores(2, 1.0, vocab=10)
    assert sampler.draw(logits).tolist() == sampler.draw_greedy(logits).tolist()
