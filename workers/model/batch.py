"""One step's work as tensors.

A step computes some tokens of some sequences at once: one token for each decoding sequence, a
chunk for each one in prefill. The tokens lie one after another without padding; block tables say
where each sequence's K/V is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One sequence's share of a step.

    Attributes:
        tokens: what to compute now, at least one.
        start: the position of the first of them; K/V of all earlier positions is in the pool.
        block_table: blocks of the sequence from position 0 on; they cover the last of `tokens`.
        write_from: K/V of positions below this is in the pool already and may be shared: it is
            read, never written.
        samples: whether the logits after the last token are wanted.
        after: when the host does not know the row's single token yet: its place among the tokens
            that the launch before this one draws. `tokens` holds one placeholder then.
    """

    tokens: Sequence[int]
    start: int
    block_table: Sequence[int]
    write_from: int = 0
    samples: bool = True
    after: int | None = None

    @property
    def context(self) -> int:
        """Tokens of the sequence after this step."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """A step on the pool's device; T tokens of S sequences.

    `q_lens` and `contexts` repeat what `cu_q` and `context_lens` say, on the host.
    """

    ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slots: Tensor  # [T] int64: block * block_size + offset that the token's K/V goes to
    block_tables: Tensor  # [S, most blocks] int32, padded with the trash block
    context_lens: Tensor  # [S] int32: tokens of each sequence, this step's included
    cu_q: Tensor  # [S + 1] int32: where each sequence's tokens begin in [0, T]
    sample_at: Tensor  # [rows that sample] int64: the token whose logits are wanted
    num_decode: int  # how many of the first rows have exactly one token
    q_lens: tuple[int, ...]
    contexts: tuple[int, ...]


def _row_slots(
    row: Row, table: npt.NDArray[np.int64], block_size: int, trash_block: int
) -> npt.NDArray[np.int64]:
    positions = np.arange(row.start, row.context)
    blocks = np.where(positions < row.write_from, trash_block, table[positions // block_size])
    slots: npt.NDArray[np.int64] = blocks * block_size + positions % block_size
    return slots


def _check(row: Row, block_size: int) -> None:
    if not row.tokens or row.start < 0:
        raise ValueError(f"a row needs tokens from a position on, got {row}")
    if row.context > len(row.block_table) * block_size:
        raise ValueError(f"{len(row.block_table)} blocks do not hold {row.context} tokens")


def build_step(
    rows: Sequence[Row], *, block_size: int, trash_block: int, device: torch.device | str = "cpu"
) -> StepInput:
    """Lay out a step.

    Args:
        rows: at least one; decodes (one token) first, then prefills.
        block_size: tokens a block.
        trash_block: the block that tokens below `write_from` write to.
        device: where the tensors go.
    Raises: ValueError: no rows, a row without tokens, one that its block table does not
            cover, or a block that is not there.
    """
    if not rows:
        raise ValueError("a step needs at least one row")
    for row in rows:
        _check(row, block_size)
    q_lens = [len(row.tokens) for row in rows]
    contexts = [row.context for row in rows]
    ends = np.cumsum(q_lens)
    tables = np.full((len(rows), max(len(row.block_table) for row in rows)), trash_block)
    for table, row in zip(tables, rows, strict=True):
        table[: len(row.block_table)] = row.block_table
    if tables.min() < 0 or tables.max() > trash_block:
        raise ValueError(f"block ids must be in [0, {trash_block})")
    slots = [
        _row_slots(row, table, block_size, trash_block)
        for row, table in zip(rows, tables, strict=True)
    ]
    not_decode = [s for s, q_len in enumerate(q_lens) if q_len != 1]

    def tensor(values: npt.ArrayLike, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.as_tensor(np.asarray(values), dtype=dtype).to(device, non_blocking=True)

    return StepInput(
        ids=tensor([token for row in rows for token in row.tokens]),
        positions=tensor(np.concatenate([np.arange(row.start, row.context) for row in rows])),
        slots=tensor(np.concatenate(slots)),
        block_tables=tensor(tables, torch.int32),
        context_lens=tensor(contexts, torch.int32),
        cu_q=tensor(np.concatenate([[0], ends]), torch.int32),
        sample_at=tensor(
            np.array([end - 1 for end, row in zip(ends, rows, strict=True) if row.samples], int)
        ),
        num_decode=not_decode[0] if not_decode else len(rows),
        q_lens=tuple(q_lens),
        contexts=tuple(contexts),
    )
