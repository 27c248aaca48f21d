"""The best token of a row, as torch finds it: the first one of equals, whatever the width."""

from __future__ import annotations

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("rows", "vocab"), [(1, 40), (3, 4096), (5, 4097), (2, 12_345)])
def test_it_is_the_first_of_the_largest(device, generator, dtype, rows, vocab):
    from workers.model.triton.best import Best

    best = Best(vocab, 8, device)
    logits = torch.randn(rows, vocab, generator=generator, device=device).to(dtype)
    wanted = logits.float().max(-1, keepdim=True).values == logits.float()
    out = torch.full((rows,), -1, dtype=torch.int64, device=device)
    best(logits, out)
    assert out.tolist() == wanted.int().argmax(-1).tolist()


def test_of_equal_ones_the_first_is_taken_across_chunks_too(device):
    from workers.model.triton.best import Best

    logits = torch.zeros(3, 9000, device=device)
    logits[1, [4095, 4096, 8999]] = 1.0
    logits[2] = -float("inf")
    logits[2, 8998:] = -1.0
    out = torch.full((3,), -1, dtype=torch.int64, device=device)
    Best(9000, 3, device)(logits, out)
    assert out.tolist() == [0, 4095, 8998]


def test_rows_of_a_wider_buffer_are_read_by_their_stride(device, generator):
    from workers.model.triton.best import Best

    wide = torch.randn(4, 700, generator=generator, device=device)
    wide[:, 500:] = 99.0
    out = torch.full((4,), -1, dtype=torch.int64, device=device)
    Best(500, 4, device)(wide[:, :500], out)
    assert out.tolist() == wide[:, :500].argmax(-1).tolist()
