"""Who may do what on the server: one table of roles, and the lines of an ACL file made from it.

Functions run with the rights of whoever calls them, so a role may use the commands that its
functions use, each on the keys they use it on and no others. A grant is a selector of the server's
ACL: its commands, on its keys. `R` reads a key, `W` writes it, `RW` both.

What this cannot part: a producer may read any answer stream (they are found by name alone), and a
viewer sees of the plans under way which tokens their blocks hold. Pools that share a server are
parted by their names; tenants of one pool by `salt`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from lmpoold.protocol.keys import Keyspace

CONNECTION = "auth client|id client|setinfo client|setname hello info ping quit select time"
"""What every role may do; none of it touches a key."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Commands, and the keys on which they are allowed: names as in the data model, by access."""

    commands: str
    keys: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One kind of program.

    Attributes:
        does: what it is for.
        calls: functions of the library that it may call.
        reads: those that only read.
        grants: what else, and what those functions need.
        bare: commands without a key.
    """

    does: str
    calls: str = ""
    reads: str = ""
    grants: tuple[Grant, ...] = ()
    bare: str = ""


_LOOK = "get hexists hget hgetall hkeys hlen hmget hscan mget scard strlen xlen zcard zrange zscore"
_STATE = "load cfg r:* req:* plans leases links hot profile sched:*"
_PLANS = "hget hmget"

_VIEWER = Role(
    does="looks: lmpoolctl status, top, ranks, pages, plans, explain, pulse, topology",
    reads="chain explain page plans ranks",
    grants=(
        Grant(_LOOK, {_STATE: "R"}),
        Grant(_PLANS, {"plan:*": "R"}),
        Grant("xlen xinfo|consumers xinfo|groups", {"in w:* dead": "R"}),
        Grant("zcard", {"parked": "R"}),
        Grant("xlen xrange xrevrange", {"plans:log plans:refused": "R"}),
    ),
)
_PRODUCER = Role(
    does="asks: XADD, PoolClient, lmpoolctl submit and cancel",
    calls="submit cancel",
    reads="explain",
    grants=(
        Grant("get hget hmget hgetall", {"load cfg req:*": "R"}),
        Grant("xadd xlen", {"in": "RW"}),
        Grant("xadd", {"w:*": "W"}),
        Grant("hset persist pexpire expire exists", {"req:*": "RW"}),
        Grant("sadd srem scard srandmember pexpire", {"open:*": "RW"}),
        Grant("xread xrange xlen xadd pexpire unlink", {"out:*": "RW"}),
        Grant("zrem hdel", {"parked parked:req due": "RW"}),
        Grant("get unlink", {"emitted:*": "RW"}),
    ),
)
_WORKER = Role(
    does="computes: lmpool-worker",
    calls="rank_up rank_down heartbeat admit delta stage swap emit step plan_prepare plan_prepared "
    "plan_executed plan_publish plan_finalize plan_abort",
    reads="chain plans ranks",
    grants=(
        Grant(
            "append exists expire get hdel hexists hget hgetall hincrby hkeys hlen hmget hset "
            "hsetnx llen lpush mget persist pexpire rename sadd scard set srandmember srem strlen "
            "unlink xack xadd xdel xgroup|create xgroup|destroy xlen xrange xread xreadgroup zadd "
            "zcard zrange zrangebyscore zrem zremrangebyscore zscore",
            {
                "load cfg r:* staging w:* req:* out:* open:* emitted:* parked parked:req due wake "
                "plan:* plans plans:log plans:probed plans:refused": "RW"
            },
        ),
        Grant("get hget hgetall hmget", {"links leases sched:*": "R"}),
    ),
    bare="exec multi discard",
)
_SCHEDULER = Role(
    does="routes and plans: lmpoold, and lmpoolctl drain, config and calibrate",
    calls="configure tune route finish reap acquire drain lease_grant lease_expire plan_prepare "
    "plan_probe plan_reap",
    reads="chain explain page plans ranks",
    grants=(
        Grant(
            "append blpop del exists expire get hdel hexists hget hgetall hincrby hkeys hlen hmget "
            "hset hsetnx llen lpush mget persist pexpire rename sadd scard set srandmember srem "
            "strlen unlink xack xadd xautoclaim xdel xgroup|create xgroup|delconsumer "
            "xgroup|destroy xinfo|consumers xinfo|groups xlen xpending xrange xread xreadgroup "
            "xrevrange zadd zcard zincrby zrange zrangebyscore zrem zremrangebyscore zrevrange "
            "zscore zunionstore",
            {"*": "RW"},
        ),
    ),
    bare="exec multi discard function|load",
)

ROLES: Mapping[str, Role] = {
    "producer": _PRODUCER,
    "worker": _WORKER,
    "scheduler": _SCHEDULER,
    "viewer": _VIEWER,
    "gateway": Role(
        does="asks for callers of HTTP, and shows the pool: lmpool-gateway",
        calls=_PRODUCER.calls,
        reads=_VIEWER.reads,
        grants=(*_PRODUCER.grants, *_VIEWER.grants),
    ),
}
"""The roles of a pool. Each is a user of the server, named `<pool>-<role>`."""

ADMIN = "lmpool-admin"
"""May do everything: for whoever looks after the server."""


def user_name(pool: str, role: str) -> str:
    """Return the server's user for a role of a pool."""
    return f"{pool}-{role}"


def acl_line(user: str, role: Role, password: str, keys: Keyspace) -> str:
    """Return a user's line of an ACL file; it holds the password's digest alone."""
    words = ["user", user, "on", "#" + hashlib.sha256(password.encode()).hexdigest()]
    words += ["resetkeys", "resetchannels", "-@all"]
    words += [f"+{command}" for command in (*CONNECTION.split(), *role.bare.split())]
    load = f"~{keys.load}"
    if role.calls:
        words.append(_selector([f"fcall|{name}" for name in role.calls.split()], [load]))
    if role.reads:
        reads = [f"fcall_ro|{name}" for name in role.reads.split()]
        words.append(_selector(reads, ["%R" + load]))
    for grant in role.grants:
        patterns = [
            ("" if access == "RW" else f"%{access}") + f"~{keys.prefix}{name}"
            for names, access in grant.keys.items()
            for name in names.split()
        ]
        words.append(_selector(grant.commands.split(), patterns))
    return " ".join(words)


def _selector(commands: list[str], patterns: list[str]) -> str:
    allowed = " ".join(f"+{command}" for command in commands)
    return f"(-@all {allowed} {' '.join(patterns)})"


def acl_file(pool: str, passwords: Mapping[str, str]) -> str:
    """Return an ACL file for one pool: its roles, an administrator, and no way in without either.

    Args:
        pool: its name.
        passwords: of every role and of `ADMIN`.
    """
    keys = Keyspace(pool)
    digest = hashlib.sha256(passwords[ADMIN].encode()).hexdigest()
    lines = ["user default off resetkeys resetchannels -@all"]
    lines.append(f"user {ADMIN} on #{digest} ~* &* +@all")
    for name, role in ROLES.items():
        lines.append(acl_line(user_name(pool, name), role, passwords[name], keys))
    return "\n".join(lines) + "\n"
