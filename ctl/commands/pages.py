"""`lmpoolctl pages`: which blocks a rank has published, or who holds one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import click

from ctl.commands.drain import rank_row
from ctl.render import Column, sheet, to_json
from ctl.target import Target, json_option, open_store, target_options
from ctl.terminal import note, run, show
from lmpoold.protocol.hashing import HASH_DIGITS
from lmpoold.protocol.views import parse_words
from lmpoold.store.scripts import PoolStore

SCAN_COUNT = 200
_NUMBERS = ("rank", "block", "generation", "depth")


@click.command(short_help="List a rank's published blocks, or who holds one.")
@target_options
@click.argument("rank", type=click.IntRange(0), required=False)
@click.option("--hash", "name", help="Show which ranks hold this block: 32 hex digits.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True)
@json_option
def pages(target: Target, rank: int | None, name: str | None, limit: int, as_json: bool) -> None:
    """List blocks in the page table of RANK, or with --hash the ranks that hold one block.

    depth counts blocks from the start of the prompt, parent names the block before.

    \b
    Example:  lmpoolctl pages 0 --limit 50
              lmpoolctl pages --hash 0123456789abcdef0123456789abcdef
    """
    if (rank is None) == (name is None):
        raise click.UsageError("give either RANK or --hash")
    if name is not None and not re.fullmatch(rf"[0-9a-f]{{{HASH_DIGITS}}}", name):
        raise click.BadParameter(f"a block's name is {HASH_DIGITS} hex digits", param_hint="--hash")

    async def ask() -> tuple[list[dict[str, Any]], int]:
        async with open_store(target) as store:
            if name is not None:
                found = [_holder(line) for line in await store.page(name)]
                return found, len(found)
            assert rank is not None
            row = await rank_row(store, rank)
            return await _listed(store, rank, limit), row.pages

    rows, total = run(ask())
    if as_json:
        print(to_json(rows))
        return
    first = "hash" if name is None else "rank"
    columns = [Column(first, number=name is not None)]
    columns += [Column(word, number=True) for word in _NUMBERS[1:]]
    columns.append(Column("parent", flexible=True))
    shown = (first, *_NUMBERS[1:], "parent")
    show([sheet(columns, ([row[word] for word in shown] for row in rows))])
    if name is not None and not rows:
        note(f"no rank holds {name}")
    elif total > len(rows):
        note(f"{len(rows)} of {total} blocks; --limit shows more")


def _holder(line: str) -> dict[str, Any]:
    words = parse_words(line)
    words["generation"] = words.pop("gen")
    return {**{word: int(words[word]) for word in _NUMBERS}, "parent": words["parent"]}


async def _listed(store: PoolStore, rank: int, limit: int) -> list[dict[str, Any]]:
    """Return up to `limit` pages, those nearest to a prompt's start first among what was met."""
    found: dict[str, dict[str, Any]] = {}
    scan = store.redis.hscan_iter(store.keys.pages(rank), count=SCAN_COUNT)
    async for name, value in scan:
        if name == b"_":
            continue
        block, generation, depth, parent = value.decode().split(":")
        found[name.decode()] = {
            "hash": name.decode(),
            "block": int(block),
            "generation": int(generation),
            "depth": int(depth),
            "parent": parent,
        }
        if len(found) >= limit:
            break
    return _by_depth(found.values())


def _by_depth(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["depth"], row["block"]))
