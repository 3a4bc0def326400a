"""Requests to engines: multiplexed on one connection if the engine is one of ours (see `inference.remote.transport`),
otherwise each on a connection of its own, whose closing tells the engine that the request was cancelled.

The end of a connection is detected even if the machine vanishes.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from typing import Any, cast

from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientPayloadError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    TCPConnector,
    UnixConnector,
)

from inference.remote.protocol import PATH, MalformedStream
from inference.remote.transport import (
    ANSWER_BYTES_MAX,
    CANCEL,
    EVENTS,
    LAST,
    PROTOCOL,
    REFUSED,
    STEP,
    TAKEN,
    Answer,
    Exchange,
    Frame,
    Frames,
    Receiver,
    ask,
    frame,
    read_refusal,
    read_step,
)
from inference.remote.transport import PATH as CHANNEL_PATH
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


FORWARDED_BYTES_MAX = 16 * 2**20  # of one that is forwarded in full: metrics have labels of many tenants
REFUSAL_BYTES_MAX = 2**20  # of an error response: some engines echo the request
# Until the head of the response arrives, which an engine sends when it has accepted the request: it may compile a
# grammar first. If its machine vanished without closing the connection, nothing would ever arrive.
HEAD_S = 30.0
PLAIN_S = 60.0  # how long an engine, or a proxy in front of it, is not asked again for a shared connection


class PlainExchange:
    """An `inference.remote.transport.Exchange` on a connection of its own."""

    def __init__(self, asked: AbstractAsyncContextManager[ClientResponse], receiver: Receiver) -> None:
        self._receiver = receiver
        self._task = asyncio.get_running_loop().create_task(self._run(asked), name="engine")

    def close(self) -> None:
        self._task.cancel()

    async def _run(self, asked: AbstractAsyncContextManager[ClientResponse]) -> None:
        receiver, reached = self._receiver, False
        try:
            async with asyncio.timeout(HEAD_S) as limit, asked as answer:
                reached = True
                if answer.status != 200:
                    receiver.refused(await _whole(answer, REFUSAL_BYTES_MAX))
                    return
                limit.reschedule(None)
                if answer.connection is not None and answer.connection.transport is not None:
                    keep_alive(answer.connection.transport)
                receiver.begun()
                while not self._task.cancelling() and (piece := await answer.content.readany()):
                    receiver.received(piece)
            reason = "the answer ended"
        except (ClientError, OSError) as error:
            reason = _reason(error)
        if not self._task.cancelling():
            receiver.lost(reason, reached=reached)


async def _whole(answer: ClientResponse, bytes_max: int) -> Answer:
    """Cut off beyond that size."""
    body = bytearray()
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > bytes_max:
            break
    return Answer(answer.status, bytes(body), _retry_after_s(answer.headers))


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it did not respond in time"
    if isinstance(error, ClientConnectorError):
        return f"there is no connection to it: {error.strerror or error}"
    if isinstance(error, ClientPayloadError):
        return "its response was cut off"
    return str(error) or "it closed the connection"


class EngineTransport:
    """An `inference.remote.transport.Transport`. `token` is the one that engines on a network require."""

    def __init__(self, token: str | None = None) -> None:
        self._credentials = {"Authorization": f"Bearer {token}"} if token else {}
        self._channels: dict[str, Channel] = {}
        self._plain_until: dict[str, float] = {}  # on the event loop's clock

    def post(self, url: str, path: str, body: bytes, receiver: Receiver, traceparent: str = "") -> Exchange:
        if path != CHANNEL_PATH:
            return self._post(url, path, body, receiver, traceparent)
        if self._plain_until.get(url, 0.0) > asyncio.get_running_loop().time():
            return self._post(url, PATH, body, receiver, traceparent)
        channel = self._channels.get(url)
        if channel is None or channel.is_spent:
            channel = self._channels[url] = self._channel(url)
        return channel.post(receiver, body, traceparent)

    def close(self) -> None:
        channels, self._channels = tuple(self._channels.values()), {}
        for channel in channels:
            channel.close()

    def _channel(self, url: str) -> Channel:
        def plain(body: bytes, receiver: Receiver, traceparent: str) -> Exchange:
            self._plain_until[url] = asyncio.get_running_loop().time() + PLAIN_S
            return self._post(url, PATH, body, receiver, traceparent)

        address = Address.of_engine(url)
        headers = {"Host": address.host_header, **self._credentials, "Connection": "Upgrade", "Upgrade": PROTOCOL}
        lines = (f"GET {CHANNEL_PATH} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()))
        return Channel(address, "\r\n".join((*lines, "", "")).encode(), plain)

    def _post(self, url: str, path: str, body: bytes, receiver: Receiver, traceparent: str) -> Exchange:
        headers = {"Content-Type": "application/json", **({"Traceparent": traceparent} if traceparent else {})}
        return PlainExchange(self._asked("POST", url, path, data=body, headers=headers), receiver)

    async def get(self, url: str, path: str, timeout_s: float) -> Answer:
        try:
            async with asyncio.timeout(timeout_s), self._asked("GET", url, path) as response:
                answer = await _whole(response, FORWARDED_BYTES_MAX)
        except ClientError as error:
            raise ConnectionError(_reason(error)) from error
        if len(answer.body) > FORWARDED_BYTES_MAX:
            raise ConnectionError("its response does not end")
        return answer

    @asynccontextmanager
    async def _asked(self, method: str, url: str, path: str, **options: Any) -> AsyncIterator[ClientResponse]:
        """The connection is closed with it, which tells an engine that the request was cancelled."""
        address = Address.of_engine(url)
        origin = f"http://{address.host_header}" if address.path else url
        async with (
            ClientSession(
                connector=UnixConnector(str(address.path)) if address.path else TCPConnector(),
                headers={**self._credentials, "Connection": "close"},
                skip_auto_headers=("Accept-Encoding", "User-Agent"),
                auto_decompress=False,
                timeout=ClientTimeout(),
            ) as session,
            session.request(method, origin.rstrip("/") + path, allow_redirects=False, **options) as response,
        ):
            yield response


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The delay that the response headers ask for before a retry."""
    for name, scale in (("retry-after-ms", 1e3), ("retry-after", 1.0)):
        value = headers.get(name, "")
        if value.isascii() and value.isdigit() and len(value) < 9:
            return int(value) / scale
    return None
