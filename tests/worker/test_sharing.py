"""Rows are grouped by the blocks that they have in common, where that saves reading."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.model import sharing
from workers.model.sharing import LEAST_ROWS, TILE_ROWS, WHOLE, Shared, find_shared, most_tiles

BLOCK = 64


@pytest.fixture(autouse=True)
def _any_saving_pays(monkeypatch):
    monkeypatch.setattr(sharing, "LEAST_TOKENS", 1)


def behind(prefix, rows, own=1, first=1000):
    """Tables of rows that begin with `prefix` and go on with blocks of their own."""
    return [[*prefix, *range(first + own * row, first + own * (row + 1))] for row in range(rows)]


def full(tables):
    return [len(table) * BLOCK for table in tables]


def test_rows_with_one_prefix_share_all_of_it():
    tables = behind(range(5), 8)
    assert find_shared(tables, full(tables), BLOCK) == (Shared(tuple(range(8)), 5 * BLOCK),)


def test_a_row_of_its_own_is_left_out():
    tables = [[77, 78], *behind(range(5), 8)]
    assert find_shared(tables, full(tables), BLOCK) == (Shared(tuple(range(1, 9)), 5 * BLOCK),)


def test_few_rows_share_nothing():
    tables = behind(range(50), LEAST_ROWS - 1)
    assert find_shared(tables, full(tables), BLOCK) == ()


def test_what_the_last_token_lies_in_is_not_shared():
    tables = [list(range(5))] * 8
    assert find_shared(tables, [5 * BLOCK] * 8, BLOCK)[0].tokens == 4 * BLOCK
    assert find_shared(tables, [4 * BLOCK + 1] * 8, BLOCK)[0].tokens == 4 * BLOCK
    assert find_shared(tables, [1] * 8, BLOCK) == ()


def test_a_tree_is_cut_where_it_saves_the_most():
    short_trunk = [*behind([1, 2, 3, 4, 5], 8), *behind([1, 12, 13, 14, 15], 8, first=2000)]
    found = find_shared(short_trunk, full(short_trunk), BLOCK)
    assert {tile.rows: tile.tokens for tile in found} == {
        tuple(range(8)): 5 * BLOCK,
        tuple(range(8, 16)): 5 * BLOCK,
    }
    trunk = range(20)
    long_trunk = [*behind([*trunk, 30], 8), *behind([*trunk, 40], 8, first=2000)]
    found = find_shared(long_trunk, full(long_trunk), BLOCK)
    assert found == (Shared(tuple(range(16)), 20 * BLOCK),)


def test_many_rows_make_several_tiles():
    tables = behind(range(5), 2 * TILE_ROWS + 3)
    found = find_shared(tables, full(tables), BLOCK)
    assert [len(tile.rows) for tile in found] == [TILE_ROWS, TILE_ROWS, 3]
    assert sorted(row for tile in found for row in tile.rows) == list(range(len(tables)))


def test_there_are_no_more_tiles_than_a_step_has_room_for_and_the_best_stay():
    tables = [
        table
        for group in range(6)
        for table in behind(range(100 * group, 100 * group + group + 1), 4, first=5000 + 10 * group)
    ]
    found = find_shared(tables, full(tables), BLOCK)
    assert [tile.tokens for tile in found] == [6 * BLOCK, 5 * BLOCK, 4 * BLOCK]
    assert len(found) == most_tiles(len(tables))


def test_small_blocks_are_shared_in_whole_tiles():
    tables = behind(range(7), 8)
    assert find_shared(tables, [len(table) * 48 for table in tables], 48)[0].tokens == 320
    tables = behind(range(3), 8)
    assert find_shared(tables, [len(table) * 16 for table in tables], 16) == ()


def test_a_saving_too_small_is_none(monkeypatch):
    tables = behind(range(5), 8)
    monkeypatch.setattr(sharing, "LEAST_TOKENS", 7 * 5 * BLOCK)
    assert find_shared(tables, full(tables), BLOCK)
    monkeypatch.setattr(sharing, "LEAST_TOKENS", 7 * 5 * BLOCK + 1)
    assert not find_shared(tables, full(tables), BLOCK)


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=40),
    st.sampled_from([16, 48, 64, 256]),
    st.data(),
)
def test_rows_of_a_tile_really_have_these_blocks_in_common(paths, block_size, data):
    # as in a cache: a block is named by everything up to it
    names: dict[tuple[int, ...], int] = {}
    tables = [
        [names.setdefault(tuple(path[: at + 1]), len(names)) for at in range(len(path))]
        for path in paths
    ]
    contexts = [
        data.draw(st.integers((len(table) - 1) * block_size + 1, len(table) * block_size))
        for table in tables
    ]
    found = find_shared(tables, contexts, block_size)
    seen = [row for tile in found for row in tile.rows]
    assert len(seen) == len(set(seen))
    assert len(found) <= most_tiles(len(tables))
    for tile in found:
        assert 0 < len(tile.rows) <= TILE_ROWS
        assert tile.tokens > 0
        assert tile.tokens % WHOLE == 0
        blocks = -(-tile.tokens // block_size)
        assert len({tuple(tables[row][:blocks]) for row in tile.rows}) == 1
        for row in tile.rows:
            assert tile.tokens < contexts[row]
    assert [tile.tokens for tile in found] == sorted((t.tokens for t in found), reverse=True)
