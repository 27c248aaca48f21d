"""A request as producers write it: the one table of fields, and the reading of it.

Producers XADD plain text fields. Everything that can be judged without the model is judged here;
lengths in tokens are judged in `lmpoold.core.admission`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lmpoold.protocol.errors import InvalidRequest

MAX_TEXT_BYTES = 8 * 1024 * 1024
"""Longest `prompt`, `messages` or `tokens` field; longer ones are refused unread."""
MAX_NAME = 200
DEFAULT_MAX_TOKENS = 256
"""Output tokens of a request that names no `max_tokens`; cut to what the context leaves."""
MAX_STOPS = 16
MAX_LOGPROBS = 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+=-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is drawn, and when to stop.

    `temperature` 0 is greedy (the default: an answer that can be repeated). Filters apply in the
    order temperature, top_k, top_p, min_p. `logprobs` counts alternatives per token, None for no
    logprobs at all.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One readable ingress entry; exactly one of `prompt`, `messages`, `tokens` is set."""

    id: str
    client: str
    prompt: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    tokens: tuple[int, ...] | None = None
    sampling: Sampling
    max_tokens_given: bool
    seed_given: bool
    priority: int = 0
    deadline_ms: int | None = None
    salt: str = ""
    origin: int | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class Whole:
    """Reads a whole number within bounds."""

    low: int
    high: int

    def __call__(self, name: str, text: str) -> int:
        """Return the number; InvalidRequest if it is none."""
        try:
            value = int(text)
        except ValueError:
            raise InvalidRequest(f"`{name}` must be a whole number, got {text[:40]!r}") from None
        if not self.low <= value <= self.high:
            raise InvalidRequest(
                f"`{name}` must be between {self.low} and {self.high}, got {value}"
            )
        return value


@dataclass(frozen=True, slots=True)
class Real:
    """Reads a number within bounds."""

    low: float
    high: float

    def __call__(self, name: str, text: str) -> float:
        """Return the number; InvalidRequest if it is none."""
        try:
            value = float(text)
        except ValueError:
            raise InvalidRequest(f"`{name}` must be a number, got {text[:40]!r}") from None
        if not (math.isfinite(value) and self.low <= value <= self.high):
            raise InvalidRequest(
                f"`{name}` must be between {self.low:g} and {self.high:g}, got {text[:40]}"
            )
        return value


def _flag(name: str, text: str) -> bool:
    match text.lower():
        case "1" | "true" | "yes":
            return True
        case "0" | "false" | "no":
            return False
    raise InvalidRequest(f"`{name}` must be true or false, got {text[:40]!r}")


def _name(name: str, text: str) -> str:
    if len(text) > MAX_NAME or not _NAME.fullmatch(text):
        raise InvalidRequest(
            f"`{name}` must be 1 to {MAX_NAME} of letters, digits and . _ : @ / + = - , "
            "beginning with a letter or digit"
        )
    return text


def _text(name: str, text: str) -> str:
    return text


