"""One connection between its transport and the HTTP protocol: a client that stalls loses it. And the open connections:
limits in total and per address, and which one is evicted for a new one."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
from collections import Counter
from collections.abc import Callable
from typing import Protocol, cast

import orjson
from aiohttp import web

from worker.errors import ApiError

# Database, models, document readers, tool servers and spooled uploads need their descriptors whatever comes in.
RESERVED_DESCRIPTORS = 256
CONNECTIONS_MIN = 16  # a floor for machines with too few descriptors
CONNECTIONS_MAX = 4096  # an idle one costs some kilobytes; more than that belong behind a balancer
NETWORK_BITS = 64  # of an IPv6 address: the prefix of one customer of a provider


class Member(Protocol):
    """An open connection. One that waits for a request may be closed in favour of another."""

    @property
    def address(self) -> str: ...

    def evict(self) -> None: ...


class Connections:
    """Connections that wait for a request, longest first, and those being served.

    Over a limit, a new connection takes the place of the one that has waited longest: one with half a request, or none,
    never keeps out a complete one. A new connection is refused only if all others are being served.
    """

    def __init__(self, limit: int, address_limit: int) -> None:
        self._limit = limit
        self._address_limit = address_limit
        self._waiting: dict[Member, None] = {}  # longest first
        self._open: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._open.total()

    def admit(self, newcomer: Member) -> bool:
        """Add a connection, which waits for its request; False when there is no room for it."""
        if self._open[newcomer.address] >= self._address_limit:
            place = self._longest_waiting(newcomer.address)
        elif len(self) >= self._limit:
            place = self._longest_waiting()
        else:
            place = newcomer
        if place is None:
            return False
        if place is not newcomer:
            self.leave(place)
            place.evict()
        self._open[newcomer.address] += 1
        self._waiting[newcomer] = None
        return True

    def _longest_waiting(self, address: str | None = None) -> Member | None:
        return next((each for each in self._waiting if address in (None, each.address)), None)

    def serve(self, member: Member) -> None:
        """Its request has arrived."""
        self._waiting.pop(member, None)

    def wait(self, member: Member) -> None:
        """Its request was answered."""
        self._waiting[member] = None

    def leave(self, member: Member) -> None:
        self._waiting.pop(member, None)
        self._open[member.address] -= 1
        if not self._open[member.address]:
            del self._open[member.address]


def limit_for(descriptors: int) -> int:
    """How many connections a process with this limit of file descriptors can hold and still open files."""
    return min(max(descriptors - RESERVED_DESCRIPTORS, CONNECTIONS_MIN), CONNECTIONS_MAX)


def descriptors() -> int:
    """The descriptor limit of this process (RLIMIT_NOFILE)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX + RESERVED_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def address_of(peer: object) -> str:
    """The key that a connection is counted under: an IPv4 address, or the network of an IPv6 address; "" for a local
    socket.

    `peer` is the transport's `peername`.
    """
    host = peer[0] if isinstance(peer, tuple) and peer else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return str(host)
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, NETWORK_BITS), strict=False))
    return str(address)


HEAD_BYTES_MAX = 32 * 1024  # of request line and headers together: a credential of 8 kB and the cookies of a host
HEAD_END = b"\r\n\r\n"
# The rest of an unwanted body (after a 401, say) is read and discarded: a client that is still sending would be reset
# before it reads the response.
LINGER_BYTES_MAX = 1024 * 1024
STALL_S = 30.0  # a client that reads nothing of a response for this long is gone
RETRY_AFTER_S = 1
FRAMES_BYTES_MAX = 4096  # of a WebSocket at a time: hundreds of frames without content, which take some milliseconds

OVERLOADED = ApiError(503, "The worker has no room for another connection.")
LATE = ApiError(408, "The request took too long to arrive.", code="request_timeout")
TOO_LARGE = ApiError(431, "The headers of the request are too large.", code="headers_too_large")
REASONS = {408: "Request Timeout", 431: "Request Header Fields Too Large", 503: "Service Unavailable"}


