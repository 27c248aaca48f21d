"""Which GPUs of a host have direct links, and which of them a process sees. Pure.

GPUs are counted as NVML and `nvidia-smi` count them (by PCI bus). A process counts those that
CUDA_VISIBLE_DEVICES leaves it, in that order: its ordinals.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lmpoold.protocol.errors import ConfigError

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_GPU = re.compile(r"GPU(\d+)")
_LINKED = re.compile(r"NV(\d+)")
_CELL = re.compile(r"X|SYS|NODE|PHB|PXB|PIX|SOC|N/?A|NV\d+")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: its index by PCI bus, and what names it; "" where that is not known."""

    index: int
    uuid: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Connection:
    """A direct connection of two GPUs, `low` < `high`.

    Attributes:
        links: NVLinks; 0 where only the connection is known.
        gb_s: their limit together, in one direction; 0.0 where it is not known.
    """

    low: int
    high: int
    links: int = 0
    gb_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Topology:
    """The GPUs of a host and their direct connections; `source` says who told."""

    source: str
    gpus: tuple[Gpu, ...]
    connections: tuple[Connection, ...]

    def neighbours(self, index: int) -> frozenset[int]:
        """Return the indices of the GPUs that `index` is connected to."""
        return frozenset(
            one.high if one.low == index else one.low
            for one in self.connections
            if index in (one.low, one.high)
        )


def parse_matrix(text: str) -> Topology:
    """Read what `nvidia-smi topo -m` printed; colours and underlines do not matter.

    Raises: ConfigError: it holds no matrix, or one that contradicts itself.
    """
    lines = [_ESCAPE.sub("", line).split() for line in text.splitlines()]
    at = next((at for at, cells in enumerate(lines) if cells[:1] == ["GPU0"]), None)
    if at is None:
        raise ConfigError("this is not what `nvidia-smi topo -m` prints: no line begins with GPU0")
    columns = [cell for cell in lines[at] if _GPU.fullmatch(cell)]
    count = len(columns)
    if columns != [f"GPU{index}" for index in range(count)]:
        raise ConfigError(f"the matrix's columns are {', '.join(columns)}, not GPU0 and up")
    rows: dict[int, list[str]] = {}
    for cells in lines[at + 1 :]:
        named = _GPU.fullmatch(cells[0]) if cells else None
        if named is not None:
            rows.setdefault(int(named[1]), cells[1 : count + 1])
    for index in range(count):
        row = rows.get(index, [])
        if len(row) != count or not all(_CELL.fullmatch(cell) for cell in row):
            raise ConfigError(f"the matrix's row of GPU{index} has {len(row)} of {count} cells")
    connections = []
    for low in range(count):
        for high in range(low + 1, count):
            if rows[low][high] != rows[high][low]:
                raise ConfigError(
                    f"GPU{low} is {rows[low][high]} to GPU{high}, which is {rows[high][low]} back"
                )
            linked = _LINKED.fullmatch(rows[low][high])
            if linked is not None and int(linked[1]) > 0:
                connections.append(Connection(low, high, links=int(linked[1])))
    return Topology("nvidia-smi", tuple(Gpu(index) for index in range(count)), tuple(connections))


def parse_pairs(text: str) -> Topology:
    """Read connections given by hand: `0-1,2-3`.

    Raises: ConfigError: it is none of that.
    """
    pairs: set[tuple[int, int]] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = re.fullmatch(r"(\d{1,4})-(\d{1,4})", part)
        if found is None or found[1] == found[2]:
            raise ConfigError(f"{part!r} is no pair of GPUs; write two indices, like 0-1,2-3")
        low, high = sorted((int(found[1]), int(found[2])))
        pairs.add((low, high))
    indices = sorted({index for pair in pairs for index in pair})
    return Topology(
        "pairs",
        tuple(Gpu(index) for index in indices),
        tuple(Connection(low, high) for low, high in sorted(pairs)),
    )


def visible(gpus: Sequence[Gpu], setting: str | None) -> tuple[int, ...]:
    """Return the indices of the GPUs a process sees, by its ordinal.

    Args:
        gpus: of the host, in order of their indices.
        setting: CUDA_VISIBLE_DEVICES; None when it is not set.
    Returns: as CUDA reads the setting: up to the first entry that names no GPU, and that may be
        the start of a UUID.
    Raises: ConfigError: an entry names a part of a GPU (MIG), a UUID where none are known, more
        than one GPU, or one GPU twice.
    """
    if setting is None:
        return tuple(gpu.index for gpu in gpus)
    indices = {gpu.index for gpu in gpus}
    seen: list[int] = []
    for entry in (entry.strip() for entry in setting.split(",")):
        if entry.startswith("MIG-"):
            raise ConfigError(f"CUDA_VISIBLE_DEVICES names {entry}: LMPool serves whole GPUs")
        if entry.startswith("GPU-"):
            if not all(gpu.uuid for gpu in gpus):
                raise ConfigError(
                    "CUDA_VISIBLE_DEVICES names GPUs by UUID, which only NVML can resolve: "
                    "install nvidia-ml-py, or use indices"
                )
            named = [gpu.index for gpu in gpus if gpu.uuid.startswith(entry)]
            if len(named) > 1:
                raise ConfigError(f"CUDA_VISIBLE_DEVICES: {entry} begins several UUIDs")
        else:
            known = entry.isdecimal() and entry.isascii() and int(entry) in indices
            named = [int(entry)] if known else []
        if not named:
            break
        if named[0] in seen:
            raise ConfigError(f"CUDA_VISIBLE_DEVICES names GPU {named[0]} twice")
        seen += named
    return tuple(seen)


def place_of(topology: Topology, seen: Sequence[int], ordinal: int) -> dict[str, str]:
    """Return what a worker says of its GPU's place: `gpu`, its name, and `near`, by comma.

    The names mean the same to every process of the host: UUIDs, or indices where none are known.

    Args:
        topology: of the host.
        seen: from `visible`.
        ordinal: the GPU as this process counts.
    Raises: ConfigError: the process does not see so many.
    """
    if not 0 <= ordinal < len(seen):
        raise ConfigError(
            f"cuda:{ordinal} is none of the {len(seen)} GPUs that CUDA_VISIBLE_DEVICES leaves"
        )
    names = {gpu.index: gpu.uuid or f"#{gpu.index}" for gpu in topology.gpus}
    near = sorted(names[index] for index in topology.neighbours(seen[ordinal]) if index in names)
    return {"gpu": names[seen[ordinal]], "near": ",".join(near)}
