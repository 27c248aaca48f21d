"""Traces of real use, read from files that the user has: nothing of them is part of the project.

Three formats: Mooncake (a JSON object a line: `timestamp` ms, `input_length`, `output_length`,
`hash_ids` of 512 tokens each), Claude Code sessions (compact rows: see `read_sessions`), Azure
(CSV of arrivals and lengths, no content). README.md says where they come from.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

MOONCAKE_BLOCK_TOKENS = 512
SESSION_BLOCK_TOKENS = 64
AZURE_BLOCK_TOKENS = 512


class TraceError(Exception):
    """A file is not the trace it was given as; the message names the line and what it lacks."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    Attributes:
        arrival_s: since the trace began.
        input_tokens: of the prompt, > 0.
        output_tokens: of the answer, > 0.
        blocks: an id for each complete block of the prompt, root first. Equal ids after equal
            prefixes are equal content.
    """

    arrival_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival, and the tokens a block of theirs has."""

    name: str
    block_tokens: int
    requests: tuple[TraceRequest, ...]

    @property
    def input_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return sum(request.input_tokens for request in self.requests)

    def head(self, count: int) -> Trace:
        """Return the first `count` requests; 0 for all."""
        return replace(self, requests=self.requests[:count]) if count else self

    def faster(self, factor: float) -> Trace:
        """Return the same requests, arriving `factor` times as fast."""
        requests = tuple(replace(r, arrival_s=r.arrival_s / factor) for r in self.requests)
        return replace(self, requests=requests)

    def finer(self, parts: int) -> Trace:
        """Cut every block into `parts`: the same content in smaller blocks.

        The tail of a prompt that filled no block of the trace is still counted as no block: what
        it holds is not known.
        """
        requests = tuple(
            replace(r, blocks=tuple(b * parts + j for b in r.blocks for j in range(parts)))
            for r in self.requests
        )
        return Trace(self.name, self.block_tokens // parts, requests)

    def coarser(self, times: int) -> Trace:
        """Join runs of `times` blocks; a run's id stands for its ids and all before them."""
        joined: dict[tuple[int, tuple[int, ...]], int] = {}

        def join(blocks: tuple[int, ...]) -> tuple[int, ...]:
            names: list[int] = []
            for start in range(0, len(blocks) - times + 1, times):
                run = (names[-1] if names else -1, blocks[start : start + times])
                names.append(joined.setdefault(run, len(joined)))
            return tuple(names)

        requests = tuple(replace(r, blocks=join(r.blocks)) for r in self.requests)
        return Trace(self.name, self.block_tokens * times, requests)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise TraceError(f"{path}:{number}: not JSON: {error}") from None
            if not isinstance(row, dict):
                raise TraceError(f"{path}:{number}: expected an object")
            yield number, row


def read_mooncake(path: Path) -> Trace:
    """Read a Mooncake trace; TraceError if a line lacks a field."""
    requests = []
    for number, row in _rows(path):
        try:
            tokens, ids = int(row["input_length"]), row["hash_ids"]  # type: ignore[call-overload]
            complete = tuple(ids)[: tokens // MOONCAKE_BLOCK_TOKENS]  # type: ignore[arg-type]
            arrival_s = float(row["timestamp"]) / 1000  # type: ignore[arg-type]
            output = max(1, int(row["output_length"]))  # type: ignore[call-overload]
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(f"{path}:{number}: not a row of a Mooncake trace: {error!r}") from None
        requests.append(TraceRequest(arrival_s, max(1, tokens), output, complete))
    return _ordered(path, MOONCAKE_BLOCK_TOKENS, requests)


def read_sessions(path: Path, *, sessions: int = 0, window_s: float = 3600, seed: int = 0) -> Trace:
    """Read Claude Code sessions: rows of `s` session, `a` lane, `t` seconds since the session
    began, `in` and `out` tokens, `k` blocks kept of the lane's last prompt, `r` runs
    `[first id, count]` behind them.

    The file gives sessions no wall-clock start: each gets one, even over `window_s`, by `seed`. Ids
    are local to a session, so none is shared between two.

    Args:
        path: the file.
        sessions: how many of them, in the file's order; 0 for all.
        window_s: in which the sessions begin.
        seed: of their starts.
    """
    draw = random.Random(seed)
    starts: dict[str, float] = {}
    ids: dict[tuple[str, int], int] = {}
    lanes: dict[tuple[str, int], list[int]] = {}
    requests = []
    for number, row in _rows(path):
        try:
            session, lane = str(row["s"]), int(row["a"])  # type: ignore[call-overload]
            if session not in starts:
                if sessions and len(starts) == sessions:
                    break
                starts[session] = draw.uniform(0, window_s)
            prompt = lanes.get((session, lane), [])[: int(row["k"])]  # type: ignore[call-overload]
            for first, count in row["r"]:  # type: ignore[attr-defined]
                prompt += [ids.setdefault((session, first + i), len(ids)) for i in range(count)]
            tokens, output = int(row["in"]), int(row["out"])  # type: ignore[call-overload]
            arrival_s = starts[session] + float(row["t"])  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(f"{path}:{number}: not a row of a session: {error!r}") from None
        lanes[session, lane] = prompt
        complete = tuple(prompt[: tokens // SESSION_BLOCK_TOKENS])
        requests.append(TraceRequest(arrival_s, max(1, tokens), max(1, output), complete))
    return _ordered(path, SESSION_BLOCK_TOKENS, requests)


def read_azure(path: Path) -> Trace:
    """Read arrivals and lengths of an Azure trace; no two of its prompts share a block."""
    requests, first, fresh = [], None, 0
    with path.open(encoding="utf-8", newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines), 2):
            try:
                at = datetime.fromisoformat(row["TIMESTAMP"].strip()[:26])
                tokens, output = int(row["ContextTokens"]), int(row["GeneratedTokens"])
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise TraceError(
                    f"{path}:{number}: not a row of an Azure trace: {error!r}"
                ) from None
            first = first or at
            count = tokens // AZURE_BLOCK_TOKENS
            blocks = tuple(range(fresh, fresh + count))
            fresh += count
            arrival_s = (at - first).total_seconds()
            requests.append(TraceRequest(arrival_s, max(1, tokens), max(1, output), blocks))
    return _ordered(path, AZURE_BLOCK_TOKENS, requests)


def _ordered(path: Path, block_tokens: int, requests: Iterable[TraceRequest]) -> Trace:
    inorder = tuple(sorted(requests, key=lambda request: request.arrival_s))
    if not inorder:
        raise TraceError(f"{path}: no request in it")
    return Trace(path.stem, block_tokens, inorder)


READERS: dict[str, Callable[[Path], Trace]] = {
    "mooncake": read_mooncake,
    "sessions": read_sessions,
    "azure": read_azure,
}


def read_trace(path: Path) -> Trace:
    """Read a trace of any of the formats, told apart by its first line."""
    with path.open(encoding="utf-8") as lines:
        first = lines.readline()
    if first.startswith("TIMESTAMP"):
        return read_azure(path)
    if '"hash_ids"' in first:
        return read_mooncake(path)
    if '"s"' in first and '"k"' in first:
        return read_sessions(path)
    raise TraceError(
        f"{path}: neither a Mooncake trace, nor Claude Code sessions, nor an Azure CSV; see "
        "benchmarks/README.md for the formats"
    )
