"""One step as one stretch of int32 numbers, so that one copy brings it to the device.

A `Layout` says where each part lies for a step of bounded size. A captured graph reads from fixed
addresses, so it has a layout of its own; smaller steps are padded to it. What is padding points at
the trash block, has no context and no tiles, so it computes nothing that anyone reads.

Block tables are ragged: all rows' blocks one after another, and where each row's begin. They come
last, so a short step copies little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
from torch import Tensor

from workers.model.batch import Row
from workers.model.sharing import TILE_ROWS, Shared

ALIGN = 4
"""Parts begin at multiples of so many numbers: 16 bytes, which kernels are compiled for."""

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStep:
    """A step on the device, padding included; T tokens of S rows, all int32."""

    ids: Tensor  # [T]
    after: Tensor  # [T]: which token of the step before to take instead of `ids`; -1 for none
    positions: Tensor  # [T]
    slots: Tensor  # [T]: block * block_size + offset that the token's K/V goes to
    sample_at: Tensor  # [S]: the token whose logits are wanted, for each row that samples
    begins: Tensor  # [S]: where the row's blocks begin in `table`
    contexts: Tensor  # [S]: tokens of the row's sequence, this step's included
    starts: Tensor  # [S + 1]: where the row's tokens begin in [0, T]
    decode_contexts: Tensor  # [D]: as `contexts` for rows of one token at the front, else 0
    tile_rows: Tensor  # [tiles]: the row of each tile of queries in prefill, -1 for none
    tile_begins: Tensor  # [tiles]: its first query, counted in the row
    shared_rows: Tensor  # [shares * TILE_ROWS]: rows with common K/V, -1 behind the last of a tile
    shared_tokens: Tensor  # [shares]: how many tokens they have in common, 0 for no tile
    skips: Tensor  # [D, or 0 without shares]: the same for each row, 0 if it shares nothing
    table: Tensor  # [...]: block ids


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSize:
    """How much a step holds, or may hold."""

    tokens: int
    rows: int
    decodes: int
    tiles: int
    shares: int = 0

    def fits(self, room: StepSize) -> bool:
        """Whether a step of this size can be padded to `room`."""
        return (
            self.tokens <= room.tokens
            and self.rows <= room.rows
            and self.decodes <= room.decodes
            and self.tiles <= room.tiles
            and self.shares <= room.shares
        )


def count_decodes(rows: Sequence[Row]) -> int:
    """Return how many of the first rows have exactly one token."""
    for index, row in enumerate(rows):
        if len(row.tokens) != 1:
            return index
    return len(rows)


def size_of(rows: Sequence[Row], *, tile: int, shares: int = 0) -> StepSize:
    """Measure a step whose prefills are cut into tiles of `tile` queries.

    Args:
        rows: decodes first.
        tile: queries.
        shares: tiles of decodes with common K/V.
    """
    decodes = count_decodes(rows)
    return StepSize(
        tokens=sum(len(row.tokens) for row in rows),
        rows=len(rows),
        decodes=decodes,
        tiles=sum(-(-len(row.tokens) // tile) for row in rows[decodes:]),
        shares=shares,
    )


def largest_step(*, max_rows: int, max_tokens: int, max_model_len: int, block: int) -> list[Row]:
    """Return the step that takes the most memory: as many tokens and as many samples as may be.

    All its blocks are `block`, and it writes to the trash block.
    """
    rows = min(max_rows, max_tokens)
    rows = max(rows, -(-max_tokens // max_model_len))
    share, rest = divmod(max_tokens, rows)
    counts = [share + (at < rest) for at in range(rows)]
    counts.sort()  # those of one token are decodes and come first
    return [
        Row(tokens=[0] * count, start=0, block_table=[block] * count, write_from=count)
        for count in counts
    ]


class Layout:
    """Where the parts of a step of up to `size` lie.

    Attributes:
        size: what it has room for.
        fixed: numbers before the block tables.
    """

    def __init__(self, size: StepSize, *, tile: int, block_size: int, trash_block: int) -> None:
        """Lay the parts out.

        Args:
            size: the most that a step may hold.
            tile: queries of a prefill that one program computes.
            block_size: tokens a block.
            trash_block: where padding, and tokens whose K/V is there already, write.
        """
        self.size = size
        self._tile = tile
        self._block_size = block_size
        self._trash_block = trash_block
        counts = {
            "ids": size.tokens,
            "after": size.tokens,
            "positions": size.tokens,
            "slots": size.tokens,
            "sample_at": size.rows,
            "begins": size.rows,
            "contexts": size.rows,
            "starts": size.rows + 1,
            "decode_contexts": size.decodes,
            "tile_rows": size.tiles,
            "tile_begins": size.tiles,
            "shared_rows": size.shares * TILE_ROWS,
            "shared_tokens": size.shares,
            "skips": size.decodes if size.shares else 0,
        }
        self._parts: dict[str, slice] = {}
        at = 0
        for name, count in counts.items():
            self._parts[name] = slice(at, at + count)
            at += -(-count // ALIGN) * ALIGN
        self.fixed = at

    def views(self, buffer: Tensor) -> DeviceStep:
        """Return the parts of a buffer that `fill`'s numbers are copied to.

        Args:
            buffer: `[at least fixed]` int32.
        """
        parts = {name: buffer[part] for name, part in self._parts.items()}
        return DeviceStep(**parts, table=buffer[self.fixed :])

    def fill(self, out: Ints, rows: Sequence[Row], shared: Sequence[Shared] = ()) -> int:
        """Write a step.

        Args:
            out: `[enough]`, the host's side of the buffer.
            rows: at least one, which fit `size`; decodes first.
            shared: which decodes have K/V in common.
        Returns: how many numbers are to be copied.
        Raises: ValueError: no rows, rows that do not fit, a row without tokens, one that its block
            table does not cover, or a block that is not there.
        """
        size = size_of(rows, tile=self._tile, shares=len(shared))
        if not rows or not size.fits(self.size):
            raise ValueError(f"a step of {size} does not fit a layout of {self.size}")
        block_size = self._block_size
        counts = np.fromiter((len(row.tokens) for row in rows), np.int32, len(rows))
        first = np.fromiter((row.start for row in rows), np.int32, len(rows))
        contexts = first + counts
        needed = -(-contexts // block_size)
        held = np.fromiter((len(row.block_table) for row in rows), np.int32, len(rows))
        if counts.min() < 1 or first.min() < 0:
            raise ValueError("a row needs tokens from a position on")
        if (needed > held).any():
            short = rows[int(np.argmax(needed > held))]
            raise ValueError(f"{len(short.block_table)} blocks do not hold {short.context} tokens")
        blocks = int(needed.sum())
        used = self.fixed + blocks
        if used > len(out):
            raise ValueError(f"{blocks} blocks in one step do not fit {len(out) - self.fixed}")
        table = out[self.fixed : used]
        table[:] = np.fromiter(
            chain.from_iterable(
                row.block_table[:count] for row, count in zip(rows, needed.tolist(), strict=True)
            ),
            np.int32,
            blocks,
        )
        if table.min() < 0 or table.max() > self._trash_block:
            raise ValueError(f"block ids must be in [0, {self._trash_block})")
        self._fill_rows(out, rows, size, needed, contexts)
        self._fill_tokens(out, rows, size, counts, first)
        if self.size.shares:
            self._fill_shared(out, shared)
        return used

    def _part(self, out: Ints, name: str) -> Ints:
        return out[self._parts[name]]

    def _fill_rows(
        self, out: Ints, rows: Sequence[Row], size: StepSize, needed: Ints, contexts: Ints
    ) -> None:
        begins = self._part(out, "begins")
        begins[0] = 0
        np.cumsum(needed[:-1], out=begins[1 : size.rows])
        begins[size.rows :] = 0
        padded = self._part(out, "contexts")
        padded[: size.rows] = contexts
        padded[size.rows :] = 0
        decodes = self._part(out, "decode_contexts")
        decodes[: size.decodes] = contexts[: size.decodes]
        decodes[size.decodes :] = 0
        tiles = [
            (row_at, query)
            for row_at in range(size.decodes, size.rows)
            for query in range(0, len(rows[row_at].tokens), self._tile)
        ]
        # the longest first: what begins last should end soon
        tiles.sort(key=lambda pair: -(rows[pair[0]].start + pair[1]))
        tile_rows, tile_begins = self._part(out, "tile_rows"), self._part(out, "tile_begins")
        tile_rows[len(tiles) :] = -1
        tile_begins[len(tiles) :] = 0
        if tiles:
            tile_rows[: len(tiles)], tile_begins[: len(tiles)] = np.array(tiles, np.int32).T

    def _fill_shared(self, out: Ints, shared: Sequence[Shared]) -> None:
        tiles = self._part(out, "shared_rows").reshape(-1, TILE_ROWS)
        tokens, skips = self._part(out, "shared_tokens"), self._part(out, "skips")
        tiles[:], tokens[:], skips[:] = -1, 0, 0
        for at, tile in enumerate(shared):
            tiles[at, : len(tile.rows)] = tile.rows
            tokens[at] = tile.tokens
            skips[list(tile.rows)] = tile.tokens

    def _fill_tokens(
        self, out: Ints, rows: Sequence[Row], size: StepSize, counts: Ints, first: Ints
    ) -> None:
        tokens, block_size = size.tokens, self._block_size
        starts = self._part(out, "starts")
        starts[0] = 0
        np.cumsum(counts, out=starts[1 : size.rows + 1])
        starts[size.rows + 1 :] = tokens
        sample_at = self._part(out, "sample_at")
        samples = np.fromiter((row.samples for row in rows), np.bool_, size.rows)
        ends = starts[1 : size.rows + 1][samples] - 1
        sample_at[: len(ends)] = ends
        sample_at[len(ends) :] = 0
        ids = self._part(out, "ids")
        ids[:tokens] = np.fromiter(chain.from_iterable(r.tokens for r in rows), np.int32, tokens)
        ids[tokens:] = 0
        row_of = np.repeat(np.arange(size.rows, dtype=np.int32), counts)
        within = np.arange(tokens, dtype=np.int32) - starts[row_of]
        positions = self._part(out, "positions")
        positions[:tokens] = first[row_of] + within
        positions[tokens:] = 0
        shared = np.fromiter((row.write_from for row in rows), np.int32, size.rows)
        begins = self._part(out, "begins")
        place = positions[:tokens]
        block = out[self.fixed :][begins[row_of] + place // block_size]
        block = np.where(place < shared[row_of], self._trash_block, block)
        slots = self._part(out, "slots")
        slots[:tokens] = block * block_size + place % block_size
        slots[tokens:] = self._trash_block * block_size
        after = self._part(out, "after")
        after[:] = -1
        late = [(at, row.after) for at, row in enumerate(rows) if row.after is not None]
        if late:
            which = np.array(late, np.int32)
            if (counts[which[:, 0]] != 1).any() or which[:, 1].min() < 0:
                raise ValueError("only a row of one token can wait for the step before")
            after[starts[which[:, 0]]] = which[:, 1]
