"""Kernels for rows that keep few tokens: those with a small top_k, as most chat models are served.

The k-th largest of the largest logits of groups is no larger than the k-th largest logit, for each
of those k groups has such a token. So whatever top_k, top_p and min_p keep lies among the tokens
from that bound up, and these are few: they are gathered once, and everything else happens in one
program a row, without reading the vocabulary again. Where equal logits make them too many, a row is
drawn by a slow kernel that reads it again and again.

Gathering is by atomics, so the order of the candidates is chance; nothing depends on it but the
last bits of sums in double precision.
"""

from __future__ import annotations

import triton
import triton.language as tl

from workers.model.device_sample import MOST_K
from workers.model.triton.sample import _key

ROOM = 1024
"""Candidates that a row has room for."""


def group_of(vocab: int) -> int:
    """Return how many tokens share a group: so few that there are many more groups than MOST_K."""
    size: int = triton.next_power_of_2(vocab // (8 * MOST_K) + 1)
    return max(16, min(128, size))


@triton.jit
def _asks(scales, top_ks, row):
    return (tl.load(scales + row) > 0) & (tl.load(top_ks + row) > 0)


@triton.jit
def _bit(at, BITS: tl.constexpr):
    return tl.full([], 1, tl.uint32) << (tl.full([], BITS - 1, tl.int32) - at).to(tl.uint32)


@triton.jit
def crest(
    logits, stride, vocab, scales, top_ks, peaks, groups,
    GROUP: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the largest logit of each group of a chunk, for rows that ask for top_k."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    if _asks(scales, top_ks, row):
        group = tl.arange(0, CHUNK // GROUP)
        at = chunk * CHUNK + group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        values = tl.load(logits + row * stride + at, mask=at < vocab, other=-float("inf"))
        highest = tl.max(values.to(tl.float32), 1)
        tl.store(peaks + row * groups + chunk * (CHUNK // GROUP) + group, highest)


@triton.jit
def bound(scales, top_ks, peaks, groups, floors, counts, PADDED: tl.constexpr):
    """Write the key of a row's k-th largest peak: no larger than that of its k-th largest logit."""
    row = tl.program_id(0).to(tl.int64)
    if _asks(scales, top_ks, row):
        at = tl.arange(0, PADDED)
        peak = tl.load(peaks + row * groups + at, mask=at < groups, other=-float("inf"))
        keys = tl.where(at < groups, _key(peak), 0)
        wanted = tl.load(top_ks + row)
        floor = tl.zeros([], tl.uint32)
        for turn in range(32):
            higher = floor | _bit(turn, 32)
            floor = tl.where(tl.sum((keys >= higher).to(tl.int32), 0) >= wanted, higher, floor)
        tl.store(floors + row, floor.to(tl.int32, bitcast=True))
        tl.store(counts + row, 0)


@triton.jit
def gather(
    logits, stride, vocab, scales, top_ks, peaks, groups, floors, counts, values, places,
    GROUP: tl.constexpr, CHUNK: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    """Copy a chunk's tokens from the bound up, with their places, as far as there is room."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    if _asks(scales, top_ks, row):
        floor = tl.load(floors + row).to(tl.uint32, bitcast=True)
        group = tl.arange(0, CHUNK // GROUP)
        peak = tl.load(peaks + row * groups + chunk * (CHUNK // GROUP) + group)
        high = _key(peak) >= floor
        if tl.max(high.to(tl.int32), 0) > 0:
            at = chunk * CHUNK + group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
            there = high[:, None] & (at < vocab)
            value = tl.load(logits + row * stride + at, mask=there, other=-float("inf"))
            value = value.to(tl.float32)
            found = there & (_key(value) >= floor)
            number = tl.reshape(found.to(tl.int32), [CHUNK])
            first = tl.atomic_add(counts + row, tl.sum(number, 0))
            to = first + tl.cumsum(number, 0) - number
            kept = (number > 0) & (to < ROOM)
            tl.store(values + row * ROOM + to, tl.reshape(value, [CHUNK]), mask=kept)
            tl.store(places + row * ROOM + to, tl.reshape(at, [CHUNK]), mask=kept)


@triton.jit
def draw_few(
    scales, top_ks, top_ps, lows, points, counts, values, places, tokens, vocab,
    PLACE_BITS: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    """Filter a row's candidates, and write the one where its point falls."""
    row = tl.program_id(0).to(tl.int64)
    count = tl.load(counts + row)
    if _asks(scales, top_ks, row) & (count <= ROOM):
        scale = tl.load(scales + row)
        at = tl.arange(0, ROOM)
        there = at < count
        value = tl.load(values + row * ROOM + at, mask=there, other=-float("inf"))
        place = tl.load(places + row * ROOM + at, mask=there, other=0)
        keys = tl.where(there, _key(value), 0)
        best = tl.max(value, 0)
        wanted = tl.minimum(tl.load(top_ks + row), count)
        threshold = tl.zeros([], tl.uint32)
        for turn in range(32):
            higher = threshold | _bit(turn, 32)
            enough = tl.sum((keys >= higher).to(tl.int32), 0) >= wanted
            threshold = tl.where(enough, higher, threshold)
        weights = tl.exp2((value - best) * scale).to(tl.float64)
        weights = tl.where(there & (keys >= threshold), weights, 0.0)
        share = tl.load(top_ps + row)
        if share < 1.0:
            goal = share * tl.sum(weights, 0)
            reached = tl.zeros([], tl.uint32)
            for turn in range(32):
                higher = reached | _bit(turn, 32)
                enough = tl.sum(tl.where(keys >= higher, weights, 0.0), 0) >= goal
                reached = tl.where(enough, higher, reached)
            threshold = tl.maximum(threshold, reached)
        low = tl.load(lows + row)
        if low > -float("inf"):
            threshold = tl.maximum(threshold, _key(best + low))
        threshold = tl.minimum(threshold, _key(best))  # the best token stays whatever was asked
        weights = tl.where(keys >= threshold, weights, 0.0)
        goal = tl.load(points + row) * tl.sum(weights, 0)
        token = tl.zeros([], tl.int32)
        for turn in range(PLACE_BITS):
            further = token + _bit(turn, PLACE_BITS).to(tl.int32)
            before = tl.sum(tl.where(place < further, weights, 0.0), 0)
            token = tl.where(before <= goal, further, token)
        last = tl.max(tl.where(weights > 0, place, 0), 0)  # rounding may leave it beyond all
        tl.store(tokens + row, tl.minimum(token, last).to(tl.int64))


@triton.jit
def _above(logits, at, vocab, threshold, best, scale):
    """How many of some tokens reach a threshold, and what they weigh."""
    value = tl.load(logits + at, mask=at < vocab, other=-float("inf")).to(tl.float32)
    kept = (at < vocab) & (_key(value) >= threshold)
    weights = tl.where(kept, tl.exp2((value - best) * scale), 0.0).to(tl.float64)
    return tl.sum(kept.to(tl.int32), 0), tl.sum(weights, 0)


@triton.jit
def _measure(
    logits, vocab, threshold, best, scale, CHUNKS: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    number = tl.zeros([], tl.int32)
    mass = tl.zeros([], tl.float64)
    for chunk in range(CHUNKS):
        at = chunk * CHUNK + tl.arange(0, CHUNK)
        more, weight = _above(logits, at, vocab, threshold, best, scale)
        number += more
        mass += weight
    return number, mass


@triton.jit
def draw_crowd(
    logits, stride, vocab, scales, top_ks, top_ps, lows, points, maxima, chunks, counts, tokens,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    """Do what `draw_few` does for a row whose candidates had no room: slowly, and rarely."""
    row = tl.program_id(0).to(tl.int64)
    if _asks(scales, top_ks, row) & (tl.load(counts + row) > ROOM):
        mine = logits + row * stride
        scale = tl.load(scales + row)
        cells = tl.arange(0, CHUNKS)
        maximum = tl.load(maxima + row * chunks + cells, mask=cells < chunks, other=-float("inf"))
        best = tl.max(maximum, 0)
        wanted = tl.load(top_ks + row)
        floor = tl.zeros([], tl.uint32)
        for turn in range(32):
            higher = floor | _bit(turn, 32)
            number, _ = _measure(mine, vocab, higher, best, scale, CHUNKS, CHUNK)
            floor = tl.where(number >= wanted, higher, floor)
        threshold = floor
        share = tl.load(top_ps + row)
        if share < 1.0:
            _, whole = _measure(mine, vocab, floor, best, scale, CHUNKS, CHUNK)
            reached = tl.zeros([], tl.uint32)
            for turn in range(32):
                higher = reached | _bit(turn, 32)
                least = tl.maximum(higher, floor)
                _, mass = _measure(mine, vocab, least, best, scale, CHUNKS, CHUNK)
                reached = tl.where(mass >= share * whole, higher, reached)
            threshold = tl.maximum(floor, reached)
        low = tl.load(lows + row)
        if low > -float("inf"):
            threshold = tl.maximum(threshold, _key(best + low))
        threshold = tl.minimum(threshold, _key(best))
        _, whole = _measure(mine, vocab, threshold, best, scale, CHUNKS, CHUNK)
        goal = tl.load(points + row) * whole
        token = tl.zeros([], tl.int32)
        passed = tl.zeros([], tl.float64)
        for chunk in range(CHUNKS):
            at = chunk * CHUNK + tl.arange(0, CHUNK)
            value = tl.load(mine + at, mask=at < vocab, other=-float("inf")).to(tl.float32)
            kept = (at < vocab) & (_key(value) >= threshold)
            weights = tl.where(kept, tl.exp2((value - best) * scale), 0.0).to(tl.float64)
            until = passed + tl.cumsum(weights, 0)
            # The first token whose end lies beyond the goal, or else the last one that is kept.
            hit = tl.min(tl.where((until > goal) & (weights > 0), at, vocab), 0)
            final = tl.max(tl.where(weights > 0, at, 0), 0)
            open_still = passed <= goal
            token = tl.where(
                open_still, tl.maximum(token, tl.where(hit < vocab, hit, final)), token
            )
            passed += tl.sum(weights, 0)
        tl.store(tokens + row, token.to(tl.int64))
