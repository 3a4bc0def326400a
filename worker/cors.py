"""Cross-origin requests (CORS, as in the Fetch standard): browser programs whose pages are served from elsewhere.

They send an API key or a JWT of their own. The session cookie is not for them, so credentials are never allowed.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import hdrs, web

ANY = "*"
MAX_AGE_S = 600  # how long a browser may cache a preflight response
METHODS = "GET, POST, DELETE"
# Response headers that a page may read.
EXPOSED = "Openai-Processing-Ms, Retry-After, Retry-After-Ms, Server-Timing, X-Firsttoken-Ignored, X-Request-Id"
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\[\]:-]+")


@dataclass(frozen=True, slots=True)
class Cors:
    """`origins` are those whose pages may call the API; "*" for all."""

    origins: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str | None) -> Cors:
        """Origins, separated by commas. Raises ValueError with the mistake as its message."""
        origins = [part.strip().rstrip("/") for part in (text or "").split(",") if part.strip()]
        for origin in origins:
            if origin != ANY and not _ORIGIN.fullmatch(origin):
                raise ValueError(f"must be * or origins such as https://example.com, not {origin!r}")
        return cls(frozenset(origins))

    def allowed(self, request: web.Request) -> str | None:
        """The origin to which a response is exposed."""
        if ANY in self.origins:
            return ANY
        origin = request.headers.get(hdrs.ORIGIN)
        return origin if origin in self.origins else None

    @web.middleware
    async def preflight(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Answer the browser's preflight request, which carries no credentials."""
        if request.method != hdrs.METH_OPTIONS or hdrs.ACCESS_CONTROL_REQUEST_METHOD not in request.headers:
            return await handler(request)
        if self.allowed(request) is None:
            return await handler(request)
        headers = {
            hdrs.ACCESS_CONTROL_ALLOW_METHODS: METHODS,
            hdrs.ACCESS_CONTROL_ALLOW_HEADERS: request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, ""),
            hdrs.ACCESS_CONTROL_MAX_AGE: str(MAX_AGE_S),
        }
        return web.Response(status=204, headers=headers)

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """On every response, including errors and streams, right before its headers are sent."""
        if not self.origins:
            return
        response.headers.add(hdrs.VARY, hdrs.ORIGIN)
        if origin := self.allowed(request):
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = EXPOSED
