"""A document from the web, fetched with the protection against SSRF that a server needs if clients supply URLs.

The address of each connection is checked where its socket is made, so a name that resolves differently the second time
(DNS rebinding) achieves nothing, and neither does a redirect.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, TCPConnector, TooManyRedirects
from aiohttp.connector import AddrInfoType

from retrieval.errors import UnreadableFile
from retrieval.loaders.formats import LOADERS, MEDIA_TYPES, PACKED_BYTES_MAX

REDIRECTS_MAX = 5
SECONDS_MAX = 60.0  # from the first byte sent to the last one read
WAIT_S = 15.0  # for a connection, and for each piece of the answer
URL_CHARS_MAX = 2000
HEADERS = {"Accept-Encoding": "identity", "User-Agent": "firsttoken"}
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Fetched:
    """`name` has the suffix of its kind of file."""

    url: str  # after redirects
    name: str
    data: bytes


def is_url(text: str) -> bool:
    return text.lower().startswith(("http://", "https://"))


def fetch(url: str, *, allow_private: bool = False) -> Fetched:
    """Blocks. Raises UnreadableFile, also for addresses of this machine and its networks unless they are allowed."""
    return asyncio.run(_fetched(_checked(url), allow_private))


async def _fetched(url: str, allow_private: bool) -> Fetched:
    connector = TCPConnector(socket_factory=None if allow_private else _public_socket, happy_eyeballs_delay=None)
    timeout = ClientTimeout(total=SECONDS_MAX, sock_connect=WAIT_S, sock_read=WAIT_S)
    try:
        async with (
            ClientSession(connector=connector, timeout=timeout, headers=HEADERS, auto_decompress=False) as session,
            session.get(url, max_redirects=REDIRECTS_MAX) as answer,
        ):
            if answer.status != 200:
                raise UnreadableFile(f"cannot be fetched: the server answers {answer.status} {answer.reason}".rstrip())
            if answer.headers.get("content-encoding", "identity") != "identity":
                raise UnreadableFile("comes compressed, which was not requested")
            data = bytearray()
            async for part in answer.content.iter_any():  # one piece beyond the limit shows that the file is too large
                data += part
                if len(data) > PACKED_BYTES_MAX:
                    break
            return Fetched(str(answer.url), _name(answer), bytes(data))
    except TimeoutError:
        raise UnreadableFile(f"takes longer than {SECONDS_MAX:g} s to fetch, or {WAIT_S:g} s to answer") from None
    except TooManyRedirects:
        raise UnreadableFile(f"redirects more than {REDIRECTS_MAX} times") from None
    except (ClientError, OSError, ValueError) as error:
        raise UnreadableFile(f"cannot be fetched: {error or type(error).__name__}") from error


def _public_socket(info: AddrInfoType) -> socket.socket:
    """For a connection to this very address. Raises UnreadableFile."""
    family, kind, protocol, _, address = info
    if not is_public(ipaddress.ip_address(str(address[0]).partition("%")[0])):
        raise UnreadableFile("leads to this machine or its private network; --allow-private permits that")
    return socket.socket(family, kind, protocol)


def is_public(address: Address) -> bool:
    """Whether it is reachable from everywhere, so that it gives no access through us. Looks into tunnels too."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast


def _checked(url: str) -> str:
    try:
        target = urlsplit(url)
        port = target.port
    except ValueError as error:
        raise UnreadableFile(f"is not a web address: {error}") from error
    plain = url.isascii() and url.isprintable() and " " not in url and len(url) <= URL_CHARS_MAX
    if target.scheme not in ("http", "https") or not target.hostname or not plain or port == 0:
        raise UnreadableFile("is not a web address that begins with http:// or https://")
    if target.username or target.password:
        raise UnreadableFile("contains a password; fetch it yourself and ingest the file")
    return url


def _name(answer: ClientResponse) -> str:
    path, media_type = PurePosixPath(answer.url.path), answer.content_type
    if media_type in MEDIA_TYPES:
        return f"{path.stem or answer.url.host}{MEDIA_TYPES[media_type]}"
    if path.suffix.lower() in LOADERS:
        return path.name
    return f"{path.name or answer.url.host}.txt" if media_type.startswith("text/") else path.name
