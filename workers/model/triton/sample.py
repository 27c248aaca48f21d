"""Triton kernels that draw tokens without sorting the vocabulary.

A row of logits is cut into chunks, one program each; kernels meet only at their boundaries, so no
program waits for another. Logits are compared by `_key`, an order-preserving 32-bit whole number.
The k-th best key, and the key at which the best tokens reach the mass top_p, are found four bits a
pass: `narrow` sums each chunk at 16 thresholds, `settle` picks among them. A row that asks for no
filter, or whose threshold is settled, leaves its passes at once.

Parameters of a row, `[row]` each: `scale` log2(e) / temperature, 0 for greedy; `top_k`, 0 for all;
`top_p`, 1 for all; `low`, temperature * ln(min_p), -inf for all; `point`, the number in [0, 1) that
its token is drawn by.
"""

from __future__ import annotations

import triton
import triton.language as tl

CHUNK = 4096
"""Tokens of the vocabulary a program sums up."""
TILE = 256
"""Tokens compared with all thresholds at a time."""
STEP_BITS = 4
STEPS = 2**STEP_BITS
PASSES = 32 // STEP_BITS


@triton.jit
def _key(logits):
    """Whole numbers in the order of the logits."""
    bits = logits.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) | -0x80000000)).to(tl.uint32, bitcast=True)


@triton.jit
def _best(maxima, row, chunks, CHUNKS: tl.constexpr):
    """The largest logit of a row."""
    at = tl.arange(0, CHUNKS)
    return tl.max(tl.load(maxima + row * chunks + at, mask=at < chunks, other=-float("inf")), 0)


@triton.jit
def survey(logits, stride, vocab, scales, maxima, places, masses, chunks, CHUNK: tl.constexpr):
    """Write each chunk's largest logit, where it stands, and its mass relative to that logit."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    values = tl.load(logits + row * stride + at, mask=at < vocab, other=-float("inf"))
    values = values.to(tl.float32)
    best, place = tl.max(values, 0, return_indices=True, return_indices_tie_break_left=True)
    out = row * chunks + chunk
    tl.store(maxima + out, best)
    tl.store(places + out, chunk * CHUNK + place)
    scale = tl.load(scales + row)
    if scale > 0:
        finite = tl.maximum(best, -3e38)  # a chunk may be masked wholly
        tl.store(masses + out, tl.sum(tl.exp2((values - finite) * scale), 0))


@triton.jit
def narrow(
    logits, stride, vocab, scales, top_ks, top_ps, floors, maxima, prefixes, done,
    counts, masses, chunks, shift,
    BY_MASS: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Count (and weigh) a chunk's tokens at the 16 thresholds of this pass.

    With BY_MASS only tokens from the row's `floors` up count: those that top_k left over.
    """
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    scale = tl.load(scales + row)
    asked = scale > 0
    if BY_MASS:
        asked = asked & (tl.load(top_ps + row) < 1.0)
    else:
        asked = asked & (tl.load(top_ks + row) > 0)
    if asked & (tl.load(done + row) == 0):
        prefix = tl.load(prefixes + row).to(tl.uint32, bitcast=True)
        out = (row * chunks + chunk) * 16 + tl.arange(0, 16)
        count = tl.zeros([TILE, 16], tl.int32)
        mass = tl.zeros([TILE, 16], tl.float32)
        if _key(tl.load(maxima + row * chunks + chunk)) >= prefix:
            floor = prefix
            best = 0.0
            if BY_MASS:
                floor = tl.maximum(prefix, tl.load(floors + row).to(tl.uint32, bitcast=True))
                best = _best(maxima, row, chunks, CHUNKS)
            thresholds = prefix + (tl.arange(0, 16).to(tl.uint32) << shift)
            for start in range(0, CHUNK, TILE):
                at = chunk * CHUNK + start + tl.arange(0, TILE)
                values = tl.load(logits + row * stride + at, mask=at < vocab, other=-float("inf"))
                values = values.to(tl.float32)
                keys = _key(values)
                above = keys[:, None] >= thresholds[None, :]
                above = above & ((at < vocab) & (keys >= floor))[:, None]
                count += above.to(tl.int32)
                if BY_MASS:
                    weights = tl.exp2((values - best) * scale)
                    mass += tl.where(above, weights[:, None], 0.0)
        tl.store(counts + out, tl.sum(count, 0))
        if BY_MASS:
            tl.store(masses + out, tl.sum(mass, 0))


