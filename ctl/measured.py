"""What calibration measured and what the pool keeps of it: tables and JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ctl.probing import Measured
from ctl.render import Column, Sheet, sheet
from lmpoold.protocol.calibration import Sample, points_of
from lmpoold.protocol.profile import Pair, Profile, write_pair

POINTS = (
    Column("link"),
    Column("blocks", number=True),
    Column("MB", number=True),
    Column("travel p50 ms", number=True),
    Column("p95 ms", number=True),
    Column("GB/s", number=True),
    Column("rest ms", number=True),
    Column("plan p50 ms", number=True),
    Column("p95 ms", number=True),
)
REMARKS = (Column("link"), Column("remark"))


def remark_of(one: Measured, asked: int) -> str:
    """Return what there is to say of a pair besides its figures."""
    if one.why or 2 * one.most_blocks > asked:
        return one.why
    return (
        f"up to {one.most_blocks} blocks only: no more than half of a rank's free blocks are taken"
    )


def measured_json(found: Sequence[Measured], profile: Profile, asked: int) -> dict[str, Any]:
    """Return everything for programs; times in microseconds."""
    return {
        "block_bytes": profile.block_bytes,
        "links": [
            {
                "source": one.pair[0],
                "destination": one.pair[1],
                "remark": remark_of(one, asked),
                "slowing": profile.slowing.get(one.pair),
                "points": [
                    {name: getattr(point, name) for name in point.__slots__}
                    for point in points_of(one.samples, one.pair)
                ],
            }
            for one in found
        ],
    }


def measured_sheets(found: Sequence[Measured], profile: Profile, asked: int) -> list[Sheet]:
    """Return the tables of what was measured."""
    rows, remarks = [], []
    for one in found:
        rows += _point_rows(one.samples, one.pair, profile.block_bytes)
        if remark := remark_of(one, asked):
            remarks.append((write_pair(one.pair), remark))
        if factor := profile.slowing.get(one.pair):
            remarks.append((write_pair(one.pair), f"{factor:.2f} times as long beside computing"))
    sheets = [sheet(POINTS, rows, "links, as measured and kept")] if rows else []
    return [*sheets, sheet(REMARKS, remarks, "remarks")] if remarks else sheets


def _point_rows(
    samples: Sequence[Sample], pair: Pair, block_bytes: int
) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for point in points_of(samples, pair):
        size = point.blocks * block_bytes
        rate = size / point.travel_p50_us / 1000 if point.travel_p50_us else None
        times = (point.travel_p50_us, point.travel_p95_us)
        rest = (point.residual_us, point.total_p50_us, point.total_p95_us)
        rows.append(
            (
                write_pair(pair),
                point.blocks,
                f"{size / 1e6:.1f}",
                *(f"{us / 1000:.2f}" for us in times),
                None if rate is None else f"{rate:.2f}",
                *(f"{us / 1000:.2f}" for us in rest),
            )
        )
    return rows


def profile_sheet(profile: Profile) -> Sheet:
    """Return the table of what is kept."""
    columns = (
        Column("link"),
        Column("blocks", number=True),
        Column("travel p95 ms", number=True),
        Column("rest ms", number=True),
        Column("beside computing", number=True),
    )
    rows = []
    for pair, curve in sorted(profile.curves.items()):
        factor = profile.slowing.get(pair)
        for size, us in curve.points:
            blocks = size // profile.block_bytes
            rest = profile.residual(pair, blocks)
            rows.append(
                (
                    write_pair(pair),
                    blocks,
                    f"{us / 1000:.2f}",
                    None if rest is None else f"{rest / 1000:.2f}",
                    None if factor is None else f"x {factor:.2f}",
                )
            )
    return sheet(columns, rows, f"kept, for blocks of {profile.block_bytes} bytes")