class Guard(asyncio.Protocol):
    """Passes everything on to the protocol that `make` creates, once the connection is admitted.

    A request's line and headers have `header_s` seconds to arrive, from the connection or their first byte on. From
    then on the handlers are responsible for the request: they report it.
    """

    def __init__(self, make: Callable[[], asyncio.Protocol], connections: Connections, header_s: float) -> None:
        self.address = ""
        self.on_bytes: Callable[[int], None] | None = None  # gets the size of each read of an upgraded connection
        self._upgraded: asyncio.Protocol | None = None
        self._make = make
        self._connections = connections
        self._header_s = header_s
        self._transport: asyncio.Transport | None = None
        self._inner: asyncio.Protocol | None = None
        self._admitted = False  # counted among the connections
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._awaits_head = True
        self._head_bytes = 0
        self._head_tail = b""  # the end of the head may be split over two reads
        self._frames = bytearray()  # of a WebSocket, not passed on yet
        self._passing: asyncio.Handle | None = None
        self._holds_back = False  # reading was paused here: what the inner protocol paused is its own to resume
        self._client_takes = True  # what is written

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.address = address_of(transport.get_extra_info("peername"))
        if not self._connections.admit(self):
            self._transport.write(_answer(OVERLOADED))
            self._transport.close()
            return
        self._admitted = True
        self._inner = self._make()
        self._inner.connection_made(transport)
        self._timer = asyncio.get_running_loop().call_later(self._header_s, self._late)

    def data_received(self, data: bytes) -> None:
        if self._inner is None:
            return
        if self.on_bytes is not None:
            self.on_bytes(len(data))
        if self._upgraded is not None:
            self._upgraded.data_received(data)
        elif self.on_bytes is not None or self._frames:
            self._frames += data
            if self._passing is None:
                self._pass_frames()
        elif not self._awaits_head or self._head_fits(data):
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._inner is not None else None

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_timers()
        if self._admitted:
            self._admitted = False
            self._connections.leave(self)
        for protocol in (self._upgraded, self._inner):
            if protocol is not None:
                protocol.connection_lost(error)
        self._upgraded = self._inner = None

    def pause_writing(self) -> None:
        self._client_takes = False
        if self._inner is not None:
            self._inner.pause_writing()
        self._watch_stall(self._buffered)

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        if self._inner is not None:
            self._inner.resume_writing()
        self._client_takes = True
        if self._frames and self._passing is None:
            self._pass_frames()

    def begin_serving(self) -> None:
        """The headers of a request have arrived."""
        self._stop_head_timer()
        self._awaits_head = False
        self._connections.serve(self)

    def end_serving(self, request: web.BaseRequest) -> None:
        """Its response is sent."""
        self._await_head(0 if request.content.is_eof() else -LINGER_BYTES_MAX)

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """Pass what arrives from now on to this protocol, while its request is being served. The previous protocol only
        learns of the end of the connection."""
        self._upgraded = protocol

    def _pass_frames(self) -> None:
        """Pass a few frames on, and more in a later iteration of the event loop: each ping among them is answered.

        While the client does not take the pongs, nothing is read: they would wait for it in memory.
        """
        self._passing = None
        if self._inner is None or self._transport is None:
            return
        if self._client_takes:
            some = bytes(self._frames[:FRAMES_BYTES_MAX])
            del self._frames[:FRAMES_BYTES_MAX]
            self._inner.data_received(some)
            if self._frames and self._client_takes:
                self._passing = asyncio.get_running_loop().call_soon(self._pass_frames)
        if bool(self._frames) != self._holds_back and not self._transport.is_closing():
            self._holds_back = not self._holds_back
            (self._transport.pause_reading if self._holds_back else self._transport.resume_reading)()

    def evict(self) -> None:
        """Close it to admit another connection; this one is no longer counted."""
        self._admitted = False
        if self._transport is not None:
            self._transport.abort()

    def _await_head(self, head_bytes: int) -> None:
        self._awaits_head, self._head_bytes, self._head_tail = True, head_bytes, b""
        if self._admitted:
            self._connections.wait(self)

    def _head_fits(self, data: bytes) -> bool:
        """Whether a piece of a request's head may be passed on; the reader of the body bounds what follows."""
        if self._head_bytes == 0:
            data = data.lstrip(b"\r\n")  # empty lines before a request do not end its head
        seen = self._head_tail + data
        if HEAD_END in seen:
            self._awaits_head = False
            return True
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._header_s, self._late)
        self._head_tail = seen[1 - len(HEAD_END) :]
        self._head_bytes += len(data)
        if self._head_bytes <= HEAD_BYTES_MAX:
            return True
        self._end(TOO_LARGE)
        return False

    def _late(self) -> None:
        self._end(LATE if self._head_bytes > 0 else None)

    def _end(self, error: ApiError | None) -> None:
        """Close the connection of a client that waits for no other response."""
        if self._transport is not None and self._inner is not None and not self._transport.is_closing():
            if error is not None:
                self._transport.write(_answer(error))
            self._transport.close()
            self._watch_stall(self._buffered)

    @property
    def _buffered(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def _watch_stall(self, before: int) -> None:
        """Check again later whether the client has read some of the buffered data."""
        loop = asyncio.get_running_loop()
        self._stalled = loop.call_later(STALL_S, self._check_stall, before)

    def _check_stall(self, before: int) -> None:
        if self._transport is not None and (waiting := self._buffered):
            if waiting >= before:
                self._transport.abort()
            else:
                self._watch_stall(waiting)

    def _stop_head_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_timers(self) -> None:
        self._stop_head_timer()
        if self._passing is not None:
            self._passing.cancel()
        if self._stalled is not None:
            self._stalled.cancel()


def guard_of(request: web.BaseRequest) -> Guard | None:
    """The guard of the request's connection; None when the connection is lost, or a test serves without a guard."""
    transport = request.transport
    protocol = transport.get_protocol() if transport is not None else None
    return protocol if isinstance(protocol, Guard) else None


def remote_of(request: web.BaseRequest) -> str:
    """The address that the request is counted under."""
    guard = guard_of(request)
    return guard.address if guard else address_of((request.remote,))


def _answer(error: ApiError) -> bytes:
    """A complete response, for when there is no request that a handler could answer."""
    body = orjson.dumps(error.body)
    retry = f"Retry-After: {RETRY_AFTER_S}\r\n" if error.status == 503 else ""
    head = (
        f"HTTP/1.1 {error.status} {REASONS[error.status]}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n{retry}Connection: close\r\n\r\n"
    )
    return head.encode() + body
