"""Logits to tokens.

A draw depends on the row's logits, seed and output index alone: one uniform number is hashed from
(seed, index) and looked up in the row's cumulative distribution. So neighbours in the batch,
preemption and a retry on another worker change nothing. Filters have the order and meaning of
`transformers`' logits warpers: temperature, top_k, top_p, min_p.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import xxhash
from torch import Tensor

from lmpoold.protocol.request import Sampling
from workers.core.batch import Sampled, TokenLogprobs

__all__ = ["Sampled", "SamplingRow", "TokenLogprobs", "filtered", "pick", "sample", "uniform"]

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: the quotient would leave float32."""
_NUCLEUS = 1024
"""top_p looks among so many best tokens first; only a flatter row has its vocabulary sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRow:
    """How to draw one row's token; `index` counts the request's output tokens from 0."""

    sampling: Sampling
    index: int


def uniform(seed: int, index: int) -> float:
    """Return the number in [0, 1) that output token `index` of a request with `seed` is drawn
    by."""
    digest = xxhash.xxh3_64_intdigest(struct.pack("<QQ", seed % 2**64, index))
    return (digest >> 12) * 2.0**-52  # 52 bits: u * total stays below total in float64


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> Sampled:
    """Choose each row's next token.

    Args:
        logits: `[S, vocab]` float32.
        rows: S of them.
    Raises: ValueError: the numbers of rows differ.
    """
    if len(rows) != len(logits):
        raise ValueError(f"{len(rows)} sampling rows for {len(logits)} rows of logits")
    tokens = logits.argmax(-1)
    drawn = [at for at, row in enumerate(rows) if row.sampling.temperature >= GREEDY_BELOW]
    if drawn:
        chosen = torch.tensor(drawn, device=logits.device)
        tokens[chosen] = _draw(logits[chosen], [rows[at] for at in drawn])
    listed: list[int] = tokens.tolist()
    return Sampled(tokens=listed, logprobs=_logprobs(logits, listed, rows))


def filtered(logits: Tensor, rows: Sequence[Sampling]) -> Tensor:
    """Return scores `[S, vocab]` after each row's temperature and filters; -inf is never drawn."""
    scores = logits / _column(logits, [row.temperature for row in rows])
    _keep_top_k(scores, rows)
    _keep_top_p(scores, rows)
    _keep_min_p(scores, rows)
    return scores


def _column(like: Tensor, values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def _draw(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    scores = filtered(logits, [row.sampling for row in rows])
    return pick(scores, [uniform(row.sampling.seed, row.index) for row in rows])


def pick(scores: Tensor, points: Sequence[float]) -> Tensor:
    """Look points up in the rows' cumulative distributions.

    Args:
        scores: `[S, vocab]`, -inf where a token must not be drawn.
        points: S numbers in [0, 1).
    Returns: `[S]` int64, tokens of positive probability.
    """
    cumulative = scores.to(torch.float64).softmax(-1).cumsum(-1)
    targets = _column(cumulative, points) * cumulative[:, -1:]
    # right=True: the first token whose sum exceeds the target, so never one of probability 0
    return torch.searchsorted(cumulative, targets, right=True)[:, 0]


def _keep_top_k(scores: Tensor, rows: Sequence[Sampling]) -> None:
    """Drop what is below the k-th best; equals of the k-th stay."""
    vocab = scores.shape[1]
    at = [i for i, row in enumerate(rows) if 0 < row.top_k < vocab]
    if at:
        counts = torch.tensor([rows[i].top_k for i in at], device=scores.device)[:, None]
        part = scores[at]
        floor = part.topk(max(rows[i].top_k for i in at)).values.gather(1, counts - 1)
        scores[at] = part.masked_fill(part < floor, -torch.inf)


def _keep_top_p(scores: Tensor, rows: Sequence[Sampling]) -> None:
    """Keep the fewest best tokens whose probabilities reach p: at least one."""
    at = [i for i, row in enumerate(rows) if row.top_p < 1.0]
    if not at:
        return
    part = scores[at]
    limits = _column(part, [rows[i].top_p for i in at])
    total = part.logsumexp(-1, keepdim=True)
    best, ids = part.topk(min(_NUCLEUS, part.shape[1]))
    if bool(((best - total).exp().sum(-1, keepdim=True) < limits).any()):
        best, ids = part.sort(-1, descending=True)
    probabilities = (best - total).exp()
    before = probabilities.cumsum(-1) - probabilities  # of all better tokens
    kept = before < limits
    kept[:, 0] = True
    thinned = torch.full_like(part, -torch.inf)
    scores[at] = thinned.scatter(1, ids, best.masked_fill(~kept, -torch.inf))


def _keep_min_p(scores: Tensor, rows: Sequence[Sampling]) -> None:
    """Drop what is less likely than min_p times the likeliest."""
    at = [i for i, row in enumerate(rows) if row.min_p > 0.0]
    if at:
        part = scores[at]
        shares = _column(part, [rows[i].min_p for i in at])
        floor = part.amax(-1, keepdim=True) + shares.log()
        scores[at] = part.masked_fill(part < floor, -torch.inf)


def _logprobs(
    logits: Tensor, tokens: Sequence[int], rows: Sequence[SamplingRow]
) -> list[TokenLogprobs | None]:
    result: list[TokenLogprobs | None] = [None] * len(rows)
    wanted = {at: n for at, row in enumerate(rows) if (n := row.sampling.logprobs) is not None}
    if not wanted:
        return result
    at = list(wanted)
    logprobs = logits[at].log_softmax(-1)
    chosen = logprobs.gather(
        1, torch.tensor([tokens[i] for i in at], device=logits.device)[:, None]
    )
    best = logprobs.topk(min(max(wanted.values()), logits.shape[1]))
    lists = zip(chosen[:, 0].tolist(), best.indices.tolist(), best.values.tolist(), strict=True)
    for (row, count), (own, ids, values) in zip(wanted.items(), lists, strict=True):
        pairs = tuple(zip(ids[:count], values[:count], strict=True))
        result[row] = TokenLogprobs(chosen=own, top=pairs)
    return result
