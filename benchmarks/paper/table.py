"""Results as lines of text: a mode a line, means with their 95 % intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COLUMNS = (
    ("tok/s", "throughput_tok_s", 1.0, 1),
    ("goodput", "goodput_tok_s", 1.0, 1),
    ("TTFT ms", "ttft_ms.mean", 1.0, 1),
    ("TPOT ms", "tpot_ms.mean", 1.0, 1),
    ("E2E ms", "e2e_ms.mean", 1.0, 1),
    ("P90 E2E", "e2e_ms.p90", 1.0, 1),
    ("hit %", "workers.prefix_hit_rate", 100.0, 1),
    ("reuse %", "workers.token_reuse", 100.0, 1),
    ("uncached", "workers.prefill_uncached_tokens", 1.0, 0),
    ("moved", "transfers.transfer_blocks", 1.0, 0),
    ("freed", "transfers.released_blocks", 1.0, 0),
    ("leases", "lease_routes", 1.0, 0),
    ("busiest %", "busiest_rank_share", 100.0, 0),
)
"""Heading, figure, factor, decimals."""


def cell(summary: Mapping[str, Mapping[str, float]], name: str, factor: float, digits: int) -> str:
    """Return `mean±half width`, or the mean alone where that says all."""
    found = summary.get(name)
    if found is None:
        return "-"
    text = f"{found['mean'] * factor:,.{digits}f}"
    half = f"{found.get('ci95', 0.0) * factor:,.{digits}f}"
    return text if float(half.replace(",", "")) == 0 else f"{text}±{half}"


def table(result: Mapping[str, Any]) -> str:
    """Return a result as a Markdown table."""
    heads = ["mode", *(head for head, *_ in COLUMNS)]
    rows = [heads, ["---"] * len(heads)]
    for mode, row in result["results"].items():
        cells = [cell(row["summary"], *column) for _, *column in COLUMNS]
        rows.append([mode, *cells])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def gains(result: Mapping[str, Any], over: str = "multi-gpu") -> str:
    """Return what each mode gains over round robin in throughput, and loses in TTFT and TPOT."""
    if over not in result["results"]:
        return ""
    base, lines = result["results"][over]["summary"], []
    for mode, row in result["results"].items():
        if mode == over:
            continue
        words = []
        for head, name, *_ in (COLUMNS[0], COLUMNS[2], COLUMNS[3]):
            if name in base and base[name]["mean"]:
                change = row["summary"][name]["mean"] / base[name]["mean"] - 1
                words.append(f"{head.split()[0]} {change:+.1%}")
        lines.append(f"{mode} against {over}: " + ", ".join(words))
    return "\n".join(lines)
