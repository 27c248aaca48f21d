"""The gateway in OpenAPI's words: what it takes, what it answers. Pure.

Bounds come from the pool's own table of fields; the fields themselves are those of `reading`.
"""

from __future__ import annotations

from typing import Any

from lmpoold.gateway.reading import MAX_CHOICES, SEED_SPAN, Kind
from lmpoold.protocol.request import FIELDS, MAX_STOPS, Real, Whole

Schema = dict[str, Any]
JSON_BODY = "application/json"
TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
REFUSALS = (400, 401, 404, 409, 413, 429, 499, 500, 503, 504)


def _maybe(schema: Schema) -> Schema:
    """Null asks for nothing, in OpenAI's words as here."""
    return {"anyOf": [schema, {"type": "null"}]}


def _number(name: str) -> Schema:
    match FIELDS[name]:
        case Whole(low, high):
            return {"type": "integer", "minimum": low, "maximum": high}
        case Real(low, high):
            return {"type": "number", "minimum": low, "maximum": high}
    raise ValueError(f"{name} is no number")


def _object(required: tuple[str, ...], **properties: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": properties}


def _shared() -> dict[str, Schema]:
    word = {"type": "string", "minLength": 1, "maxLength": 200}
    stops = {"type": "array", "items": word, "maxItems": MAX_STOPS}
    numbers = ("temperature", "top_p", "top_k", "min_p", "priority", "deadline_ms", "max_tokens")
    seed = {"type": "integer", "minimum": -(2**63), "maximum": SEED_SPAN - 1}
    return {
        **{name: _maybe(_number(name)) for name in numbers},
        "seed": _maybe(seed),
        "n": _maybe({"type": "integer", "minimum": 1, "maximum": MAX_CHOICES}),
        "stop": _maybe({"anyOf": [word, stops]}),
        "stream": _maybe({"type": "boolean"}),
        "stream_options": _maybe(
            {
                "type": "object",
                "properties": {"include_usage": _maybe({"type": "boolean"})},
                "additionalProperties": False,
            }
        ),
        "ignore_eos": _maybe({"type": "boolean"}),
        "user": {},
        "metadata": {},
    }


def _request(kind: Kind) -> Schema:
    part = _object(("type", "text"), type={"const": "text"}, text=TEXT)
    content = {"anyOf": [TEXT, {"type": "array", "items": part}]}
    turn = _object(("role", "content"), role=TEXT, content=content)
    tokens = {"type": "array", "items": COUNT, "minItems": 1}
    if kind == "chat":
        own: dict[str, Schema] = {
            "messages": {"type": "array", "items": turn, "minItems": 1},
            "max_completion_tokens": _maybe(_number("max_tokens")),
            "logprobs": _maybe({"type": "boolean"}),
            "top_logprobs": _maybe(_number("logprobs")),
        }
    else:
        several = {"type": "array", "items": TEXT, "minItems": 1}
        rows = {"type": "array", "items": tokens, "minItems": 1}
        own = {
            "prompt": {"anyOf": [TEXT, several, tokens, rows]},
            "logprobs": _maybe(_number("logprobs")),
        }
    source = "messages" if kind == "chat" else "prompt"
    asked = _object(("model", source), model=TEXT, **own, **_shared())
    return {**asked, "additionalProperties": False}


def _answer(kind: Kind) -> Schema:
    said = _object(("role", "content"), role={"const": "assistant"}, content=TEXT)
    own = {"message": said} if kind == "chat" else {"text": TEXT}
    choice = _object(
        ("index", "finish_reason", *own),
        index=COUNT,
        finish_reason={"enum": ["stop", "length"]},
        logprobs=_maybe({"type": "object"}),
        **own,
    )
    counted = ("prompt_tokens", "completion_tokens", "total_tokens")
    return _object(
        ("id", "object", "created", "model", "choices", "usage"),
        id=TEXT,
        object={"const": "chat.completion" if kind == "chat" else "text_completion"},
        created=COUNT,
        model=TEXT,
        choices={"type": "array", "items": choice, "minItems": 1},
        usage=_object(counted, **dict.fromkeys(counted, COUNT)),
    )


def _fault() -> Schema:
    error = _object(
        ("message", "type", "param", "code"),
        message=TEXT,
        type=TEXT,
        param=_maybe(TEXT),
        code=TEXT,
    )
    return _object(("error",), error=error)


def _reply(description: str, schema: Schema, kind: str = JSON_BODY) -> Schema:
    return {"description": description, "content": {kind: {"schema": schema}}}


def _faults(*codes: int) -> Schema:
    refused = _reply("Refused, with a reason", {"$ref": "#/components/schemas/Fault"})
    return {str(code): refused for code in codes}


def _tokens(kind: Kind, summary: str) -> Schema:
    done = _reply("The answer, or a stream of its events", _answer(kind))
    done["content"]["text/event-stream"] = {"schema": _object(("data",), data=TEXT)}  # of an event
    return {
        "post": {
            "summary": summary,
            "operationId": kind,
            "requestBody": {
                "required": True,
                "content": {JSON_BODY: {"schema": _request(kind)}},
            },
            "responses": {"200": done, **_faults(*REFUSALS)},
        }
    }


def _get(
    name: str, summary: str, replies: Schema, *, query: tuple[str, ...] = (), path: str = ""
) -> Schema:
    parameters = [{"name": each, "in": "query", "required": True, "schema": TEXT} for each in query]
    if path:
        word = {"type": "string", "minLength": 1}
        parameters.append({"name": path, "in": "path", "required": True, "schema": word})
    return {
        "get": {
            "summary": summary,
            "operationId": name,
            "parameters": parameters,
            "responses": replies,
        }
    }


def describe(version: str) -> dict[str, Any]:
    """Return the OpenAPI document."""
    row = _object(("id", "object", "owned_by"), id=TEXT, object={"const": "model"}, owned_by=TEXT)
    models = _object(("object", "data"), object={"const": "list"}, data={"type": "array"})
    healthy = _object(("ok",), ok={"type": "boolean"})
    ready = _object(("ready", "ranks_up", "why"), ready={"type": "boolean"}, ranks_up=COUNT)
    anything: Schema = {"type": "object"}
    away = _faults(401, 503)
    paths = {
        "/v1/chat/completions": _tokens("chat", "Go on with a conversation"),
        "/v1/completions": _tokens("completion", "Go on with a text"),
        "/v1/models": _get("models", "What is served", {"200": _reply("Models", models), **away}),
        "/v1/models/{name}": _get(
            "model",
            "One model",
            {"200": _reply("The model", row), **away, **_faults(404)},
            path="name",
        ),
        "/health": _get(
            "health",
            "Whether this process works",
            {code: _reply("Whether it does", healthy) for code in ("200", "503")},
        ),
        "/ready": _get(
            "ready",
            "Whether requests would be answered",
            {code: _reply("Whether they would", ready) for code in ("200", "503")},
        ),
        "/metrics": _get(
            "metrics", "For Prometheus", {"200": _reply("Metrics", TEXT, "text/plain")}
        ),
        "/ui/api/pool": _get(
            "pool", "The pool at this moment", {"200": _reply("The pool", anything), **away}
        ),
        "/ui/api/pages": _get(
            "pages",
            "Some of a rank's page table",
            {"200": _reply("Pages", anything), **away, **_faults(400)},
            query=("rank", "cursor"),
        ),
        "/ui/api/block": _get(
            "block",
            "Who holds a block",
            {"200": _reply("Holders", anything), **away, **_faults(400)},
            query=("hash",),
        ),
        "/ui/api/request": _get(
            "request",
            "Why a request went where it went",
            {"200": _reply("The route", anything), **away, **_faults(404)},
            query=("id",),
        ),
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "LMPool", "version": version},
        "paths": paths,
        "components": {
            "schemas": {"Fault": _fault()},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }
