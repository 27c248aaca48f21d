"""From OpenAI's JSON to what the pool is asked. Pure.

What decides the shape of the answer is judged here, and what the pool cannot do is refused by name.
Ranges of numbers are the pool's business (`lmpoold.protocol.request`), so that a rule has one home.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lmpoold.gateway.faults import invalid

MAX_CHOICES = 128
"""Most answers to one HTTP request: prompts times `n`."""
COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for /v1/completions; a chat takes the pool's."""
SEED_SPAN = 2**64

Kind = Literal["chat", "completion"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One HTTP request, read.

    Attributes:
        model: as the caller named it.
        sources: a prompt each, as the pool's client takes it: `messages`, `prompt` or `tokens`.
        options: the fields that all choices share.
        n: choices a prompt.
        seed: of the first choice of each prompt; None draws one for every choice.
        include_usage: whether a stream ends with a chunk of usage.
        logprobs: alternatives a token, None for no logprobs.
    """

    kind: Kind
    model: str
    sources: tuple[Mapping[str, Any], ...]
    options: Mapping[str, Any]
    n: int
    seed: int | None
    stream: bool
    include_usage: bool
    logprobs: int | None

    def choices(self) -> list[dict[str, Any]]:
        """Return what to submit, one request a choice, by the choice's index.

        Choice i of a prompt draws with the seed plus i: the first one alone is what n = 1 gives.
        """
        asked = []
        for source in self.sources:
            for number in range(self.n):
                fields = {**source, **self.options}
                if self.seed is not None:
                    fields["seed"] = _wrapped(self.seed + number)
                asked.append(fields)
        return asked


def _wrapped(seed: int) -> int:
    return seed if seed < SEED_SPAN else seed - SEED_SPAN


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(f"`{name}` must be a number", name)
    return value


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(f"`{name}` must be a whole number", name)
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise invalid(f"`{name}` must be true or false", name)
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise invalid(f"`{name}` must be a string", name)
    return value


def _stop(name: str, value: Any) -> Any:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise invalid("`stop` must be a string or a list of strings", name)
    return stops or None


_PASSED: Mapping[str, Callable[[str, Any], Any]] = {
    "temperature": _number,
    "top_p": _number,
    "top_k": _whole,
    "min_p": _number,
    "stop": _stop,
    "ignore_eos": _flag,
    "priority": _whole,
    "deadline_ms": _whole,
}
"""Fields that go to the pool as they are; those OpenAI lacks are the pool's own."""

_IGNORED = frozenset(
    {"user", "metadata", "store", "service_tier", "prompt_cache_key", "prompt_cache_retention"}
    | {"safety_identifier", "parallel_tool_calls", "verbosity", "reasoning_effort"}
)
"""Fields that change nothing about the tokens asked for."""

_ONLY: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}
"""Fields that the pool cannot follow, and the values that ask for nothing. null always does."""

_SHARED = frozenset({"model", "n", "seed", "stream", "stream_options", "max_tokens", "logprobs"})
_OWN: Mapping[Kind, frozenset[str]] = {
    "chat": frozenset({"messages", "max_completion_tokens", "top_logprobs"}),
    "completion": frozenset({"prompt"}),
}


_KNOWN: Mapping[Kind, frozenset[str]] = {
    kind: _SHARED | own | _PASSED.keys() | _IGNORED | _ONLY.keys() for kind, own in _OWN.items()
}


