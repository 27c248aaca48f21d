"""The gateway as an ASGI application: routes, and one HTTP request from body to last byte."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lmpoold.client import PoolClient
from lmpoold.gateway.asking import Asker, usable_name
from lmpoold.gateway.faults import CLIENT_LEFT, Fault, broken, fault_of, unreachable
from lmpoold.gateway.keyring import KeyRing
from lmpoold.gateway.metrics import Metrics
from lmpoold.gateway.openapi import describe
from lmpoold.gateway.page import Page
from lmpoold.gateway.reading import Call, Kind, read_call
from lmpoold.gateway.rendering import Rendering
from lmpoold.gateway.served import Served
from lmpoold.gateway.wire import Answering, CallerLeft, header, read_json, unless_gone
from lmpoold.protocol.errors import LMPoolError
from lmpoold.protocol.messages import Output, Usage

log = logging.getLogger(__name__)

PREFIX: Mapping[Kind, str] = {"chat": "chatcmpl-", "completion": "cmpl-"}


class Timing:
    """Times and tokens of one request; metrics hear of them when nobody waits for it."""

    def __init__(self, metrics: Metrics, choices: int) -> None:
        self.began_s = time.perf_counter()
        self.usages: list[Usage | None] = [None] * choices
        self._first_s = [0.0] * choices
        self._metrics = metrics
        self._seen: list[tuple[float, int, Output]] = []

    def seen(self, index: int, output: Output) -> None:
        """Note one output of a choice."""
        if output.ends:
            self.usages[index] = output.usage
        if output.ends or not self._first_s[index]:
            now_s = time.perf_counter()
            self._first_s[index] = self._first_s[index] or now_s
            self._seen.append((now_s, index, output))

    def tell(self) -> None:
        """Pass on what was noted since the last time."""
        for now_s, index, output in self._seen:
            first_s = self._first_s[index]
            if now_s == first_s:
                self._metrics.ttft.observe(now_s - self.began_s)
            if output.ends and output.usage is not None:
                self._metrics.used(output.usage)
                if output.index > 0:
                    self._metrics.tpot.observe((now_s - first_s) / output.index)
        self._seen.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The endpoints, over one client of the pool."""

    pool: PoolClient
    asker: Asker
    served: Served
    keys: KeyRing
    metrics: Metrics
    page: Page
    body_limit_bytes: int

    async def complete(self, kind: Kind, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request for tokens, whatever becomes of it."""
        answering = Answering(send)
        began_s, status = time.perf_counter(), 500
        answering.name = usable_name(header(scope, b"x-request-id"))
        self.metrics.under_way += 1
        try:
            try:
                await self._answer(kind, scope, receive, answering)
                status = 200
            except LMPoolError as error:
                raise fault_of(error) from error
            except (RedisError, OSError) as error:
                raise unreachable() from error
        except CallerLeft:
            status = CLIENT_LEFT
        except Fault as fault:
            status = fault.status
            await answering.fail(fault)
        except Exception:
            log.exception("a request broke", extra={"request": answering.name})
            await answering.fail(broken())
        finally:
            self.metrics.under_way -= 1
            self.metrics.ended(kind, status)
            took_ms = round((time.perf_counter() - began_s) * 1e3, 2)
            facts = {"request": answering.name, "endpoint": kind, "status": status}
            log.info("answered", extra={**facts, "took_ms": took_ms})

    async def _answer(
        self, kind: Kind, scope: Scope, receive: Receive, answering: Answering
    ) -> None:
        salt = self.keys.admit(header(scope, b"authorization"))
        call = read_call(kind, await read_json(scope, receive, self.body_limit_bytes))
        shared = {"model": await self.served.resolve(call.model)}
        if salt:
            shared["salt"] = salt
        choices = [{**fields, **shared} for fields in call.choices()]
        await unless_gone(self._ask(call, choices, answering), receive)

    async def _ask(self, call: Call, choices: list[dict[str, Any]], answering: Answering) -> None:
        timing = Timing(self.metrics, len(choices))
        answers: list[list[Output]] = [[] for _ in choices]
        try:
            async with self.asker.asked(answering.name, choices) as asked:
                answering.name = asked.name
                answer_id = PREFIX[call.kind] + asked.name
                rendering = Rendering(call, answer_id, call.model, int(time.time()))
                async with aclosing(asked.outputs()) as outputs:
                    async for index, output in outputs:
                        timing.seen(index, output)
                        if not call.stream:
                            answers[index].append(output)
                            continue
                        if chunk := rendering.chunk(index, output):
                            await answering.write(chunk)
                        timing.tell()
                if not call.stream:
                    await answering.whole(rendering.whole(answers))
                elif call.include_usage:
                    await answering.close(rendering.usage_chunk(timing.usages))
                else:
                    await answering.close()
        finally:
            timing.tell()

    async def models(self, request: Request) -> Response:
        """List what is served, or show one of it."""
        self.keys.admit(request.headers.get("authorization", ""))
        rows = await self.served.rows()
        if "name" not in request.path_params:
            return JSONResponse({"object": "list", "data": rows})
        name = request.path_params["name"]
        await self.served.resolve(name)
        return JSONResponse(next(row for row in rows if row["id"] == name))

    async def health(self, request: Request) -> Response:
        """Say whether this process works; a restart cures it if it does not."""
        return JSONResponse({"ok": self.pool.reading}, 200 if self.pool.reading else 503)

    async def ready(self, request: Request) -> Response:
        """Say whether requests sent now would be answered."""
        ranks = await self.served.ranks()
        up = sum(row.state == "up" for row in ranks or ())
        ready = self.pool.reading and up > 0
        why = "" if ready else "no rank is up" if ranks is not None else "the server is away"
        return JSONResponse({"ready": ready, "ranks_up": up, "why": why}, 200 if ready else 503)

    async def scrape(self, request: Request) -> Response:
        """Print the metrics."""
        page = self.metrics.page(await self.served.state())
        return Response(page, media_type="text/plain; version=0.0.4")

    async def openapi(self, request: Request) -> Response:
        """Describe the gateway."""
        return JSONResponse(describe(version("lmpool")))


async def _refuse(request: Request, error: Exception) -> Response:
    """Answer what the endpoints did not catch in OpenAI's shape too."""
    match error:
        case Fault():
            fault = error
        case HTTPException():
            fault = Fault(
                error.status_code,
                "invalid_request_error",
                "not_found" if error.status_code == 404 else "invalid_request",
                f"{request.method} {request.url.path}: {error.detail}",
            )
        case _:
            fault = broken()
    return JSONResponse(fault.body(), fault.status, headers=fault.headers)


class _Door:
    """A path's raw ASGI application; Starlette takes a bare function for something else."""

    def __init__(self, gateway: Gateway, kind: Kind) -> None:
        self._answer = partial(gateway.complete, kind)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(scope, receive, send)


class _Doors:
    """Requests for tokens go straight to their door: Starlette's way costs more than the answer."""

    def __init__(self, doors: Mapping[str, _Door], rest: ASGIApp) -> None:
        self._doors = doors
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asks = scope["type"] == "http" and scope["method"] == "POST"
        door = self._doors.get(scope["path"], self._rest) if asks else self._rest
        await door(scope, receive, send)


def build_app(gateway: Gateway) -> ASGIApp:
    """Return the application."""
    doors = {
        "/v1/chat/completions": _Door(gateway, "chat"),
        "/v1/completions": _Door(gateway, "completion"),
    }
    rest = Starlette(
        routes=[
            *(Route(path, door, methods=["POST"]) for path, door in doors.items()),
            Route("/v1/models", gateway.models),
            Route("/v1/models/{name:path}", gateway.models),
            Route("/health", gateway.health),
            Route("/ready", gateway.ready),
            Route("/metrics", gateway.scrape),
            Route("/openapi.json", gateway.openapi),
            *gateway.page.routes(),
        ],
        exception_handlers={HTTPException: _refuse, Fault: _refuse, Exception: _refuse},
    )
    return _Doors(doors, rest)
