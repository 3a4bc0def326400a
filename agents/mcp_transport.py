"""HTTP to an MCP server that a request names: to one origin only, to addresses that were checked, and bounded."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator

import httpx2

from agents.origin import PORTS, origin_of
from retrieval.loaders.web import is_public

ANSWER_BYTES_MAX = 1_000_000  # of a response: a list of 128 tools with long schemas; it is parsed on the event loop


class Refused(Exception):
    """The request is not sent, or its response not read. The message contains no secrets."""


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Names are resolved first, and the connection goes to the very address that was checked, so a name that resolves
    differently the second time (DNS rebinding) achieves nothing."""

    def __init__(self, origin: str, *, is_private: bool) -> None:
        """`is_private`: the origin may be on this machine or in its networks."""
        self._origin, self._is_private = origin, is_private
        self.trouble = ""  # with the newest request, for people: the client library does not tell
        self._inner = httpx2.AsyncHTTPTransport(trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Raises Refused, and what the transport raises."""
        self.trouble = ""
        try:
            response = await self._answer(request)
        except Refused as refused:
            self.trouble = str(refused)
            raise
        if request.method == "POST" and not response.is_success:
            self.trouble = f"it answers with the status {response.status_code}"
        return response

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        if origin_of(str(request.url)) != self._origin:
            raise Refused("it leads to another server")
        host = request.url.host
        address = await self._address(host, request.url.port or PORTS[request.url.scheme])
        headers = request.headers.copy()
        headers["accept-encoding"] = "identity"
        sent = httpx2.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host},
        )
        response = await self._inner.handle_async_request(sent)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise Refused("its answer is compressed, which was not requested")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Bounded(response.stream)
        return response

    async def _address(self, host: str, port: int) -> str:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(entry[4][0]).partition("%")[0] for entry in found]
        if not self._is_private and not all(is_public(ipaddress.ip_address(address)) for address in addresses):
            raise Refused("it leads to this machine or its private network")
        return addresses[0]

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._inner:
            size += len(part)
            if size > ANSWER_BYTES_MAX:
                raise Refused(f"its answer has more than {ANSWER_BYTES_MAX} bytes")
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()
