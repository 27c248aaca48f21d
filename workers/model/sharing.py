"""Which decoding rows read the same K/V, so that it is read once for all of them.

Requests that hit the same cached prefix hold the same blocks. Of a tree of prefixes (one system
prompt, under it some documents) a row takes part in one branch, at the depth that saves the most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

TILE_ROWS = 32
"""Rows of a tile, whose common K/V is read once."""
WHOLE = 64
"""What rows share is counted in so many tokens, so that no kernel cuts a tile of K/V there."""
LEAST_ROWS = 4
LEAST_TOKENS = 16_384
"""A step that would save fewer is not worth two more kernels a layer."""
ROWS_A_TILE = 8
"""There are at most so few tiles: one for so many rows of a step."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Up to `TILE_ROWS` rows whose first `tokens` tokens lie in the same blocks."""

    rows: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class _Branch:
    rows: list[int]
    blocks: int

    @property
    def saved(self) -> int:
        """Blocks that need not be read again."""
        return (len(self.rows) - 1) * self.blocks


def find_shared(
    tables: Sequence[Sequence[int]], contexts: Sequence[int], block_size: int
) -> tuple[Shared, ...]:
    """Return tiles of rows with common K/V, none if reading it once would not pay.

    Args:
        tables: each row's blocks, from position 0 on.
        contexts: tokens of each row's sequence; what the last one lies in is never shared.
        block_size: tokens a block.
    Returns: the longest first; no row is in two of them.
    """
    usable = [(context - 1) // block_size for context in contexts]
    rows = [row for row, blocks in enumerate(usable) if blocks]
    if len(rows) < LEAST_ROWS:
        return ()
    branches = _branches(rows, 0, tables, usable)
    branches.sort(key=lambda branch: -branch.saved)
    tiles = [
        Shared(tuple(branch.rows[at : at + TILE_ROWS]), tokens)
        for branch in branches
        if (tokens := branch.blocks * block_size // WHOLE * WHOLE)
        for at in range(0, len(branch.rows), TILE_ROWS)
    ]
    del tiles[most_tiles(len(tables)) :]
    if sum((len(tile.rows) - 1) * tile.tokens for tile in tiles) < LEAST_TOKENS:
        return ()
    return tuple(sorted(tiles, key=lambda tile: -tile.tokens))


def most_tiles(rows: int) -> int:
    """Return how many tiles a step of so many decoding rows has at most."""
    return max(1, rows // ROWS_A_TILE)


def _branches(
    rows: list[int], depth: int, tables: Sequence[Sequence[int]], usable: Sequence[int]
) -> list[_Branch]:
    """Part rows, whose first `depth` blocks agree, such that together they save the most."""
    forks: defaultdict[int, list[int]] = defaultdict(list)
    for row in rows:
        if usable[row] > depth:
            forks[tables[row][depth]].append(row)
    found = []
    for fork in forks.values():
        if len(fork) < LEAST_ROWS:
            continue
        trunk = _Branch(fork, _agree(fork, depth + 1, tables, usable))
        crown = _branches(fork, trunk.blocks, tables, usable)
        deeper = sum(branch.saved for branch in crown) > trunk.saved
        found.append(crown if deeper else [trunk])
    return list(chain.from_iterable(found))


def _agree(
    rows: Sequence[int], depth: int, tables: Sequence[Sequence[int]], usable: Sequence[int]
) -> int:
    """Return how many first blocks all rows have in common, given that `depth` agree."""
    leader = tables[rows[0]]
    end = min(usable[row] for row in rows)
    for row in rows[1:]:
        table = tables[row]
        if table[depth:end] != leader[depth:end]:
            end = next(at for at in range(depth, end) if table[at] != leader[at])
    return end
