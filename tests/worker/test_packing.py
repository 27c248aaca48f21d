"""A packed step says the same as a laid-out one, padding included."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from workers.model.batch import Row, build_step
from workers.model.graphs import buckets_up_to
from workers.model.packing import Layout, StepSize, largest_step, size_of
from workers.model.sharing import TILE_ROWS, Shared

TILE = 8
BLOCK = 4
TRASH = 40
ROOMS = {
    "exact": None,
    "padded": StepSize(tokens=64, rows=9, decodes=9, tiles=20),
}


def random_rows(seed: int) -> list[Row]:
    draw = random.Random(seed)
    lengths = [1] * draw.randrange(4) + [draw.randrange(1, 20) for _ in range(draw.randrange(4))]
    rows = []
    for length in lengths or [3]:
        start = draw.randrange(12)
        blocks = -(-(start + length) // BLOCK) + draw.randrange(3)  # some hold more than they need
        rows.append(
            Row(
                tokens=[draw.randrange(500) for _ in range(length)],
                start=start,
                block_table=[draw.randrange(TRASH) for _ in range(blocks)],
                write_from=draw.choice([0, start, start + length]),
                samples=draw.random() < 0.7,
            )
        )
    return rows


def pack(rows, room=None):
    layout = Layout(
        room or size_of(rows, tile=TILE), tile=TILE, block_size=BLOCK, trash_block=TRASH
    )
    blocks = sum(len(row.block_table) for row in rows)
    numbers = np.full(layout.fixed + blocks, 12345, np.int32)
    used = layout.fill(numbers, rows)
    return layout.views(torch.from_numpy(numbers)), used - layout.fixed


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("seed", range(12))
def test_a_packed_step_says_what_a_laid_out_one_says(seed, room):
    rows = random_rows(seed)
    expected = build_step(rows, block_size=BLOCK, trash_block=TRASH)
    step, blocks = pack(rows, ROOMS[room])
    tokens, count = len(expected.ids), len(rows)
    assert step.ids[:tokens].tolist() == expected.ids.tolist()
    assert step.positions[:tokens].tolist() == expected.positions.tolist()
    assert step.slots[:tokens].tolist() == expected.slots.tolist()
    assert step.contexts[:count].tolist() == expected.context_lens.tolist()
    assert step.starts[: count + 1].tolist() == expected.cu_q.tolist()
    sampled = expected.sample_at.tolist()
    assert step.sample_at[: len(sampled)].tolist() == sampled
    decodes = expected.num_decode
    assert step.decode_contexts[:decodes].tolist() == expected.context_lens[:decodes].tolist()
    for row, begin in zip(rows, step.begins.tolist(), strict=False):
        needed = -(-row.context // BLOCK)
        assert step.table[begin : begin + needed].tolist() == row.block_table[:needed]
    assert blocks == sum(-(-row.context // BLOCK) for row in rows)


@pytest.mark.parametrize("seed", range(12))
def test_padding_computes_nothing_and_writes_to_the_trash(seed):
    rows = random_rows(seed)
    size = size_of(rows, tile=TILE)
    step, _ = pack(rows, ROOMS["padded"])
    assert (step.ids[size.tokens :] == 0).all()
    assert (step.after == -1).all()
    assert (step.slots[size.tokens :] == TRASH * BLOCK).all()
    assert (step.contexts[size.rows :] == 0).all()
    assert (step.decode_contexts[size.decodes :] == 0).all()
    assert (step.tile_rows[size.tiles :] == -1).all()
    assert (step.starts[size.rows + 1 :] == size.tokens).all()


def test_rows_that_share_are_named_by_tile_and_each_told_what_it_skips():
    rows = [Row(tokens=[1], start=20, block_table=list(range(6))) for _ in range(4)]
    room = StepSize(tokens=8, rows=8, decodes=8, tiles=0, shares=3)
    layout = Layout(room, tile=TILE, block_size=BLOCK, trash_block=TRASH)
    numbers = np.full(layout.fixed + 24, 12345, np.int32)
    for shared in ([Shared((0, 3), 16), Shared((1,), 12)], []):
        layout.fill(numbers, rows, shared)
        step = layout.views(torch.from_numpy(numbers))
        tiles = step.shared_rows.view(3, TILE_ROWS).tolist()
        named = [[row for row in tile if row != -1] for tile in tiles]
        assert named == [list(tile.rows) for tile in shared] + [[]] * (3 - len(shared))
        assert step.shared_tokens.tolist() == ([16, 12, 0] if shared else [0, 0, 0])
        assert step.skips.tolist() == ([16, 12, 0, 16, 0, 0, 0, 0] if shared else [0] * 8)
    with pytest.raises(ValueError, match="does not fit"):
        layout.fill(numbers, rows, [Shared((at,), 4) for at in range(4)])
    plain = pack(rows)[0]
    assert not len(plain.skips)
    assert not len(plain.shared_tokens)


@pytest.mark.better(19)
@pytest.mark.parametrize("seed", range(12))
def test_tiles_cover_every_query_of_a_prefill_once_and_the_longest_come_first(seed):
    rows = random_rows(seed)
    step, _ = pack(rows, ROOMS["padded"])
    decodes = size_of(rows, tile=TILE).decodes
    tiles = [
        (row, query)
        for row, query in zip(step.tile_rows.tolist(), step.tile_begins.tolist(), strict=True)
        if row >= 0
    ]
    expected = {
        (at, query)
        for at, row in enumerate(rows)
        if at >= decodes
        for query in range(0, len(row.tokens), TILE)
    }
    assert len(tiles) == len(expected)
    assert set(tiles) == expected
    seen = [rows[at].start + query for at, query in tiles]
    assert seen == sorted(seen, reverse=True)


def test_a_row_that_waits_names_a_token_of_the_step_before():
    rows = [
        Row(tokens=[9], start=3, block_table=[1], after=2),
        Row(tokens=[8], start=2, block_table=[2]),
        Row(tokens=[0], start=7, block_table=[3, 4], after=0),
        Row(tokens=[1, 2, 3], start=0, block_table=[5]),
    ]
    step, _ = pack(rows)
    assert step.after.tolist() == [2, -1, 0, -1, -1, -1]


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([], "does not fit"),
        ([Row(tokens=[1], start=0, block_table=[0])] * 10, "does not fit"),
        ([Row(tokens=[], start=0, block_table=[0])], "needs tokens"),
        ([Row(tokens=[1], start=4, block_table=[0])], "do not hold 5 tokens"),
        ([Row(tokens=[1], start=0, block_table=[TRASH + 1])], "block ids"),
        ([Row(tokens=[1], start=0, block_table=[-1])], "block ids"),
        ([Row(tokens=[1, 2], start=0, block_table=[1], after=0)], "one token"),
        ([Row(tokens=[1], start=0, block_table=[1], after=-1)], "one token"),
    ],
)
def test_a_row_that_would_write_astray_is_refused(rows, what):
    with pytest.raises(ValueError, match=what):
        pack(rows, ROOMS["padded"])


def test_more_blocks_than_the_buffer_holds_are_refused():
    rows = [Row(tokens=[1], start=3, block_table=[0])]
    layout = Layout(size_of(rows, tile=TILE), tile=TILE, block_size=BLOCK, trash_block=TRASH)
    with pytest.raises(ValueError, match="do not fit 0"):
        layout.fill(np.zeros(layout.fixed, np.int32), rows)


@pytest.mark.better(19)
@pytest.mark.parametrize(
    ("max_rows", "max_tokens", "max_model_len"),
    [(256, 2048, 4096), (64, 64, 512), (8, 3, 100), (2, 1000, 128)],
)
def test_the_largest_step_holds_every_token_in_rows_that_sample_and_write_nothing(
    max_rows, max_tokens, max_model_len
):
    rows = largest_step(
        max_rows=max_rows, max_tokens=max_tokens, max_model_len=max_model_len, block=5
    )
    lengths = [len(row.tokens) for row in rows]
    assert sum(lengths) == max_tokens
    assert lengths == sorted(lengths)
    assert lengths[0] >= 1
    assert lengths[-1] <= max_model_len
    assert len(rows) == max(min(max_rows, max_tokens), -(-max_tokens // max_model_len))
    step, _ = pack(rows)
    assert (step.slots >= TRASH * BLOCK).all()


@pytest.mark.better(19)
@pytest.mark.parametrize(
    ("most", "expected"),
    [(1, (1,)), (3, (1, 2, 3)), (4, (1, 2, 4)), (8, (1, 2, 4, 8)), (9, (1, 2, 4, 8))],
)
def test_buckets_end_at_the_most_there_may_be(most, expected):
    assert buckets_up_to((1, 2, 4, 8), most) == expected
