"""Five ways to serve: the same processes and functions, with constants of the pool set apart.

Round robin is the real route rule with one choice: each request names its rank as its origin, and
may go nowhere else. Where blocks move as well, they are those that are copied ahead and those that
a rank short of room moves away: a prefix is fetched on the way only where the pool chooses ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

STILL = {"fetch": "0", "foreground": "0", "background": "0"}
MOVING = {"fetch": "1", "foreground": "1", "background": "1"}
FREE = {"origin_hops": "2"}


@dataclass(frozen=True, slots=True)
class Mode:
    """One way.

    Attributes:
        many: all ranks serve; otherwise one.
        in_turn: requests go to the ranks in turn.
        constants: of `cfg`, as text.
    """

    name: str
    many: bool
    in_turn: bool
    constants: Mapping[str, str] = field(default_factory=dict)


MODES = {
    mode.name: mode
    for mode in (
        Mode("single-gpu", many=False, in_turn=False, constants=FREE | STILL),
        Mode("multi-gpu", many=True, in_turn=True, constants=FREE | STILL | {"origin_hops": "0"}),
        Mode("kv-routing", many=True, in_turn=False, constants=FREE | STILL),
        Mode(
            "kv-transfer", many=True, in_turn=True, constants=FREE | MOVING | {"origin_hops": "0"}
        ),
        Mode("lmpool", many=True, in_turn=False, constants=FREE | MOVING),
    )
}