def read_call(kind: Kind, body: Any) -> Call:
    """Read a request body.

    Args:
        kind: which of the two endpoints it came to.
        body: the decoded JSON.
    Raises: Fault: 400, naming the field to change.
    """
    if not isinstance(body, dict):
        raise invalid("the body must be a JSON object")
    given = {name: value for name, value in body.items() if value is not None}
    known = _KNOWN[kind]
    for name, value in given.items():
        if name not in known:
            raise invalid(f"unrecognized request argument: {name[:60]}", name[:60])
        if name in _ONLY and not any(_same(value, allowed) for allowed in _ONLY[name]):
            raise invalid(f"`{name}` is not supported by this server; leave it out", name)
    if "model" not in given:
        raise invalid("`model` is missing; GET /v1/models lists what is served", "model")
    options: dict[str, Any] = {"temperature": 1.0}
    options |= {name: read(name, given[name]) for name, read in _PASSED.items() if name in given}
    if options.get("stop", ()) is None:
        del options["stop"]
    if (most := _max_tokens(kind, given)) is not None:
        options["max_tokens"] = most
    logprobs = _logprobs(kind, given)
    if logprobs is not None:
        options["logprobs"] = logprobs
    sources = _conversation(given) if kind == "chat" else _prompts(given)
    n = _whole("n", given.get("n", 1))
    if n < 1 or n * len(sources) > MAX_CHOICES:
        raise invalid(f"`n` times the number of prompts must be 1 to {MAX_CHOICES}", "n")
    stream = _flag("stream", given.get("stream", False))
    return Call(
        kind=kind,
        model=_text("model", given["model"]),
        sources=sources,
        options=options,
        n=n,
        seed=_whole("seed", given["seed"]) if "seed" in given else None,
        stream=stream,
        include_usage=_include_usage(given, stream),
        logprobs=logprobs,
    )


def _same(value: Any, allowed: Any) -> bool:
    return isinstance(value, bool) == isinstance(allowed, bool) and bool(value == allowed)


def _max_tokens(kind: Kind, given: Mapping[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        if name in given:
            return _whole(name, given[name])
    return COMPLETION_MAX_TOKENS if kind == "completion" else None


def _logprobs(kind: Kind, given: Mapping[str, Any]) -> int | None:
    """Return how many alternatives are wanted a token; None for no logprobs at all."""
    if kind == "completion":
        return _whole("logprobs", given["logprobs"]) if "logprobs" in given else None
    wanted = _flag("logprobs", given.get("logprobs", False))
    top = _whole("top_logprobs", given.get("top_logprobs", 0))
    if top and not wanted:
        raise invalid("`top_logprobs` needs `logprobs` to be true", "top_logprobs")
    return top if wanted else None


def _include_usage(given: Mapping[str, Any], stream: bool) -> bool:
    options = given.get("stream_options")
    if options is None:
        return False
    if not stream:
        raise invalid("`stream_options` needs `stream` to be true", "stream_options")
    if not isinstance(options, dict) or not options.keys() <= {"include_usage"}:
        raise invalid("`stream_options` holds `include_usage` and nothing else", "stream_options")
    return _flag("include_usage", options.get("include_usage") or False)


def _conversation(given: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    messages = given.get("messages")
    if not isinstance(messages, list) or not messages:
        raise invalid("`messages` must be a list of at least one message", "messages")
    return ({"messages": [_message(f"messages[{i}]", row) for i, row in enumerate(messages)]},)


def _message(place: str, row: Any) -> dict[str, str]:
    if not isinstance(row, dict) or not isinstance(row.get("role"), str):
        raise invalid(f"{place} must be an object with a `role` and `content`", "messages")
    # OpenAI's newer name for the same seat; chat templates know the older one.
    role = "system" if row["role"] == "developer" else row["role"]
    content = row.get("content")
    if isinstance(content, list):
        content = "".join(_part(place, part) for part in content)
    if not isinstance(content, str):
        raise invalid(f"the content of {place} must be text, or a list of text parts", "messages")
    return {"role": role, "content": content}


def _part(place: str, part: Any) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise invalid(f"{place} holds a part that is not text: this model reads text only", "messages")


def _prompts(given: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Return a source a prompt: a string, several strings, token ids, or several lists of them."""
    match given.get("prompt"):
        case str() as text:
            return ({"prompt": text},)
        case [str(), *_] as texts if all(isinstance(text, str) for text in texts):
            return tuple({"prompt": text} for text in texts)
        case [int(), *_] as tokens if _are_ids(tokens):
            return ({"tokens": tokens},)
        case [list(), *_] as rows if all(isinstance(row, list) and _are_ids(row) for row in rows):
            return tuple({"tokens": row} for row in rows)
    raise invalid(
        "`prompt` must be a string, a list of strings, a list of token ids or a list of such lists",
        "prompt",
    )


def _are_ids(tokens: Sequence[Any]) -> bool:
    return all(type(token) is int for token in tokens)
