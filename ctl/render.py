"""Rows to text: tables for people, aligned columns for pipes, JSON for programs. Pure."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console, Group, JustifyMethod
from rich.table import Table
from rich.text import Text

GAP = "  "
LEAST_WIDTH = 4
"""What a flexible column keeps however narrow the terminal is."""
DASH = "-"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        number: aligned right.
        flexible: may be cut short, with an ellipsis, where the terminal is too narrow.
    """

    name: str
    number: bool = False
    flexible: bool = False


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table before anybody decided how it looks: every row has a cell a column."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""


def sheet(columns: Sequence[Column], rows: Iterable[Sequence[object]], title: str = "") -> Sheet:
    """Return a Sheet whose cells are text; None becomes a dash."""
    cells = (tuple(DASH if cell is None else str(cell) for cell in row) for row in rows)
    return Sheet(tuple(columns), tuple(cells), title)


def plain(table: Sheet) -> str:
    """Return aligned lines without decoration and never cut: one row a line, for a pipe."""
    head = tuple(column.name for column in table.columns)
    lines = (head, *table.rows)
    widths = _widths(table)
    out = [
        GAP.join(
            cell.rjust(width) if column.number else cell.ljust(width)
            for cell, width, column in zip(row, widths, table.columns, strict=True)
        ).rstrip()
        for row in lines
    ]
    return "\n".join([table.title, *out] if table.title else out)


def fitted(table: Sheet, width: int) -> Sheet:
    """Return the sheet cut to `width` columns: flexible ones give way, the widest first."""
    widths = _widths(table)
    surplus = sum(widths) + len(GAP) * (len(widths) - 1) - width
    flexible = [at for at, column in enumerate(table.columns) if column.flexible]
    while surplus > 0 and flexible:
        at = max(flexible, key=lambda each: widths[each])
        if widths[at] <= LEAST_WIDTH:
            break
        widths[at] -= 1
        surplus -= 1
    cut = [
        tuple(_cut(cell, most) for cell, most in zip(row, widths, strict=True))
        for row in (tuple(column.name for column in table.columns), *table.rows)
    ]
    columns = [replace(each, name=name) for each, name in zip(table.columns, cut[0], strict=True)]
    return replace(table, columns=tuple(columns), rows=tuple(cut[1:]))


def _widths(table: Sheet) -> list[int]:
    lines = (tuple(column.name for column in table.columns), *table.rows)
    return [max(len(row[at]) for row in lines) for at in range(len(table.columns))]


def _cut(cell: str, most: int) -> str:
    return cell if len(cell) <= most else cell[: most - 1] + "…"


def terminal(table: Sheet, width: int) -> Group:
    """Return the sheet for a terminal of `width` columns: no row is wider, no number is cut."""
    grid = Table(box=None, padding=(0, len(GAP), 0, 0), pad_edge=False, header_style="dim")
    table = fitted(table, width)
    for column in table.columns:
        justify: JustifyMethod = "right" if column.number else "left"
        grid.add_column(Text(column.name), justify=justify, no_wrap=True)
    for row in table.rows:
        grid.add_row(*map(Text, row))
    return Group(Text(table.title, style="bold"), grid) if table.title else Group(grid)


def drawn(table: Sheet, width: int) -> str:
    """Return the sheet as a terminal of `width` columns shows it, without colour."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    console.print(terminal(table, width))
    return out.getvalue().rstrip("\n")


def to_json(value: Any) -> str:
    """Return one line of JSON; text stays readable in any script."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def compact(count: int) -> str:
    """Return a count in at most 6 characters, a minus aside: 99999, 1.23M, 34.5G."""
    if abs(count) < 100_000:
        return str(count)
    value, units = float(count), "kMGTP"
    for unit in units:
        value /= 1000
        if abs(value) < 999.5 or unit == units[-1]:
            break
    places = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{places}f}{unit}"


def percent(ratio: float | None) -> str:
    """Return a share as 53.1%, or a dash where there is none yet."""
    return DASH if ratio is None else f"{100 * ratio:.1f}%"
