"""The Lua function library: assembled from `lua/*.lua`, loaded once a server."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

LIBRARY = "lmpool"
PARTS = (
    "base",
    "cfg",
    "client",
    "match",
    "flight",
    "lease",
    "cost",
    "search",
    "plan",
    "fetch",
    "carry",
    "terms",
    "route",
    "gate",
    "promise",
    "dispatch",
    "late",
    "delta",
    "snapshot",
    "requeue",
    "planend",
    "planrun",
    "planshow",
    "planreap",
    "probe",
    "rank",
    "request",
    "emit",
    "grant",
    "cancel",
    "inspect",
)
"""Load order: a part may use the locals of the parts before it."""

FUNCTIONS = {
    "acquire": False,
    "admit": False,
    "cancel": False,
    "chain": True,
    "configure": False,
    "delta": False,
    "drain": False,
    "emit": False,
    "explain": True,
    "finish": False,
    "heartbeat": False,
    "lease_expire": False,
    "lease_grant": False,
    "page": True,
    "plan_abort": False,
    "plan_executed": False,
    "plan_finalize": False,
    "plan_prepare": False,
    "plan_prepared": False,
    "plan_probe": False,
    "plan_publish": False,
    "plan_reap": False,
    "plans": True,
    "rank_down": False,
    "rank_up": False,
    "ranks": True,
    "reap": False,
    "route": False,
    "stage": False,
    "step": False,
    "submit": False,
    "swap": False,
    "tune": False,
}
"""Every function of the library, and whether it only reads (FCALL_RO)."""


@cache
def source() -> str:
    """Return the library's text as FUNCTION LOAD takes it."""
    folder = files("lmpoold.store") / "lua"
    parts = [(folder / f"{part}.lua").read_text(encoding="utf-8") for part in PARTS]
    return f"#!lua name={LIBRARY}\n" + "\n".join(parts)
