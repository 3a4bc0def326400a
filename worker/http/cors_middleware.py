"""Answers the preflight requests of browsers, and adds the headers of CORS to all responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import hdrs, web

from worker.http.cors import Cors

MAX_AGE_S = 600  # how long a browser may cache a preflight response
METHODS = "GET, POST, DELETE"
# Response headers that a page may read.
EXPOSED = "Openai-Processing-Ms, Retry-After, Retry-After-Ms, Server-Timing, X-Firsttoken-Ignored, X-Request-Id"


@dataclass(frozen=True, slots=True)
class CorsMiddleware:
    cors: Cors

    @web.middleware
    async def preflight(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Answer the browser's preflight request, which carries no credentials."""
        if request.method != hdrs.METH_OPTIONS or hdrs.ACCESS_CONTROL_REQUEST_METHOD not in request.headers:
            return await handler(request)
        if self._allowed(request) is None:
            return await handler(request)
        headers = {
            hdrs.ACCESS_CONTROL_ALLOW_METHODS: METHODS,
            hdrs.ACCESS_CONTROL_ALLOW_HEADERS: request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, ""),
            hdrs.ACCESS_CONTROL_MAX_AGE: str(MAX_AGE_S),
        }
        return web.Response(status=204, headers=headers)

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """On every response, including errors and streams, right before its headers are sent."""
        if not self.cors.origins:
            return
        response.headers.add(hdrs.VARY, hdrs.ORIGIN)
        if origin := self._allowed(request):
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = EXPOSED

    def _allowed(self, request: web.Request) -> str | None:
        return self.cors.allowed(request.headers.get(hdrs.ORIGIN))
