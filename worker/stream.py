"""One streamed answer on its socket: headers early, a sign of life while idle, an end for clients that do not read."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from aiohttp import web

from inference.trace import now_ns
from worker import sse
from worker.services import TRACE
from worker.telemetry import server_timing

HEARTBEAT_S = 15.0  # proxies commonly cut connections that are silent for 30 to 60 seconds
STALL_S = 30.0  # a client that takes nothing for so long is gone, or holds a generation that others wait for


class ClientGone(Exception):
    """The client closed the connection or stopped reading: nobody waits for this answer."""


class EventStream:
    """Writes wait for the socket when its buffer is full; `blocked_ns` is how long they did."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._response = web.StreamResponse(headers=sse.HEADERS)
        self._opening = asyncio.Lock()  # the choices of one completion open it together
        self.blocked_ns = 0

    @property
    def response(self) -> web.StreamResponse:
        return self._response

    @property
    def is_open(self) -> bool:
        return self._response.prepared

    async def open(self) -> None:
        """Send the headers, once: the client knows now that its request was accepted, and what that took."""
        async with self._opening:
            if not self.is_open:
                self._response.headers["Server-Timing"] = server_timing(self._request[TRACE])
                await self._response.prepare(self._request)

    async def write(self, data: bytes) -> None:
        """Raises ClientGone."""
        started_ns = now_ns()
        try:
            async with asyncio.timeout(STALL_S):
                await self._response.write(data)
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ClientGone("the client stopped reading") from None
        except ConnectionError:
            raise ClientGone("the client closed the connection") from None
        finally:
            self.blocked_ns += now_ns() - started_ns

    async def ping(self) -> None:
        await self.write(sse.PING)

    async def close(self) -> web.StreamResponse:
        """The last event is out; whether the client waits for the end of the connection is its own affair."""
        with suppress(ConnectionError):
            await self._response.write_eof()
        return self._response