def _json(name: str, text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidRequest(f"`{name}` is not JSON") from None
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise InvalidRequest(f"`{name}` spells half a surrogate pair") from None
    return value


def _stop(name: str, text: str) -> tuple[str, ...]:
    value = _json(name, text) if text[:1] in '["' else text
    stops = [value] if isinstance(value, str) else value
    if (
        not isinstance(stops, list)
        or len(stops) > MAX_STOPS
        or not all(isinstance(stop, str) and 0 < len(stop) <= MAX_NAME for stop in stops)
    ):
        raise InvalidRequest(
            f"`stop` must be a string or a JSON list of at most {MAX_STOPS} strings "
            f"of 1 to {MAX_NAME} characters"
        )
    return tuple(stops)


def _messages(name: str, text: str) -> tuple[Mapping[str, Any], ...]:
    value = _json(name, text)
    if not isinstance(value, list) or not value:
        raise InvalidRequest("`messages` must be a JSON list of at least one message")
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InvalidRequest("each of `messages` must be an object with a `role` and `content`")
        if not isinstance(message.get("content"), str):
            raise InvalidRequest("the `content` of each message must be a string")
    return tuple(value)


def _tokens(name: str, text: str) -> tuple[int, ...]:
    value = _json(name, text)
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise InvalidRequest("`tokens` must be a JSON list of whole numbers")
    if not all(0 <= token < 2**31 for token in value):
        raise InvalidRequest("`tokens` must be non-negative and below 2**31")
    return tuple(value)


FIELDS: dict[str, Callable[[str, str], Any]] = {
    "id": _name,
    "prompt": _text,
    "messages": _messages,
    "tokens": _tokens,
    "max_tokens": Whole(1, 1_000_000),
    "temperature": Real(0.0, 100.0),
    "top_p": Real(0.0, 1.0),
    "top_k": Whole(0, 1_000_000),
    "min_p": Real(0.0, 1.0),
    "seed": Whole(-(2**63), 2**64 - 1),
    "stop": _stop,
    "ignore_eos": _flag,
    "logprobs": Whole(0, MAX_LOGPROBS),
    "priority": Whole(-1000, 1000),
    "deadline_ms": Whole(1, 7 * 24 * 3600 * 1000),
    "client": _name,
    "salt": _text,
    "origin": Whole(0, 1_000_000),
    "model": _text,
}
"""Every field a producer may send, and how it is read: the order of the producer guide."""

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "stop", "ignore_eos", "logprobs")
_SOURCES = ("prompt", "messages", "tokens")


def answer_stream(entry_id: str, fields: Mapping[bytes, bytes]) -> tuple[str, str]:
    """Return (id, client) to answer an entry on, however unreadable the rest of it is.

    A usable `client` wins, then a usable `id`, then the entry id, as for a readable entry.
    """

    def usable(field: bytes) -> str:
        raw = fields.get(field, b"")
        text = raw.decode("ascii", "replace") if len(raw) <= MAX_NAME else ""
        return text if _NAME.fullmatch(text) else ""

    request_id = usable(b"id") or entry_id
    return request_id, usable(b"client") or request_id


def read_request(entry_id: str, fields: Mapping[bytes, bytes]) -> Request:
    """Read one ingress entry.

    Args:
        entry_id: the stream entry's id; the default for `id`, which is the default for `client`.
        fields: the entry as Redis returned it, undecoded.
    Raises: InvalidRequest: says which field to change and how.
    """
    values: dict[str, Any] = {}
    for raw_name, raw in fields.items():
        name = raw_name[:60].decode("utf-8", "replace")
        reader = FIELDS.get(name)
        if reader is None:
            known = ", ".join(FIELDS)
            raise InvalidRequest(f"unknown field {name!r}; the fields are {known}")
        if len(raw) > MAX_TEXT_BYTES:
            raise InvalidRequest(
                f"`{name}` holds {len(raw):,} bytes; at most {MAX_TEXT_BYTES:,} are read"
            )
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"`{name}` is not UTF-8 (byte {error.start})") from None
        values[name] = reader(name, text)
    given = [name for name in _SOURCES if name in values]
    if len(given) != 1:
        what = "none" if not given else " and ".join(given)
        raise InvalidRequest(f"send exactly one of prompt, messages, tokens; got {what}")
    if values[given[0]] in ("", ()):
        raise InvalidRequest(f"`{given[0]}` is empty: there is nothing to continue")
    request_id = values.get("id", entry_id)
    sampling = Sampling(
        max_tokens=values.get("max_tokens", DEFAULT_MAX_TOKENS),
        **{name: values[name] for name in _SAMPLING if name in values},
    )
    return Request(
        id=request_id,
        client=values.get("client", request_id),
        sampling=sampling,
        max_tokens_given="max_tokens" in values,
        seed_given="seed" in values,
        **{
            name: values[name]
            for name in (*_SOURCES, "priority", "deadline_ms", "salt", "origin", "model")
            if name in values
        },
    )
