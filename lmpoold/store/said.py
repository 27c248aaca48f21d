"""What a worker says of its steps, as the arguments of `emit`, `delta` and `step`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lmpoold.protocol.hashing import PrefixHash
from lmpoold.protocol.messages import Output, write_outputs
from lmpoold.protocol.views import Counts, Ended, PageEntry


def emit_args(
    rank: int,
    epoch: str,
    step: int,
    outputs: Mapping[str, Sequence[Output]],
    ended: Sequence[Ended],
) -> list[str | int]:
    """Return the arguments of `emit`; see `PoolStore.emit`."""
    args: list[str | int] = [rank, epoch, step, len(outputs)]
    journal: dict[str, list[str]] = {}
    for client, rows in outputs.items():
        entry = write_outputs(rows)
        args += [client, len(entry), *entry]
        for row in rows:
            if row.token is not None:
                journal.setdefault(row.id, []).append(str(row.token))
    for end in ended:
        journal.pop(end.id, None)  # its journal is about to be dropped
    args.append(len(journal))
    for request_id, tokens in journal.items():
        args += [request_id, " ".join(tokens)]
    args.append(len(ended))
    for end in ended:
        args += [end.id, end.attempt, end.entry, end.state, end.finish_reason]
        args += [end.prompt_tokens, end.cached_tokens, end.output_tokens]
    return args


def delta_args(
    rank: int,
    epoch: str,
    base: int,
    new: int,
    counts: Counts,
    admitted: Sequence[str],
    puts: Mapping[PrefixHash, PageEntry],
    dels: Sequence[PrefixHash],
) -> list[str | int]:
    """Return the arguments of `delta`; see `PoolStore.delta`."""
    pages = [part for name, entry in puts.items() for part in (name, str(entry))]
    args: list[str | int] = [rank, epoch, base, new, str(counts), len(admitted), *admitted]
    return [*args, len(puts), *pages, *dels]
