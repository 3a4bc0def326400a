"""Requests to engines: multiplexed on one connection if the engine is one of ours, otherwise each on a connection of
its own, whose closing tells the engine that the request was cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

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

from inference.remote.protocol import PATH
from inference.remote.transport import PATH as CHANNEL_PATH
from inference.remote.transport import PROTOCOL, Answer, Exchange, Receiver
from worker.engines.channel import Channel, keep_alive
from worker.lifecycle.address import Address

ANSWER_BYTES_MAX = 16 * 2**20  # of one that is forwarded in full: metrics have labels of many tenants
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
                answer = await _whole(response, ANSWER_BYTES_MAX)
        except ClientError as error:
            raise ConnectionError(_reason(error)) from error
        if len(answer.body) > ANSWER_BYTES_MAX:
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
