"""Redis replies as redis-cli prints them: raw for pipes, numbered and quoted for people. Pure."""

from __future__ import annotations

from typing import Any

from redis.exceptions import ResponseError

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def raw(reply: Any) -> str:
    """Return a reply as plain text: one line an element, nested lists flattened, nil empty."""
    match reply:
        case None:
            return ""
        case bytes():
            return reply.decode("utf-8", "backslashreplace")
        case list():
            return "\n".join(raw(each) for each in reply)
        case ResponseError():
            return f"(error) {reply}"
    return str(reply)


def pretty(reply: Any) -> str:
    """Return a reply with its types: `(integer) 1`, `(nil)`, quoted strings, numbered lists."""
    match reply:
        case None:
            return "(nil)"
        case bytes():
            return quoted(reply)
        case bool() | int():
            return f"(integer) {int(reply)}"
        case []:
            return "(empty array)"
        case list():
            return _numbered(reply)
        case ResponseError():
            return f"(error) {reply}"
    return str(reply)


def _numbered(replies: list[Any]) -> str:
    width = len(str(len(replies)))
    lines = []
    for number, reply in enumerate(replies, start=1):
        head = f"{number:>{width}}) "
        first, *rest = pretty(reply).split("\n")
        lines.append(head + first)
        lines += [" " * len(head) + line for line in rest]
    return "\n".join(lines)


def quoted(value: bytes) -> str:
    """Return bytes in double quotes; readable text stays, control and stray bytes are escaped."""
    text = value.decode("utf-8", "backslashreplace") if _is_text(value) else None
    if text is None:
        return '"' + "".join(_byte(each) for each in value) + '"'
    shown = (_ESCAPES.get(c, c if c.isprintable() else _hex(c)) for c in text)
    return '"' + "".join(shown) + '"'


def _is_text(value: bytes) -> bool:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _hex(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode())


def _byte(value: int) -> str:
    character = chr(value)
    if 32 <= value < 127:
        return _ESCAPES.get(character, character)
    return _ESCAPES.get(character, f"\\x{value:02x}")
