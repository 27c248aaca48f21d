"""The web page at `/ui`: three files of the package, and the JSON behind them."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lmpoold.gateway.faults import Fault
from lmpoold.gateway.keyring import KeyRing
from lmpoold.gateway.looking import Looking

FILES = {"index.html": "text/html", "ui.css": "text/css", "ui.js": "text/javascript"}
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@cache
def text_of(name: str) -> bytes:
    """Return one of the page's files."""
    return (files("lmpoold.gateway") / "ui" / name).read_bytes()


class Page:
    """The page's routes: its files are for everybody, what it shows for holders of a key."""

    def __init__(self, looking: Looking, keys: KeyRing) -> None:
        """Show what `looking` reads to those whom `keys` admit."""
        self._looking = looking
        self._keys = keys

    async def file(self, request: Request) -> Response:
        """Send one of the page's files."""
        name = request.path_params.get("name", "index.html")
        if name not in FILES:
            raise Fault(404, "invalid_request_error", "not_found", f"the page has no {name[:60]!r}")
        return Response(text_of(name), media_type=FILES[name], headers=HEADERS)

    async def pool(self, request: Request) -> Response:
        """Send the pool at this moment."""
        self._admit(request)
        return _json(await self._looking.pool())

    async def pages(self, request: Request) -> Response:
        """Send some of a rank's page table."""
        self._admit(request)
        asked = request.query_params
        return _json(await self._looking.pages(asked.get("rank", ""), asked.get("cursor", "0")))

    async def block(self, request: Request) -> Response:
        """Send who holds a block."""
        self._admit(request)
        return _json(await self._looking.block(request.query_params.get("hash", "")))

    async def request(self, request: Request) -> Response:
        """Send why a request went where it went."""
        self._admit(request)
        return _json(await self._looking.request(request.query_params.get("id", "")[:200]))

    def _admit(self, request: Request) -> None:
        self._keys.admit(request.headers.get("authorization", ""))

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/ui", self.file),
            Route("/ui/api/pool", self.pool),
            Route("/ui/api/pages", self.pages),
            Route("/ui/api/block", self.block),
            Route("/ui/api/request", self.request),
            Route("/ui/{name}", self.file),
        ]


def _json(value: Any) -> JSONResponse:
    return JSONResponse(value, headers={"Cache-Control": "no-store"})
