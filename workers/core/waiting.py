"""The line of sequences that wait for a seat, and what they will need."""

from __future__ import annotations

from bisect import bisect_left, insort

from workers.core.blocks import BlockPool
from workers.core.sequence import Sequence


def line_order(sequence: Sequence) -> tuple[int, int]:
    """Order sequences: higher priority first, then the earlier arrival."""
    return (-sequence.priority, sequence.arrival)


class WaitingLine:
    """Waiting sequences in line order, with running totals of the work and the blocks they lack.

    What a sequence lacks is judged by `Sequence.resident_blocks`, the leading blocks that the pool
    seemed to hold when last looked at: a hint, as blocks come and go while it waits.
    """

    def __init__(self, pool: BlockPool) -> None:
        """Start empty; `pool` answers what is resident."""
        self._pool = pool
        self._line: list[Sequence] = []
        self.missing_tokens = 0
        """Known tokens to compute."""
        self.output_tokens = 0
        """Tokens they may emit."""
        self.missing_blocks = 0
        """Blocks for their known tokens, and one each to grow into."""

    def __len__(self) -> int:
        """Count the sequences."""
        return len(self._line)

    def __getitem__(self, place: int) -> Sequence:
        """Return the sequence at a place, 0 for the first."""
        return self._line[place]

    def join(self, sequence: Sequence) -> None:
        """Let a sequence in at its place."""
        sequence.resident_blocks, _ = self._pool.resident(sequence.hashes)
        self._count(sequence, 1)
        insort(self._line, sequence, key=line_order)

    def leave(self, sequence: Sequence) -> None:
        """Take out a sequence that is in line."""
        place = bisect_left(self._line, line_order(sequence), key=line_order)
        while self._line[place] is not sequence:
            place += 1
        del self._line[place]
        self._count(sequence, -1)

    def look(self, sequence: Sequence) -> tuple[int, int]:
        """Look again at what the pool has of a sequence in line.

        Returns: its leading blocks that are resident, and how many of these somebody holds.
        """
        found, held = self._pool.resident(sequence.hashes)
        if found != sequence.resident_blocks:
            self._count(sequence, -1)
            sequence.resident_blocks = found
            self._count(sequence, 1)
        return found, held

    def _count(self, sequence: Sequence, sign: int) -> None:
        known, resident = len(sequence.tokens), sequence.resident_blocks
        size = self._pool.block_size
        blocks = min(-(-known // size) + 1, sequence.most_blocks(size))
        self.missing_tokens += sign * (known - resident * size)
        self.output_tokens += sign * sequence.remaining
        self.missing_blocks += sign * (blocks - resident)

    def check(self) -> None:
        """Assert the order and the totals."""
        assert self._line == sorted(self._line, key=line_order), "the line is out of order"
        sums = (self.missing_tokens, self.output_tokens, self.missing_blocks)
        again = WaitingLine(self._pool)
        for sequence in self._line:
            assert not sequence.block_table, f"{sequence.request_id} waits and holds blocks"
            assert sequence.computed == sequence.published == 0, f"{sequence.request_id} waits"
            again._count(sequence, 1)
        counted = (again.missing_tokens, again.output_tokens, again.missing_blocks)
        assert sums == counted, f"totals {sums}, counted {counted}"