@triton.jit
def settle(
    scales, top_ks, top_ps, prefixes, done, goals, above, counts, masses, chunks, shift,
    FIRST: tl.constexpr, BY_MASS: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Keep the highest of a pass's thresholds that is still low enough.

    `above` counts the tokens from the upper end of the bracket on; with one token or none left
    between the ends, the lower one is the answer.
    """
    row = tl.program_id(0).to(tl.int64)
    asked = tl.load(scales + row) > 0
    if BY_MASS:
        asked = asked & (tl.load(top_ps + row) < 1.0)
    else:
        asked = asked & (tl.load(top_ks + row) > 0)
    if asked & (tl.load(done + row) == 0):
        at = tl.arange(0, CHUNKS)
        steps = tl.arange(0, 16)
        cells = (row * chunks + at[:, None]) * 16 + steps[None, :]
        there = (at < chunks)[:, None]
        count = tl.sum(tl.load(counts + cells, mask=there, other=0), 0)
        if BY_MASS:
            mass = tl.sum(tl.load(masses + cells, mask=there, other=0.0), 0)
            if FIRST:
                goal = tl.load(top_ps + row) * tl.sum(tl.where(steps == 0, mass, 0.0), 0)
                tl.store(goals + row, goal)
            else:
                goal = tl.load(goals + row)
            enough = mass >= goal
        else:
            enough = count >= tl.load(top_ks + row)
        step = tl.maximum(tl.sum(enough.to(tl.int32), 0) - 1, 0)
        beyond = 0 if FIRST else tl.load(above + row)
        following = tl.sum(tl.where(steps == step + 1, count, 0), 0)
        beyond = tl.where(step == 15, beyond, following)
        inside = tl.sum(tl.where(steps == step, count, 0), 0) - beyond
        prefix = tl.load(prefixes + row).to(tl.uint32, bitcast=True)
        prefix += step.to(tl.uint32) << shift
        tl.store(prefixes + row, prefix.to(tl.int32, bitcast=True))
        tl.store(above + row, beyond)
        tl.store(done + row, (inside <= 1).to(tl.int32))


@triton.jit
def weigh(
    logits, stride, vocab, scales, top_ks, top_ps, lows, floors, prefixes, maxima, masses,
    thresholds, chunks, FEW: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Turn a chunk's mass into that of the tokens all filters keep, relative to the row's best."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    scale = tl.load(scales + row)
    mine = scale > 0
    if FEW:
        mine = mine & (tl.load(top_ks + row) <= 0)
    if mine:
        best = _best(maxima, row, chunks, CHUNKS)
        out = row * chunks + chunk
        chunk_best = tl.load(maxima + out)
        threshold = tl.zeros([], tl.uint32)
        if tl.load(top_ks + row) > 0:
            threshold = tl.load(floors + row).to(tl.uint32, bitcast=True)
        if tl.load(top_ps + row) < 1.0:
            threshold = tl.maximum(threshold, tl.load(prefixes + row).to(tl.uint32, bitcast=True))
        low = tl.load(lows + row)
        if low > -float("inf"):
            threshold = tl.maximum(threshold, _key(best + low))
        threshold = tl.minimum(threshold, _key(best))  # the best token stays whatever was asked
        if chunk == 0:
            tl.store(thresholds + row, threshold.to(tl.int32, bitcast=True))
        if _key(chunk_best) < threshold:
            tl.store(masses + out, 0.0)
        elif threshold == 0:
            relative = tl.where(chunk_best == best, 0.0, (chunk_best - best) * scale)
            tl.store(masses + out, tl.load(masses + out) * tl.exp2(relative))
        else:
            at = chunk * CHUNK + tl.arange(0, CHUNK)
            values = tl.load(logits + row * stride + at, mask=at < vocab, other=-float("inf"))
            values = values.to(tl.float32)
            kept = (at < vocab) & (_key(values) >= threshold)
            weights = tl.where(kept, tl.exp2((values - best) * scale), 0.0)
            tl.store(masses + out, tl.sum(weights, 0))


@triton.jit
def pick(
    logits, stride, vocab, scales, top_ks, points, maxima, places, masses, thresholds, tokens,
    chunks, FEW: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write each row's token: the best one, or where its point falls among the kept masses.

    With FEW, here and in `weigh`, rows that ask for top_k are drawn by other kernels (`few.py`).
    """
    row = tl.program_id(0).to(tl.int64)
    scale = tl.load(scales + row)
    mine = True
    if FEW:
        mine = tl.load(top_ks + row) <= 0
    numbers = tl.arange(0, CHUNKS)
    there = numbers < chunks
    cells = row * chunks + numbers
    maximum = tl.load(maxima + cells, mask=there, other=-float("inf"))
    if scale > 0:
        if mine:
            mass = tl.load(masses + cells, mask=there, other=0.0).to(tl.float64)
            until = tl.cumsum(mass, 0)
            goal = tl.load(points + row) * tl.sum(mass, 0)
            last = tl.max(tl.where(mass > 0, numbers, 0), 0)
            chunk = tl.minimum(tl.sum((until <= goal).to(tl.int32), 0), last)
            rest = (goal - tl.sum(tl.where(numbers < chunk, mass, 0.0), 0)).to(tl.float32)
            best = tl.max(maximum, 0)
            threshold = tl.load(thresholds + row).to(tl.uint32, bitcast=True)
            at = chunk * CHUNK + tl.arange(0, CHUNK)
            values = tl.load(logits + row * stride + at, mask=at < vocab, other=-float("inf"))
            values = values.to(tl.float32)
            kept = (at < vocab) & (_key(values) >= threshold)
            weights = tl.where(kept, tl.exp2((values - best) * scale), 0.0)
            hit = (tl.cumsum(weights, 0) > rest) & (weights > 0)
            first = tl.min(tl.where(hit, at, vocab), 0)
            final = tl.max(
                tl.where(weights > 0, at, 0), 0
            )  # rounding may leave the point beyond all
            tl.store(tokens + row, tl.where(first < vocab, first, final).to(tl.int64))
    else:
        chunk = tl.argmax(maximum, 0, tie_break_left=True)
        tl.store(tokens + row, tl.load(places + row * chunks + chunk).to(tl.int64))
