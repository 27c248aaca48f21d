"""What the engine thread tells the event loop, and how several steps become one message."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from lmpoold.protocol.hashing import PrefixHash
from lmpoold.protocol.messages import Output
from lmpoold.protocol.views import Counts, Ended, PageEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One step of the engine, or one change between steps.

    Attributes:
        epoch: the epoch it belongs to; a report of another one is void.
        outputs: (client, output) in the order they were made.
        admitted: tickets `request.attempt` that `counts` include from now on.
        snapshot: the whole page table; `puts` and `dels` before it are void.
    """

    epoch: str
    counts: Counts
    outputs: Sequence[tuple[str, Output]] = ()
    ended: Sequence[Ended] = ()
    admitted: Sequence[str] = ()
    puts: Mapping[PrefixHash, PageEntry] = field(default_factory=dict)
    dels: Sequence[PrefixHash] = ()
    snapshot: Mapping[PrefixHash, PageEntry] | None = None


@dataclass(slots=True)
class Backlog:
    """Reports merged until the server took them."""

    counts: Counts | None = None
    outputs: dict[str, list[Output]] = field(default_factory=dict)
    ended: list[Ended] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)
    puts: dict[PrefixHash, PageEntry] = field(default_factory=dict)
    dels: dict[PrefixHash, None] = field(default_factory=dict)
    snapshot: dict[PrefixHash, PageEntry] | None = None

    @property
    def still_running(self) -> list[str]:
        """The tickets admitted whose requests have not ended in the same backlog."""
        over = {f"{end.id}.{end.attempt}" for end in self.ended}
        return [ticket for ticket in self.admitted if ticket not in over]

    def drop(self, ids: Collection[str]) -> None:
        """Leave out what is said of some requests: the pool has ended them."""
        kept = {
            client: [row for row in rows if row.id not in ids]
            for client, rows in self.outputs.items()
        }
        self.outputs = {client: rows for client, rows in kept.items() if rows}
        self.ended = [end for end in self.ended if end.id not in ids]

    def add(self, report: StepReport) -> None:
        """Merge a later report in: of a put and a del of one hash, the later counts."""
        self.counts = report.counts
        for client, output in report.outputs:
            self.outputs.setdefault(client, []).append(output)
        self.ended += report.ended
        self.admitted += report.admitted
        if report.snapshot is not None:
            self.snapshot = dict(report.snapshot)
            self.puts, self.dels = {}, {}
        for name in report.dels:
            self.puts.pop(name, None)
            self.dels[name] = None
        for name, entry in report.puts.items():
            self.dels.pop(name, None)
            self.puts[name] = entry
