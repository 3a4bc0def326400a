"""The worker's end of the connection that multiplexes its requests to one engine: see `inference.remote.transport`.

The end of the connection is detected even if the machine vanishes.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import cache
from typing import cast

from inference.remote.protocol import MalformedStream
from inference.remote.transport import (
    ANSWER_BYTES_MAX,
    CANCEL,
    EVENTS,
    LAST,
    REFUSED,
    STEP,
    TAKEN,
    Exchange,
    Frame,
    Frames,
    Receiver,
    ask,
    frame,
    read_refusal,
    read_step,
)
from worker.lifecycle.address import Address

# If the machine vanishes without closing the connection, that is detected within 20 s: by keep-alive probes, or, while
# data is in flight and no probes are sent, by the time without an acknowledgement.
KEEPALIVE_S, KEEPALIVE_PROBES = 5, 3
UNACKNOWLEDGED_MS = 1000 * KEEPALIVE_S * (KEEPALIVE_PROBES + 1)


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def keep_alive(transport: asyncio.BaseTransport) -> None:
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {  # not available on every system
        "TCP_KEEPIDLE": KEEPALIVE_S,
        "TCP_KEEPINTVL": KEEPALIVE_S,
        "TCP_KEEPCNT": KEEPALIVE_PROBES,
        "TCP_USER_TIMEOUT": UNACKNOWLEDGED_MS,
    }
    for name, value in options.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


SWITCHING = b" 101 "
HEAD_BYTES_MAX = 32 * 1024
NUMBER_MAX = 2**32 - 1  # of a request; after that, a new connection is opened
# Until an engine has accepted a request: it may compile a grammar first. If its machine vanished without closing the
# connection, nothing would ever arrive.
TAKEN_S = 30.0


class Shared:
    """A request on the shared connection, or on one of its own if the engine does not share one. An
    `inference.remote.transport.Exchange`."""

    __slots__ = ("body", "channel", "number", "own", "receiver", "taken", "timer", "traceparent")

    def __init__(self, channel: Channel, number: int, receiver: Receiver, body: bytes, traceparent: str) -> None:
        self.channel, self.number = channel, number
        self.receiver: Receiver | None = receiver
        self.body, self.traceparent = body, traceparent
        self.own: Exchange | None = None
        self.taken = False
        self.timer = asyncio.get_running_loop().call_later(TAKEN_S, self._late)

    def close(self) -> None:
        self.receiver = None
        self.timer.cancel()
        if self.own is not None:
            self.own.close()
        else:
            self.channel.leave(self)

    def lose(self, reason: str) -> None:
        receiver = self.receiver
        self.close()
        if receiver is not None:
            receiver.lost(reason, reached=self.taken)

    def _late(self) -> None:
        if self.channel.is_open:
            self.lose("it did not respond in time")
        else:  # so that the next caller does not wait for the same timeout
            self.channel.close("it did not respond in time")


class Channel(asyncio.Protocol):
    """`plain` posts a request on a connection of its own, if the engine does not share one."""

    def __init__(
        self,
        address: Address,
        request: bytes,
        plain: Callable[[bytes, Receiver, str], Exchange],
    ) -> None:
        self.closed = False
        self._is_refused = False  # the engine, or a proxy in front of it, does not share connections
        self._request, self._plain = request, plain
        self._numbers = 0
        self._going: dict[int, Shared] = {}
        self._head = b""  # of the response to the upgrade request, as far as it has arrived
        self._frames = Frames(ANSWER_BYTES_MAX)
        self.is_open = False
        self._frames_out: list[bytes] = []  # of this iteration of the event loop, sent in one write
        self._transport: asyncio.Transport | None = None
        self._connecting = asyncio.get_running_loop().create_task(self._connect(address), name="engine channel")

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open" if self.is_open else "opening"
        return f"<Channel {state} | {len(self._going)} requests>"

    def post(self, receiver: Receiver, body: bytes, traceparent: str) -> Shared:
        self._numbers += 1
        shared = Shared(self, self._numbers, receiver, body, traceparent)
        self._going[shared.number] = shared
        if self.is_open:
            self._send(shared)
        return shared

    @property
    def is_spent(self) -> bool:
        """Whether the next request needs a new connection."""
        return self.closed or self._is_refused or self._numbers >= NUMBER_MAX

    def leave(self, shared: Shared) -> None:
        """Its caller no longer waits for it."""
        if self._going.pop(shared.number, None) is not None and self.is_open:
            self._write(frame(CANCEL, shared.number))

    def close(self, reason: str = "it closed the connection") -> None:
        if self.closed:
            return
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
        elif asyncio.current_task() is not self._connecting:
            self._connecting.cancel()
        going, self._going = tuple(self._going.values()), {}
        for shared in going:
            shared.lose(reason)

    # --- called by the event loop ---

    async def _connect(self, address: Address) -> None:
        loop = asyncio.get_running_loop()
        try:
            if address.path is not None:
                await loop.create_unix_connection(lambda: self, str(address.path))
            else:
                tls = _tls() if address.tls else None
                await loop.create_connection(lambda: self, address.host, address.port, ssl=tls)
        except OSError as error:
            self.close(f"there is no connection to it: {error.strerror or error}")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.closed:
            self._transport.abort()
            return
        keep_alive(transport)
        self._transport.write(self._request)

    def connection_lost(self, error: Exception | None) -> None:
        self.close(str(error) if error else "it closed the connection")

    def data_received(self, data: bytes) -> None:
        try:
            if not self.is_open:
                data = self._opened(data)
            for received in self._frames.feed(data) if data else ():
                self._take(received)
        except MalformedStream as error:
            self.close(f"it sent malformed data: {error}")

    # --- internal ---

    def _opened(self, data: bytes) -> bytes:
        """What follows the head. Raises MalformedStream."""
        head, end, behind = (self._head + data).partition(b"\r\n\r\n")
        if not end:
            self._head = head
            if len(head) > HEAD_BYTES_MAX:
                raise MalformedStream("its head is too large")
        elif SWITCHING in head.partition(b"\r\n")[0] + b" ":
            self.is_open = True
            for shared in tuple(self._going.values()):
                self._send(shared)
            return behind
        elif not self._is_refused:
            self._refuse()
        return b""

    def _refuse(self) -> None:
        """Send each request on a connection of its own."""
        self._is_refused = True
        going, self._going = tuple(self._going.values()), {}
        for shared in going:
            shared.timer.cancel()
            if shared.receiver is not None:
                shared.own = self._plain(shared.body, shared.receiver, shared.traceparent)
        if self._transport is not None:
            self._transport.abort()

    def _send(self, shared: Shared) -> None:
        self._write(ask(shared.number, shared.body, shared.traceparent))
        shared.body = b""

    def _write(self, data: bytes) -> None:
        if not self._frames_out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._frames_out.append(data)

    def _flush(self) -> None:
        frames, self._frames_out = self._frames_out, []
        if self._transport is not None and not self.closed:
            self._transport.write(b"".join(frames))

    def _take(self, received: Frame) -> None:
        if received.kind == STEP:
            for number, ids in read_step(received.content):
                shared = self._going.get(number)
                if shared is not None and shared.receiver is not None:
                    shared.receiver.generated(ids)
            return
        shared = self._going.get(received.number)
        if shared is None or shared.receiver is None:  # it was cancelled
            return
        if received.kind == TAKEN:
            shared.taken = True
            shared.timer.cancel()
            shared.receiver.begun()
        elif received.kind == EVENTS:
            shared.receiver.received(received.content)
        elif received.kind == LAST:
            del self._going[received.number]
            shared.receiver.received(received.content)
            shared.lose("the answer ended")
        elif received.kind == REFUSED:
            answer = read_refusal(received.content)
            del self._going[received.number]
            receiver = shared.receiver
            shared.close()
            receiver.refused(answer)
        else:
            raise MalformedStream(f"a frame of unknown kind: {received.kind}")
