"""The protocol reference, written from the tables that the programs themselves go by.

python -m tests.house.reference > lmpoold/guides/protocol.md
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any

from lmpoold.gateway.faults import STATUS
from lmpoold.protocol import messages
from lmpoold.protocol.config import PoolConstants, PoolIdentity
from lmpoold.protocol.explanation import SENTENCES
from lmpoold.protocol.keys import INGRESS_GROUP, Keyspace
from lmpoold.protocol.request import FIELDS, Real, Whole
from lmpoold.protocol.roles import ADMIN, ROLES, user_name
from lmpoold.protocol.transfer import ORDERS, SUCCESSORS, PlanOrder
from lmpoold.store.library import FUNCTIONS, PARTS
from lmpoold.store.refusals import ERRORS
from tests.house.tree import LUA, text_of

PLACES = {"rank": "<k>", "client": "<client>", "request_id": "<id>", "plan_id": "<id>"}
PLACES |= {"epoch": "<epoch>", "version": "<version>"}
HEAD = f"""# The protocol

What the programs of a pool say to one another, version {messages.PROTOCOL}. This page is written
from the code's own tables (`python -m tests.house.reference`), and a test holds it to them. Keys
are written without their prefix `lmpool:{{<pool>}}:`; `<k>` is a rank. Values are text. What keys
and constants mean, and the route rule, stand in [the data model](../store/README.md); how to ask,
in [the producer guide](producing.md)."""


def table(names: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Rows as a table of Markdown."""
    lines = [list(names)]
    lines += [["---"] * len(lines[0]), *([*map(str, row)] for row in rows)]
    return "\n".join(f"| {' | '.join(cell.replace('|', ', ') for cell in row)} |" for row in lines)


def _kind(reader: Callable[..., Any]) -> str:
    """What a field's reader takes, in words."""
    match reader:
        case Whole(low, high):
            return f"whole number, {low} to {high}"
        case Real(low, high):
            return f"number, {low:g} to {high:g}"
    words = {"text": "text", "name": "name", "json": "JSON", "flag": "true or false"}
    words |= {"messages": "JSON list of objects with `role` and `content`"}
    words |= {"tokens": "JSON list of token ids", "stop": "text, or JSON list of texts"}
    return words[reader.__name__.removeprefix("_")]


def _attributes(kind: type) -> dict[str, str]:
    """The Attributes of a class's docstring, by name."""
    text = inspect.getdoc(kind) or ""
    _, _, listed = text.partition("Attributes:\n")
    found = re.findall(r"^    (`?[\w`, and]+?`?): (.*(?:\n {8}.*)*)", listed, re.MULTILINE)
    said = {name: re.sub(r"\s+", " ", meaning).rstrip(".") for name, meaning in found}
    names = getattr(kind, "_fields", None) or [field.name for field in fields(kind)]
    return {name: said.get(name, "") for name in names}


def _keys() -> Iterator[tuple[str, str]]:
    keys = Keyspace()
    for name, member in vars(Keyspace).items():
        if isinstance(member, property) and name != "prefix":
            spelled, said = getattr(keys, name), member.fget.__doc__
        elif inspect.isfunction(member) and not name.startswith("_"):
            places = list(inspect.signature(member).parameters)[1:]
            spelled, said = member(keys, *(PLACES[place] for place in places)), member.__doc__
        else:
            continue
        yield f"`{spelled.removeprefix(keys.prefix)}`", " ".join(said.split()).rstrip(".")


def _functions() -> str:
    out = []
    for part in PARTS:
        text = text_of(LUA / f"{part}.lua")
        names = re.findall(r"^on\('(\w+)'", text, re.MULTILINE)
        if names:
            header = text.partition("--[[")[2].partition("]]")[0].strip()
            out.append(f"### {', '.join(names)}\n\n```\n{header}\n```")
    return "\n\n".join(out)


def _roles() -> str:
    rows = [
        (f"`{name}`", role.does, _marked(role.calls), _marked(role.reads))
        for name, role in ROLES.items()
    ]
    grants = [
        (f"`{name}`", access, keys, grant.commands)
        for name, role in ROLES.items()
        for grant in role.grants
        for keys, access in grant.keys.items()
    ]
    head = table(("role", "does", "calls", "calls, reading"), rows)
    return f"{head}\n\n{table(('role', 'may', 'keys', 'commands'), grants)}"


def _marked(names: str) -> str:
    return " ".join(f"`{name}`" for name in names.split())


def reference() -> str:
    """The whole page."""
    constants = [
        (f"`{field.name}`", field.default if field.default != "" else "none")
        for field in fields(PoolConstants)
    ]
    sections = {
        "Keys": table(("key", "what"), _keys()),
        "A request": f"An entry of `in`, group `{INGRESS_GROUP}`: plain fields, exactly one of "
        "`prompt`, `messages` and `tokens` among them.\n\n"
        + table(("field", "value"), ((f"`{name}`", _kind(read)) for name, read in FIELDS.items())),
        "An answer": "Entries of `out:<client>`: one output as plain fields, or several as "
        f"`{messages.STEP}`, a JSON list of them.\n\n"
        + table(
            ("field", "meaning"),
            ((f"`{name}`", said) for name, said in _attributes(messages.Output).items()),
        )
        + "\n\n`usage` is JSON: "
        + ", ".join(f"`{name}`" for name in _attributes(messages.Usage))
        + ".\n\nCodes, and what the gateway answers for them; any other is 500:\n\n"
        + table(
            ("code", "HTTP", "OpenAI's type"),
            ((f"`{code}`", status, f"`{kind}`") for code, (status, kind) in STATUS.items()),
        ),
        "Orders of a plan": "A worker's stream `w:<k>` brings requests (`kind` `route`), cancels "
        f"(`cancel`) and, for a plan, {', '.join(f'`{name}`' for name in sorted(ORDERS))}:\n\n"
        + table(
            ("field", "meaning"),
            ((f"`{name}`", said) for name, said in _attributes(PlanOrder).items()),
        ),
        "Phases of a plan": table(
            ("phase", "then"),
            (
                (f"`{phase}`", ", ".join(f"`{one}`" for one in sorted(after)) or "over")
                for phase, after in SUCCESSORS.items()
            ),
        ),
        "Why a request went where it went": table(
            ("reason", "in words"), ((f"`{reason}`", said) for reason, said in SENTENCES.items())
        ),
        "Identity and constants": "`cfg` holds the pool's identity, compared when a program joins: "
        + ", ".join(f"`{field.name}`" for field in fields(PoolIdentity))
        + "; and constants:\n\n"
        + table(("constant", "default"), constants),
        "Functions": "One library; `FCALL <function> 1 <prefix>load <arguments>`, and "
        "`FCALL_RO` for those that only read: "
        + ", ".join(f"`{name}`" for name, reads in FUNCTIONS.items() if reads)
        + ".\n\n"
        + _functions(),
        "Errors of functions": "The first word of an error reply, and what it is raised as.\n\n"
        + table(
            ("word", "raised as"), ((f"`{word}`", kind.__name__) for word, kind in ERRORS.items())
        ),
        "Roles": "Users of the server, as `lmpoolctl acl` writes them: "
        f"`{user_name('<pool>', '<role>')}`, and `{ADMIN}`, who may do "
        "everything. The default user is off.\n\n" + _roles(),
    }
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in sections.items())
    return f"{HEAD}\n\n{body}\n"


if __name__ == "__main__":
    print(reference(), end="")
