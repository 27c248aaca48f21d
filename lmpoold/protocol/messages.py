"""What travels on worker and output streams. Values are text, so redis-cli can read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, cast

import orjson

from lmpoold.protocol.errors import DecodeError
from lmpoold.protocol.hashing import unpack_tokens
from lmpoold.protocol.request import Sampling
from lmpoold.protocol.transfer import ORDERS, PlanOrder, read_order

PROTOCOL = "2"
"""Version of these messages and of the function library; a worker with another one is refused."""

NUMBERS = b"0123456789 "
"""What token ids as text consist of."""


def _non_default(row: Payload | Sampling) -> dict[str, Any]:
    """Return the fields that differ from their defaults: most requests name few."""
    names, defaults, read = _defaults(cast("Hashable", type(row)))
    values = zip(names, defaults, read(row), strict=True)
    return {name: value for name, default, value in values if value != default}


@cache
def _defaults(kind: Hashable) -> tuple[tuple[str, ...], tuple[Any, ...], Callable[[Any], Any]]:
    names = tuple(field.name for field in fields(cast("Any", kind)))
    defaults = tuple(field.default for field in fields(cast("Any", kind)))
    return names, defaults, attrgetter(*names)


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """What a worker needs of a request beside its tokens; the field `p` of a route message.

    Attributes:
        prompt_tokens: length of the original prompt; tokens behind it were emitted before.
        deadline_ms: unix milliseconds by Redis's clock, 0 = none was given.
        origin: the rank where the asker is, -1 for none.
    """

    client: str
    prompt_tokens: int
    sampling: Sampling
    priority: int = 0
    deadline_ms: int = 0
    salt: str = ""
    origin: int = -1

    def encode(self) -> str:
        """Return the payload as one line of JSON."""
        row = _non_default(self)
        row["sampling"] = _non_default(self.sampling)
        return _encode(row)

    @classmethod
    def decode(cls, text: str | bytes) -> Payload:
        """Read what `encode` wrote; DecodeError if it is anything else."""
        try:
            values = json.loads(text)
            sampling = values.pop("sampling")
            sampling["stop"] = tuple(sampling.get("stop", ()))
            return cls(sampling=Sampling(**sampling), **values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DecodeError(f"not a request payload: {error}") from None


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A request that `route` gave to a worker.

    Attributes:
        packed: the token ids, as `hashing.token_bytes` packs them, or b"".
        plan: the transfer plan that brings blocks of its prompt, "" if none does.
        wait_s: how long to wait for it before computing them.
    """

    entry: str
    id: str
    attempt: int
    hit: int
    payload: Payload
    tokens: list[int]
    plan: str = ""
    wait_s: float = 0.0
    packed: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Cancel:
    """The asker wants no more of a request."""

    entry: str
    id: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Give up every block that nobody holds: an operator or a benchmark wants an empty cache."""

    entry: str


def encode_tokens(token_ids: Sequence[int]) -> str:
    """Return token ids as text, parted by blanks."""
    # As JSON: a long prompt has thousands, and a tenth of the time of a number at a time.
    return orjson.dumps(list(token_ids))[1:-1].replace(b",", b" ").decode()


def decode_tokens(text: str | bytes) -> list[int]:
    """Read what `encode_tokens` wrote; DecodeError otherwise."""
    raw = text.encode() if isinstance(text, str) else text
    try:
        if raw.translate(None, NUMBERS):
            raise ValueError
        return cast("list[int]", orjson.loads(b"[%s]" % raw.strip().replace(b" ", b",")))
    except ValueError:
        raise DecodeError("token ids must be whole numbers parted by blanks") from None


def read_worker_message(
    entry: str, values: Mapping[bytes, bytes]
) -> Dispatch | Cancel | Forget | PlanOrder:
    """Read one entry of a worker stream.

    Raises: DecodeError: the entry is none of ours.
    """
    try:
        match values[b"kind"]:
            case b"route":
                return Dispatch(
                    entry=entry,
                    id=values[b"id"].decode(),
                    attempt=int(values[b"attempt"]),
                    hit=int(values[b"hit"]),
                    payload=Payload.decode(values[b"p"]),
                    packed=values[b"tokens"],
                    tokens=list(unpack_tokens(values[b"tokens"])),
                    plan=values.get(b"plan", b"").decode(),
                    wait_s=int(values.get(b"wait_ms", b"0")) / 1000,
                )
            case b"cancel":
                return Cancel(entry, values[b"id"].decode())
            case b"forget":
                return Forget(entry)
            case kind if kind.decode() in ORDERS:
                return read_order(entry, values)
            case kind:
                raise DecodeError(f"unknown kind {kind!r}")
    except (KeyError, ValueError) as error:
        raise DecodeError(f"worker stream entry {entry}: {error}") from None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a finished request; `cached_tokens` is the part of the prompt not computed."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def encode(self) -> str:
        """Return the usage as one line of JSON."""
        return (
            f'{{"prompt_tokens":{self.prompt_tokens},'
            f'"completion_tokens":{self.completion_tokens},"cached_tokens":{self.cached_tokens}}}'
        )


class Output(NamedTuple):  # one a token: a tuple is made in half the time of a frozen dataclass
    """One step of one request, as it stands on an output stream.

    Attributes:
        id: the request.
        index: of `token`, counted from 0; for an end without a token, the count of tokens before.
        token: the token id, or None for an end without one.
        text: what the stream's text gains; may lag behind the tokens (UTF-8, stop strings).
        logprobs: JSON: {"logprob", "text": of the token, "top": [[id, text, logprob], ...]}.
        finish_reason: `stop` or `length`, "" while it goes on or when it failed (see `code`).
        usage: how many tokens, with the last output of a request that went well.
        error: OpenAI's error type, "" if the request is well.
        code: its code, e.g. `context_length_exceeded`.
        message: what to change.
    """

    id: str
    index: int  # type: ignore[assignment]  # hides tuple.index
    token: int | None = None
    text: str = ""
    logprobs: str = ""
    finish_reason: str = ""
    usage: Usage | None = None
    error: str = ""
    code: str = ""
    message: str = ""

    @property
    def ends(self) -> bool:
        """Whether nothing follows for this request."""
        return bool(self.finish_reason or self.code)

    def to_fields(self) -> dict[str, str]:
        """Return the stream entry's fields; empty ones are left out, `text` never with a token."""
        out = {"id": self.id, "index": str(self.index)}
        if self.token is not None:
            out["token"] = str(self.token)
            out["text"] = self.text
        elif self.text:
            out["text"] = self.text
        for name in ("logprobs", "finish_reason", "error", "code", "message"):
            if value := getattr(self, name):
                out[name] = value
        if self.usage is not None:
            out["usage"] = self.usage.encode()
        return out


STEP = "step"
"""The one field of an entry that carries several outputs: a JSON list of their fields."""

_OUTPUT_FIELDS = frozenset(Output._fields)


def write_outputs(outputs: Sequence[Output]) -> list[str]:
    """Return one stream entry, as flat field, value pairs, for one client's outputs of a step."""
    if len(outputs) == 1:
        return [part for pair in outputs[0].to_fields().items() for part in pair]
    rows = [output.to_fields() for output in outputs]
    return [STEP, _encode(rows)]


def _output(row: Mapping[str, Any]) -> Output:
    values = {name: value for name, value in row.items() if name in _OUTPUT_FIELDS}
    values["index"] = int(values["index"])
    if "token" in values:
        values["token"] = int(values["token"])
    if "usage" in values:
        values["usage"] = Usage(**json.loads(values["usage"]))
    return Output(**values)


def read_outputs(values: Mapping[bytes, bytes]) -> list[Output]:
    """Read one entry of an output stream; DecodeError if it is none of ours."""
    try:
        row = {name.decode(): value.decode() for name, value in values.items()}
        rows = json.loads(row[STEP]) if STEP in row else [row]
        return [_output(row) for row in rows]
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise DecodeError(f"not an output entry: {error}") from None
