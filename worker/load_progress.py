"""The progress of loading a model, for the terminal and for /readyz."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Never

from aiohttp import web
from tqdm import tqdm

from worker.config import VERSION, Config
from worker.edge.listener import listening
from worker.errors import ApiError
from worker.json_response import json_response
from worker.middleware import error_response

BAR_AFTER_S = 1.0  # a bar that vanishes before it can be read only distracts
RETRY_S = 1  # most models are loaded a second or two after a request


class LoadProgress:
    """`share` goes from 0 to 1. Written by the loading thread, read by the event loop."""

    def __init__(self) -> None:
        self.share = 0.0
        self._bar: tqdm[Never] | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show a bar in the terminal, if there is one."""
        with tqdm(total=100, unit="%", desc="loading the model", delay=BAR_AFTER_S, leave=False, disable=None) as bar:
            self._bar = bar
            yield

    def tell(self, share: float) -> None:
        self.share = share
        if self._bar is not None:
            self._bar.update(round(100 * share) - self._bar.n)

    @asynccontextmanager
    async def answered(self, config: Config, listener: socket.socket) -> AsyncIterator[None]:
        """Answer requests while the model is loaded: health checks with the progress, all others with Retry-After.
        Connections that arrive between this and the start of the worker itself wait in the socket's backlog."""
        app = web.Application()
        for path in ("/healthz", "/health"):
            app.router.add_get(path, _live)
        app.router.add_get("/readyz", self._ready)
        app.router.add_route("*", "/{path:.*}", _later)
        async with listening(app, config, listener.dup()):
            yield

    async def _ready(self, request: web.Request) -> web.Response:
        parts = {"worker": "starting", "engine": "loading"}
        return json_response({"status": "unavailable", "parts": parts, "loaded": round(self.share, 3)}, status=503)


async def _live(request: web.Request) -> web.Response:
    return json_response({"status": "ok", "version": VERSION})


async def _later(request: web.Request) -> web.Response:
    text = "The model is being loaded."
    response = error_response(
        ApiError(503, text, type="server_error", code="loading", retry_after_s=RETRY_S), request.path
    )
    response.force_close()
    return response
