"""Requests to engines: multiplexed on one connection if the engine is one of ours, otherwise each on a connection of
its own, whose closing tells the engine that the request was cancelled.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import cast

from inference.remote.protocol import PATH
from inference.remote.transport import PATH as CHANNEL_PATH
from inference.remote.transport import PROTOCOL, Answer, Exchange, Receiver
from worker.engines.channel import Channel, dial, keep_alive
from worker.engines.http_response import BadResponse, HttpResponseParser
from worker.lifecycle.address import Address

ANSWER_BYTES_MAX = 16 * 2**20  # of one that is forwarded in full: metrics have labels of many tenants
REFUSAL_BYTES_MAX = 2**20  # of an error response: some engines echo the request
# Until the head of the response arrives, which an engine sends when it has accepted the request: it may compile a
# grammar first. If its machine vanished without closing the connection, nothing would ever arrive.
HEAD_S = 30.0
PLAIN_S = 60.0  # how long an engine, or a proxy in front of it, is not asked again for a shared connection


class Connection(asyncio.Protocol):
    """An `inference.remote.transport.Exchange`."""

    def __init__(self, address: Address, request: bytes, receiver: Receiver, tls: ssl.SSLContext | None) -> None:
        self._request = request
        self._receiver: Receiver | None = receiver
        self._answer = HttpResponseParser()
        self._body = bytearray()  # of an error response
        self._transport: asyncio.Transport | None = None
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(HEAD_S, self._lose, "it did not respond in time")
        self._connecting = loop.create_task(self._connect(address, tls), name="engine")

    async def _connect(self, address: Address, tls: ssl.SSLContext | None) -> None:
        try:
            await dial(address, lambda: self, tls)
        except OSError as error:
            self._lose(f"there is no connection to it: {error.strerror or error}")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        keep_alive(transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        answer, had_head = self._answer, self._answer.status
        try:
            pieces = answer.feed(data)
        except BadResponse as error:
            self._lose(f"its response is not HTTP: {error}")
            return
        if self._receiver is None or not answer.status:
            return
        if answer.status != 200:
            self._refuse(pieces)
            return
        if not had_head:
            self._timer.cancel()
            self._receiver.begun()
        if pieces and self._receiver is not None:
            self._receiver.received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if answer.whole:
            self._lose("the answer ended")

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer.ends_with_connection and self._answer.status != 200:
            self._answer.whole = True
            self._refuse(())
        self._lose(str(error) if error else "it closed the connection")

    @property
    def is_whole(self) -> bool:
        """The response is complete; for one without a length, that is not known."""
        return self._answer.whole or self._answer.ends_with_connection

    def close(self) -> None:
        self._receiver = None
        self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        elif not self._connecting.done() and asyncio.current_task() is not self._connecting:
            self._connecting.cancel()

    def _refuse(self, pieces: list[bytes] | tuple[bytes, ...]) -> None:
        """Deliver an error response, once it is complete or long enough."""
        self._body += b"".join(pieces)
        receiver, answer = self._receiver, self._answer
        if receiver is not None and (answer.whole or len(self._body) > REFUSAL_BYTES_MAX):
            self.close()
            receiver.refused(Answer(answer.status, bytes(self._body), _seconds(answer.headers)))

    def _lose(self, reason: str) -> None:
        receiver, reached = self._receiver, self._answer.status > 0
        self.close()
        if receiver is not None:
            receiver.lost(reason, reached=reached)


class _Whole:
    """Waits for a complete response."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._body = bytearray()

    def begun(self) -> None:
        pass

    def refused(self, answer: Answer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def told(self, ids: Sequence[int]) -> None:
        pass

    def received(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > ANSWER_BYTES_MAX:
            self.lost("its response does not end", reached=False)

    def lost(self, reason: str, *, reached: bool) -> None:
        if self.answer.done():
            return
        if reached:
            self.answer.set_result(Answer(200, bytes(self._body)))
        else:
            self.answer.set_exception(ConnectionError(reason))


class EngineTransport:
    """An `inference.remote.transport.Transport`. `token` is the one that engines on a network require."""

    def __init__(self, token: str | None = None) -> None:
        self._credentials = f"Authorization: Bearer {token}\r\n" if token else ""
        self._addresses: dict[str, Address] = {}
        self._tls: ssl.SSLContext | None = None
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

        address = self._address(url)
        head = f"Connection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n"
        return Channel(address, self._request(address, "GET", CHANNEL_PATH, head), self._tls, plain)

    def _post(self, url: str, path: str, body: bytes, receiver: Receiver, traceparent: str) -> Connection:
        head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        if traceparent:
            head += f"Traceparent: {traceparent}\r\n"
        return self._send(url, "POST", path, head, body, receiver)

    async def get(self, url: str, path: str, timeout_s: float) -> Answer:
        whole = _Whole()
        connection = self._send(url, "GET", path, "", b"", whole)
        try:
            async with asyncio.timeout(timeout_s):
                answer = await whole.answer
        finally:
            connection.close()
        if answer.status == 200 and not connection.is_whole:
            raise ConnectionError("its response was cut off")
        return answer

    def _send(self, url: str, method: str, path: str, head: str, body: bytes, receiver: Receiver) -> Connection:
        address = self._address(url)
        request = self._request(address, method, path, f"Connection: close\r\n{head}") + body
        return Connection(address, request, receiver, self._tls)

    def _address(self, url: str) -> Address:
        address = self._addresses.get(url)
        if address is None:
            address = self._addresses[url] = Address.of_engine(url)
        if address.tls and self._tls is None:
            self._tls = ssl.create_default_context()
        return address

    def _request(self, address: Address, method: str, path: str, head: str) -> bytes:
        begin = f"{method} {path} HTTP/1.1\r\nHost: {address.host_header}\r\n"
        return f"{begin}{self._credentials}{head}\r\n".encode()


def _seconds(headers: dict[str, str]) -> float | None:
    """The delay that the response headers ask for before a retry."""
    for name, scale in (("retry-after-ms", 1e3), ("retry-after", 1.0)):
        value = headers.get(name, "")
        if value.isascii() and value.isdigit() and len(value) < 9:
            return int(value) / scale
    return None
