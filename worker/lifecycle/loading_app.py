"""What the worker answers while its model is loaded: health checks with the progress, browsers with a page that opens
by itself as soon as the worker is ready, and all other requests with Retry-After."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from worker.config import VERSION, Config
from worker.edge.listener import listening
from worker.errors import ApiError
from worker.http.middleware import SECURITY_HEADERS, SERVER, error_response
from worker.http.request import json_response, speaks_anthropic
from worker.lifecycle.process import LoadProgress
from worker.routes import pages

RETRY_S = 1  # most models are loaded a second or two after a request


@asynccontextmanager
async def serving_progress(progress: LoadProgress, config: Config, listener: socket.socket) -> AsyncIterator[None]:
    """Connections that arrive between this and the start of the worker itself wait in the socket's backlog."""
    loading = LoadingApp(progress)
    app = web.Application()
    for path in ("/healthz", "/health"):
        app.router.add_get(path, loading.live)
    app.router.add_get("/readyz", loading.ready)
    app.router.add_routes(pages.static_routes)
    app.router.add_route("*", "/{path:.*}", loading.later)
    app.on_response_prepare.append(_add_headers)
    async with listening(app, config, listener.dup()):
        yield


class LoadingApp:
    def __init__(self, progress: LoadProgress) -> None:
        self._progress = progress

    async def live(self, request: web.Request) -> web.Response:
        return json_response({"status": "ok", "version": VERSION})

    async def ready(self, request: web.Request) -> web.Response:
        parts = {"worker": "starting", "engine": "loading"}
        loaded = round(self._progress.share, 3)
        return json_response({"status": "unavailable", "parts": parts, "loaded": loaded}, status=503)

    async def later(self, request: web.Request) -> web.Response:
        if request.method == "GET" and "text/html" in request.headers.get("Accept", ""):
            response = pages.loading_page(request, self._progress.share)
            response.headers["Refresh"] = str(RETRY_S)  # of the same address, with the token of a sign-in link
            response.headers["Retry-After"] = str(RETRY_S)
        else:
            error = ApiError(503, "The model is being loaded.", code="loading", retry_after_s=RETRY_S)
            response = error_response(error, to_anthropic=speaks_anthropic(request))
        response.force_close()
        return response


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = SERVER
    for name, value in SECURITY_HEADERS.items():
        response.headers.setdefault(name, value)
