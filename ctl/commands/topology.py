"""`lmpoolctl topology`: which GPUs of this machine have direct links."""

from __future__ import annotations

from typing import Any

import click

from ctl.render import Column, Sheet, sheet, to_json
from ctl.target import json_option
from ctl.terminal import show
from lmpoold.protocol.topology import Topology, visible
from lmpoold.shell.links import read_topology, visible_setting

GPUS = (
    Column("gpu", number=True),
    Column("ordinal", number=True),
    Column("linked to"),
    Column("name", flexible=True),
    Column("uuid", flexible=True),
)
PAIRS = (
    Column("pair"),
    Column("links", number=True),
    Column("GB/s a direction", number=True),
)


@click.command(short_help="Show which GPUs of this machine have direct links.")
@click.option("--pairs", default="", metavar="0-1,...", help="Take these pairs, ask nobody.")
@json_option
def topology(pairs: str, as_json: bool) -> None:
    """Show the GPUs of this machine, what CUDA_VISIBLE_DEVICES leaves, and their direct links.

    Asks NVML (package nvidia-ml-py), or `nvidia-smi topo -m` where that is missing. Needs no
    server and no pool.

    \b
    Example:  lmpoolctl topology
              lmpoolctl topology --json
              lmpoolctl topology --pairs 0-1,2-3
    """
    found = read_topology(pairs)
    seen = visible(found.gpus, visible_setting())
    if as_json:
        print(to_json(topology_json(found, seen)))
    else:
        show(topology_sheets(found, seen))


def topology_json(found: Topology, seen: tuple[int, ...]) -> dict[str, Any]:
    """Return a topology for programs."""
    return {
        "source": found.source,
        "gpus": [
            {
                "gpu": gpu.index,
                "ordinal": seen.index(gpu.index) if gpu.index in seen else None,
                "name": gpu.name,
                "uuid": gpu.uuid,
                "linked_to": sorted(found.neighbours(gpu.index)),
            }
            for gpu in found.gpus
        ],
        "pairs": [
            {"pair": [one.low, one.high], "links": one.links, "gb_s": one.gb_s}
            for one in found.connections
        ],
    }


def topology_sheets(found: Topology, seen: tuple[int, ...]) -> list[Sheet]:
    """Return the tables that show a topology."""
    gpus = [
        (
            gpu.index,
            seen.index(gpu.index) if gpu.index in seen else None,
            ", ".join(str(other) for other in sorted(found.neighbours(gpu.index))) or None,
            gpu.name or None,
            gpu.uuid or None,
        )
        for gpu in found.gpus
    ]
    pairs = [
        (f"{one.low}-{one.high}", one.links or None, f"{one.gb_s:.0f}" if one.gb_s else None)
        for one in found.connections
    ]
    return [
        sheet(GPUS, gpus, f"GPUs, as {found.source} says"),
        sheet(PAIRS, pairs, "direct connections"),
    ]
