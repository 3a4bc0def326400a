"""Streams to sockets: plain calls down to the transport, with a bound for clients that read slowly.

Frames that do not fit wait at the sender, not here: a run keeps its frames anyway, and deltas of a completion that wait
together are merged. One timer serves all streams: it tells senders when there is room again, sends heartbeats on idle
connections, and closes those of clients that read nothing.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress

from aiohttp import web

from inference.trace import now_ns
from worker.errors import ClientGone
from worker.http.request import TRACE
from worker.telemetry.telemetry import server_timing
from worker.wire.events import PING_COMMENT, SSE_HEADERS

log = logging.getLogger("firsttoken.streams")

HEARTBEAT_S = 15.0  # proxies commonly cut connections that are silent for 30 to 60 seconds
STALL_S = 30.0  # a client that reads nothing for so long is gone, or blocks a generation that others wait for
BEAT_S = 0.05  # resolution of the timer: how late a sender may learn that there is room again
BEATS_BETWEEN = 10  # looks at a stream whose client keeps up: a heartbeat or its end may be so much later
# In the transport, besides the buffers of the kernel: a slow client costs this much memory and at most one batch more.
ROOM_BYTES = 32 * 1024
TCP_CORK: int | None = getattr(socket, "TCP_CORK", None)  # Linux has it
BATCH_FRAMES = 64  # sent at once: of deltas, about half of ROOM_BYTES


class Heartbeat:
    """The timer of all streams of a worker. It runs while there are any."""

    def __init__(self) -> None:
        self.streams: set[Stream] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._beats = 0

    def add(self, stream: Stream) -> None:
        self.streams.add(stream)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def remove(self, stream: Stream) -> None:
        self.streams.discard(stream)

    def _beat(self) -> None:
        now, self._beats = now_ns(), self._beats + 1
        looks_at_all = self._beats % BEATS_BETWEEN == 0
        for stream in [each for each in self.streams if looks_at_all or each.is_behind]:
            try:
                stream.beat(now)
            except Exception:  # the boundary: without this timer all others stand still
                log.exception("a stream was cut off")
                self.remove(stream)
                stream.cut()
        again = asyncio.get_running_loop().call_later(BEAT_S, self._beat) if self.streams else None
        self._timer = again


HEARTBEAT: web.AppKey[Heartbeat] = web.AppKey("heartbeat", Heartbeat)


class Stream(ABC):
    """Server-sent events to one client. `on_room` are called when there is room again."""

    ping: Sequence[bytes] = ()  # sent when nothing else was for a while

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._heartbeat = request.app[HEARTBEAT]
        self._transport: asyncio.WriteTransport | None = None
        self.is_behind = False  # whether its client had no room when it was last looked at
        self._behind_bytes = 0  # in the transport, at the last beat
        self._behind_ns = 0  # since when
        self._active_ns = now_ns()  # when something was sent last, or read by a client that is behind
        self._spoke = False  # since the last beat
        self._waiters: list[asyncio.Future[None]] = []
        self._kept: list[bytes] = []
        self.on_room: list[Callable[[], None]] = []
        self.blocked_ns = 0  # while the client had no room

    @abstractmethod
    async def open(self) -> None:
        """Send what precedes all frames, once. Raises ClientGone."""

    @abstractmethod
    def _encoded(self, frames: Sequence[bytes]) -> bytes:
        """As the transport takes them."""

    @property
    def has_room(self) -> bool:
        """Whether `send` may be called. A lost connection has room for anything."""
        if self.is_behind:
            return False
        if (waiting := self.buffered) > ROOM_BYTES:
            self.is_behind, self._behind_bytes = True, waiting
            self._behind_ns = self._active_ns = now_ns()
            return False
        return True

    @property
    def buffered(self) -> int:
        """Bytes that wait for the kernel."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def send(self, frames: Sequence[bytes]) -> None:
        """Write frames to the transport immediately. On a lost connection they are dropped."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.write(self._encoded([*self._taken(), *frames] if self._kept else frames))
            self._spoke = True

    def keep(self, frames: Sequence[bytes]) -> None:
        """Send frames together with the next ones, which follow immediately: a packet costs more than its content."""
        self._kept += frames

    def _taken(self) -> list[bytes]:
        taken, self._kept = self._kept, []
        return taken

    async def room(self) -> None:
        """Return when there is room."""
        while not self.has_room:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    async def write(self, frames: Sequence[bytes]) -> None:
        """Send all frames, waiting for room between batches. Raises ClientGone."""
        for start in range(0, len(frames), BATCH_FRAMES):
            await self.room()
            if self._transport is None or self._transport.is_closing():
                raise ClientGone("the client closed the connection")
            self.send(frames[start : start + BATCH_FRAMES])

    def cut(self) -> None:
        """Abort the connection of a client that does not read; this cancels its handler."""
        if self._transport is not None:
            self._transport.abort()

    def beat(self, now: int) -> None:
        """Called by the heartbeat timer."""
        transport = self._transport
        if transport is None or transport.is_closing():
            self._catch_up(now)
            self.end()
        elif self.is_behind:
            waiting = self.buffered
            if waiting < self._behind_bytes:
                self._active_ns, self._behind_bytes = now, waiting
            if waiting <= ROOM_BYTES:
                self._catch_up(now)
            elif now - self._active_ns > STALL_S * 1e9:
                self.cut()
        elif self._spoke:
            self._spoke, self._active_ns = False, now
        elif self.ping and now - self._active_ns > HEARTBEAT_S * 1e9:
            self._active_ns = now
            self.send(self.ping)

    def _catch_up(self, now: int) -> None:
        if self.is_behind:
            self.is_behind = False
            self.blocked_ns += now - self._behind_ns
            for call in tuple(self.on_room):
                call()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def begin(self) -> None:
        """The headers have been sent."""
        self._transport = self._request.transport
        self._heartbeat.add(self)

    def end(self) -> None:
        self._heartbeat.remove(self)


class EventStream(Stream):
    """The body of a streamed HTTP response."""

    def __init__(self, request: web.Request, ping: bytes = PING_COMMENT) -> None:
        super().__init__(request)
        self.ping = (ping,)
        self._response = web.StreamResponse(headers=SSE_HEADERS)
        self._opening = asyncio.Lock()  # the choices of one completion open it together
        self._chunked = True

    @property
    def response(self) -> web.StreamResponse:
        return self._response

    @property
    def is_open(self) -> bool:
        return self._response.prepared

    async def open(self) -> None:
        """Send the headers, once: they tell the client that its request was accepted, and how long that took.

        Raises ClientGone.
        """
        async with self._opening:
            if self.is_open:
                return
            self._response.headers["Server-Timing"] = server_timing(self._request[TRACE])
            _cork(self._request.transport)
            try:
                await self._response.prepare(self._request)
            except ConnectionError:
                raise ClientGone("the client closed the connection") from None
            self._chunked = "Transfer-Encoding" in self._response.headers  # HTTP/1.0 has none: the end of it is the end
            self.begin()

    async def close(self, *last: bytes) -> web.StreamResponse:
        """Send the last frames and the end of the body in one packet; a client that is gone does not need them."""
        try:
            await self.room()
            with suppress(ConnectionError):
                await self._response.write_eof(b"".join([*self._taken(), *last]))
        finally:
            self.end()
        return self._response

    def _encoded(self, frames: Sequence[bytes]) -> bytes:
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data


def _cork(transport: asyncio.Transport | None) -> None:
    """Hold what is written back until the next iteration of the event loop: the headers go out with the first events.
    A packet costs more than its content, most of all one that wakes the client."""
    connection = transport.get_extra_info("socket") if transport is not None else None
    if TCP_CORK is None or connection is None or connection.family == socket.AF_UNIX:
        return

    def uncork() -> None:
        if transport is not None and not transport.is_closing():
            connection.setsockopt(socket.IPPROTO_TCP, TCP_CORK, 0)

    connection.setsockopt(socket.IPPROTO_TCP, TCP_CORK, 1)
    asyncio.get_running_loop().call_soon(uncork)
