"""The listening socket: its connections are counted and guarded, and speak HTTP within limits."""

from __future__ import annotations

import asyncio
import logging
import socket
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias

from aiohttp import BadContentDispositionHeader, BadContentDispositionParam, web
from aiohttp.http import HttpProcessingError, HttpVersion11
from aiohttp.web_protocol import RequestHandler

from worker.edge.guard import Connections, Guard, descriptors, limit_for
from worker.edge.limit_settings import LimitSettings
from worker.errors import ApiError
from worker.http.middleware import error_response
from worker.lifecycle.address import BACKLOG

Handler: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

CONTINUE = "100-continue"
CLOSED_S = 0.05  # the event loop closes a socket in one of its next iterations
HEADER_S = 10.0  # for the headers of a request: who needs another time has a proxy that has it
CLEANUP_S = 0.2  # for handlers that continue after everything was answered or abandoned


class Expected(logging.Filter):
    """Filters log records of what clients cause: malformed requests, and connections that end at any moment."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, HttpProcessingError | ConnectionError)


LOG = logging.getLogger("firsttoken.http.server")
LOG.addFilter(Expected())

HTTP: dict[str, Any] = {
    "access_log": None,
    "logger": LOG,
    "auto_decompress": False,  # a body is decompressed once its sender is authenticated
    "keepalive_timeout": 75.0,  # longer than the 60 s for which balancers commonly keep idle connections
    "lingering_time": 1.0,  # for the rest of an unwanted body
    "max_line_size": 8190,
    "max_field_size": 8190,  # a bearer token may have 8,192 characters minus its scheme
    "max_headers": 64,
    "read_bufsize": 64 * 1024,  # per connection, twice, before the body is read
}


class Http(RequestHandler):
    """The protocol of one connection. What it refuses before there is a request has the format of every other error."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        super().handle_error(request, status, exc, message)  # logs the error, and raises if a response has begun
        if status < 500:
            error = ApiError(status, f"The request is not valid HTTP: {message}", code="invalid_http")
        else:
            error = ApiError(status, "Something went wrong on our side.", code="server_error")
        response = error_response(error)
        response.force_close()
        return response


class Listener:
    """An application on a socket. `connections` are the open ones."""

    def __init__(self, app: web.Application, config: LimitSettings) -> None:
        limit = config.connections or limit_for(descriptors())
        self.connections = Connections(limit, config.address_connections or max(limit // 2, 1))
        # When a client disconnects, its generation stops at the next step.
        self._runner = web.AppRunner(app, shutdown_timeout=CLEANUP_S, handler_cancellation=True)
        self._server: asyncio.Server | None = None
        self._socket: socket.socket | None = None

    async def start(self, listener: socket.socket) -> None:
        for odd in (BadContentDispositionHeader, BadContentDispositionParam):
            warnings.simplefilter("ignore", odd)  # what clients send is no reason to warn
        await self._runner.setup()
        assert self._runner.server is not None
        self._runner.server.request_handler = _checked(self._runner.server.request_handler)
        loop = asyncio.get_running_loop()
        self._socket = listener
        create = loop.create_unix_server if listener.family == socket.AF_UNIX else loop.create_server
        self._server = await create(self._protocol, sock=listener, backlog=BACKLOG)

    def _protocol(self) -> asyncio.Protocol:
        return Guard(self._make_http, self.connections, HEADER_S)

    def _make_http(self) -> Http:
        assert self._runner.server is not None
        return Http(self._runner.server, loop=asyncio.get_running_loop(), **HTTP)

    async def leave(self) -> None:
        """Accept no more connections. Existing ones continue, also those in the backlog, which would be reset if the
        socket were closed."""
        assert self._server is not None and self._socket is not None
        loop, waiting = asyncio.get_running_loop(), []
        with self._socket.dup() as last:
            self._server.close()
            await asyncio.sleep(CLOSED_S)
            last.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    waiting.append(last.accept()[0])
        for connection in waiting:
            with suppress(OSError):
                await loop.connect_accepted_socket(self._protocol, connection)

    async def close(self) -> None:
        """Stop listening and end what is left."""
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()


def _checked(handle: Handler) -> Handler:
    """Reject expectations other than 100-continue: aiohttp would answer them itself before any middleware, and
    incorrectly if they are not text. And close a connection after a body of unknown length without chunks (HTTP/1.0 has
    none): nothing else ends it, but aiohttp keeps the connection if the client wants to.
    """

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Expect", CONTINUE).lower() != CONTINUE:
            return error_response(ApiError(417, f"The only supported expectation is {CONTINUE}."))
        response = await handle(request)
        if request.version < HttpVersion11 and response.content_length is None:
            response.force_close()
        return response

    return answer


@asynccontextmanager
async def listening(app: web.Application, config: LimitSettings, listener: socket.socket) -> AsyncIterator[Listener]:
    server = Listener(app, config)
    try:
        await server.start(listener)
        yield server
    finally:
        await server.close()
