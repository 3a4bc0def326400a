"""What stands between a URL in a request and the network."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import httpx2
import pytest

from agents.mcp_server import ANSWER_BYTES_MAX, GuardedTransport, Refused
from agents.origin import origin_of, origins_of

ORIGIN = "https://tools.example"
PUBLIC, PRIVATE = "93.184.215.14", "10.0.0.7"


class Network(httpx2.AsyncBaseTransport):
    """Takes requests in place of servers, and resolves every name to `addresses`."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *addresses: str, content: bytes = b"{}", **headers: str
    ) -> None:
        self.sent: list[httpx2.Request] = []
        self._content, self._headers = content, headers
        monkeypatch.setattr(httpx2, "AsyncHTTPTransport", lambda **_: self)

        async def resolved(host: str, port: int, **_: Any) -> list[Any]:
            return [(0, 0, 0, "", (address, port)) for address in addresses]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.sent.append(request)
        return httpx2.Response(200, headers=self._headers, stream=httpx2.ByteStream(self._content))


async def ask(url: str, *, is_private: bool = False) -> httpx2.Response:
    transport = GuardedTransport(ORIGIN, is_private=is_private)
    async with httpx2.AsyncClient(transport=transport) as client:
        return await client.post(url)


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://Tools.Example/mcp?key=1", ORIGIN),
        ("https://tools.example:443", ORIGIN),
        ("http://tools.example:443/", "http://tools.example:443"),
        ("http://[::1]:9000/mcp", "http://[::1]:9000"),
    ],
)
def test_an_origin_has_one_spelling(url: str, origin: str) -> None:
    assert origin_of(url) == origin
    assert origins_of(f"{origin} , https://other.example") == {origin, "https://other.example"}


@pytest.mark.parametrize(
    "url",
    [
        *("tools.example", "ftp://tools.example", "https://", "https://tools.example:0", "https://tools.example:x"),
        *("https://tools.example@evil.example", "https://a:b@tools.example", "https://tools.example\\@evil.example"),
        *("https://tools.example#evil", "https://tools.exämple", "https://tools .example", "https://tools.example\n"),
    ],
)
def test_what_is_no_plain_address_of_a_server_has_none(url: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        origin_of(url)


def test_a_setting_takes_origins_only() -> None:
    for text in ("https://tools.example/mcp", "https://Tools.example", "*", "tools.example"):
        with pytest.raises(ValueError, match=r"\w"):
            origins_of(text)


async def test_a_connection_goes_to_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(monkeypatch, PUBLIC)
    assert (await ask(f"{ORIGIN}/mcp")).status_code == 200
    (sent,) = network.sent
    assert (sent.url.host, sent.headers["host"], sent.extensions["sni_hostname"]) == (
        *(PUBLIC, "tools.example", "tools.example"),
    )
    assert sent.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("addresses", [(PRIVATE,), (PUBLIC, PRIVATE), ("::ffff:10.0.0.7",), ("127.0.0.1",)])
async def test_a_name_with_a_private_address_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...]
) -> None:
    network = Network(monkeypatch, *addresses)
    with pytest.raises(Refused, match="private network"):
        await ask(f"{ORIGIN}/mcp")
    assert network.sent == []
    await ask(f"{ORIGIN}/mcp", is_private=True)
    assert network.sent[0].url.host == addresses[0].strip("[]")


def test_whom_to_trust_is_read_once_for_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    GuardedTransport(ORIGIN, is_private=False)
    monkeypatch.setattr("httpcore2.default_ssl_context", None)
    GuardedTransport("https://other.example", is_private=False)


async def test_no_other_origin_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(monkeypatch, PUBLIC)
    for url in ("http://tools.example/mcp", "https://tools.example:8443/mcp", "https://other.example/mcp"):
        with pytest.raises(Refused, match="another server"):
            await ask(url)
    assert network.sent == []


async def test_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    Network(monkeypatch, PUBLIC, content=b"x" * ANSWER_BYTES_MAX)
    await ask(f"{ORIGIN}/mcp")
    Network(monkeypatch, PUBLIC, content=b"x" * (ANSWER_BYTES_MAX + 1))
    with pytest.raises(Refused, match="bytes"):
        await ask(f"{ORIGIN}/mcp")
    packed = gzip.compress(b"x" * 10)
    Network(monkeypatch, PUBLIC, content=packed, **{"content-encoding": "gzip"})
    with pytest.raises(Refused, match="compressed"):
        await ask(f"{ORIGIN}/mcp")
