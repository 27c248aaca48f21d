"""What a caller is told when it cannot be served: OpenAI's shape and codes. Pure.

| from the pool                  | status |
|--------------------------------|--------|
| invalid_request                | 400    |
| context_length_exceeded        | 400    |
| model_not_found                | 404    |
| overloaded                     | 429, Retry-After |
| deadline_exceeded              | 504    |
| cancelled                      | 499    |
| worker_failed, anything else   | 500    |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lmpoold.protocol.errors import (
    Conflict,
    InvalidRequest,
    LMPoolError,
    NoCapacity,
    RequestFailed,
)
from lmpoold.protocol.request import FIELDS

RETRY_AFTER_S = 1
STATUS: Mapping[str, tuple[int, str]] = {
    "invalid_request": (400, "invalid_request_error"),
    "context_length_exceeded": (400, "invalid_request_error"),
    "model_not_found": (404, "invalid_request_error"),
    "overloaded": (429, "overloaded_error"),
    "deadline_exceeded": (504, "timeout_error"),
    "cancelled": (499, "cancelled_error"),
}
"""HTTP status and OpenAI error type of each code of the pool; any other is a server error."""
CLIENT_LEFT = 499
_PARAM = re.compile(r"`(\w+)`")


class Fault(Exception):
    """An answer that is an error.

    Attributes:
        status: of HTTP.
        kind: OpenAI's `type`.
        code: OpenAI's `code`.
        param: the request's field to change, None if no single one is at fault.
        headers: to answer with.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code
        self.message = message
        self.param = param
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Return the JSON body."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}


def invalid(message: str, param: str | None = None) -> Fault:
    """Return the fault of a request that cannot be read."""
    return Fault(400, "invalid_request_error", "invalid_request", message, param=param)


def unauthorized(message: str) -> Fault:
    """Return the fault of a missing or wrong API key."""
    return Fault(
        401,
        "invalid_request_error",
        "invalid_api_key",
        message,
        headers={"WWW-Authenticate": "Bearer"},
    )


def unknown_model(model: str, served: str) -> Fault:
    """Return the fault of a model that this pool does not serve."""
    return Fault(
        404,
        "invalid_request_error",
        "model_not_found",
        f"this pool serves {served}, not {model[:80]!r}",
        param="model",
    )


def too_large(limit_bytes: int) -> Fault:
    """Return the fault of a body past the limit."""
    return Fault(
        413,
        "invalid_request_error",
        "request_too_large",
        f"the body holds more than {limit_bytes:,} bytes; shorten it",
    )


def unreachable() -> Fault:
    """Return the fault of a pool whose server does not answer."""
    return Fault(
        503,
        "server_error",
        "pool_unreachable",
        "the pool's server does not answer; send the request again later",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


def broken() -> Fault:
    """Return the fault of a bug: the log has the rest."""
    return Fault(500, "server_error", "internal_error", "the gateway failed; its log says how")


def fault_of(error: LMPoolError) -> Fault:
    """Return what a caller is told of an error that the pool or its client raised."""
    match error:
        case RequestFailed() | InvalidRequest():
            code = error.code
        case NoCapacity():
            code = "overloaded"
        case Conflict():
            return Fault(409, "invalid_request_error", "request_id_used", str(error))
        case _:
            return Fault(500, "server_error", "pool_error", str(error))
    message = error.message if isinstance(error, RequestFailed) else str(error)
    status, kind = STATUS.get(code, (500, "server_error"))
    named = _PARAM.search(message) if status == 400 else None
    param = named[1] if named is not None and named[1] in FIELDS else None
    headers = {"Retry-After": str(RETRY_AFTER_S)} if code == "overloaded" else None
    return Fault(status, kind, code, message, param=param, headers=headers)
