"""Which fault happens when, to whom, for how long: a pure function of a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

KILLS = ("kill worker", "kill lmpoold", "kill server")
STOPS = ("stop worker", "stop lmpoold", "stop server")
LINKS = ("cut", "hold", "hole", "slow")
MESSAGES = ("replay", "forge", "function flush", "script flush")
HANGS = ("hang worker",)
RESTARTS = ("roll worker", "roll lmpoold")
SERVER_AWAY = "cut all"

WEIGHTS = {
    "kill worker": 20,
    "kill lmpoold": 14,
    "kill server": 7,
    "stop worker": 9,
    "stop lmpoold": 8,
    "stop server": 3,
    "hang worker": 6,
    "cut": 7,
    "hold": 7,
    "hole": 5,
    "slow": 6,
    "replay": 14,
    "forge": 8,
    "function flush": 3,
    "script flush": 2,
    "roll worker": 4,
    "roll lmpoold": 3,
    SERVER_AWAY: 1,
}
"""How often each kind comes up, relative to the others."""

STALL_MS = 4000
"""`engine_stall_ms` of a pool under faults."""

LONGEST_S = {
    "kill worker": 2.0,
    "kill lmpoold": 2.0,
    "kill server": 2.0,
    "stop worker": 6.0,
    "stop lmpoold": 8.0,
    "stop server": 4.0,
    "hang worker": 8.0,
    "cut": 6.0,
    "hold": 5.0,
    "hole": 0.0,
    "slow": 6.0,
    SERVER_AWAY: 10.0,
}
"""The longest time from the fault to its cure (restart, SIGCONT, a healed link); others have none.

A stopped worker is fenced after 3 s without a heartbeat, and one whose device hangs after
`STALL_MS`: some of either end before, some after it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        at_s: seconds from the start of the schedule.
        kind: a name of `WEIGHTS`.
        victim: `worker 1`, `lmpoold 0`, `server`, or `` for nobody in particular.
        for_s: seconds from the fault to its cure.
        draw: a number of the fault's own to draw from, so that a replay is the same one each time.
    """

    at_s: float
    kind: str
    victim: str
    for_s: float
    draw: int


def plan_faults(
    seed: int, *, seconds: float, every_s: float, lmpoolds: int, workers: int
) -> list[Fault]:
    """Return the faults of a run in order of time.

    Args:
        seed: equal seeds give equal plans.
        seconds: the plan's length; every cure lies within it or shortly behind it.
        every_s: mean seconds between two faults.
        lmpoolds: how many there are.
        workers: how many there are.
    """
    draw = random.Random(seed)
    faults: list[Fault] = []
    at_s = draw.expovariate(1 / every_s)
    while at_s < seconds:
        kind = draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        for_s = draw.uniform(0.0, LONGEST_S.get(kind, 0.0))
        if kind == SERVER_AWAY:
            for_s = min(LONGEST_S[kind], seconds / 4)
        faults.append(
            Fault(
                at_s=round(at_s, 3),
                kind=kind,
                victim=_victim(kind, draw, lmpoolds, workers),
                for_s=round(for_s, 3),
                draw=draw.getrandbits(32),
            )
        )
        at_s += draw.expovariate(1 / every_s)
    return faults


def _victim(kind: str, draw: random.Random, lmpoolds: int, workers: int) -> str:
    name = kind.partition(" ")[2]
    if name == "server" or kind in (SERVER_AWAY, "function flush", "script flush"):
        return "server"
    if name == "lmpoold":
        return f"lmpoold {draw.randrange(lmpoolds)}"
    if name == "worker" or kind in MESSAGES:
        return f"worker {draw.randrange(workers)}"
    place = draw.randrange(lmpoolds + workers)
    return f"lmpoold {place}" if place < lmpoolds else f"worker {place - lmpoolds}"
