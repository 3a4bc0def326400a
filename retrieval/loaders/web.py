"""A document from the web, fetched with the protection against SSRF that a server needs if clients supply URLs.

Names are resolved first, and the connection goes to the very address that was checked, so a name that resolves
differently the second time (DNS rebinding) achieves nothing. Every redirect is checked in the same way.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from threading import Timer
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from retrieval.errors import UnreadableFile
from retrieval.loaders.formats import LOADERS, MEDIA_TYPES, PACKED_BYTES_MAX

REDIRECTS_MAX = 5
SECONDS_MAX = 60.0  # from the first byte sent to the last one read
WAIT_S = 15.0  # for any single response of the server
READ_BYTES = 64 * 1024
URL_CHARS_MAX = 2000
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})

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
    deadline = time.monotonic() + SECONDS_MAX
    for _ in range(REDIRECTS_MAX + 1):
        target = _target(url)
        connection = _connect(target, allow_private)
        with closing(connection), _cut_off(connection, deadline):
            try:
                _secure(connection, target)
                answer = _ask(connection, target)
                if answer.status not in _REDIRECTS:
                    return Fetched(url, _name(target, answer), _body(answer, deadline))
                url = urljoin(url, answer.getheader("location") or "")
            except (OSError, ValueError, http.client.HTTPException) as error:
                if time.monotonic() > deadline:
                    raise _too_slow() from None
                raise UnreadableFile(f"cannot be fetched: {error or type(error).__name__}") from error
    raise UnreadableFile(f"redirects more than {REDIRECTS_MAX} times")


def is_public(address: Address) -> bool:
    """Whether it is reachable from everywhere, so that it gives no access through us. Looks into tunnels too."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast


def _target(url: str) -> SplitResult:
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
    return target


def _connect(target: SplitResult, allow_private: bool) -> http.client.HTTPConnection:
    host = target.hostname or ""
    port = target.port or (443 if target.scheme == "https" else 80)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UnreadableFile(f"cannot be fetched: the name {host} is not known") from error
    addresses = [str(entry[4][0]).partition("%")[0] for entry in found]
    if not allow_private and not all(is_public(ipaddress.ip_address(address)) for address in addresses):
        raise UnreadableFile("leads to this machine or its private network; --allow-private permits that")
    connection = http.client.HTTPConnection(host, port, timeout=WAIT_S)
    try:
        connection.sock = socket.create_connection((addresses[0], port), timeout=WAIT_S)
    except OSError as error:
        raise UnreadableFile(f"cannot be fetched: {error}") from error
    return connection


def _secure(connection: http.client.HTTPConnection, target: SplitResult) -> None:
    if target.scheme == "https":
        context = ssl.create_default_context()
        connection.sock = context.wrap_socket(connection.sock, server_hostname=target.hostname)


@contextmanager
def _cut_off(connection: http.client.HTTPConnection, deadline: float) -> Iterator[None]:
    """Cut the connection at the deadline: a server that sends a byte every few seconds never reaches WAIT_S."""

    def cut() -> None:
        with suppress(OSError):
            same.shutdown(socket.SHUT_RDWR)

    with connection.sock.dup() as same:
        timer = Timer(deadline - time.monotonic(), cut)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


def _ask(connection: http.client.HTTPConnection, target: SplitResult) -> http.client.HTTPResponse:
    path = (target.path or "/") + (f"?{target.query}" if target.query else "")
    headers = {"Accept-Encoding": "identity", "User-Agent": "firsttoken", "Connection": "close"}
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    if answer.status != 200 and answer.status not in _REDIRECTS:
        raise UnreadableFile(f"cannot be fetched: the server answers {answer.status} {answer.reason}".rstrip())
    if answer.getheader("content-encoding", "identity") != "identity":
        raise UnreadableFile("comes compressed, which was not requested")
    return answer


def _body(answer: http.client.HTTPResponse, deadline: float) -> bytes:
    """Reads until one piece beyond the largest limit, which is enough to see that the file is too large."""
    data = bytearray()
    while part := answer.read1(READ_BYTES):
        data += part
        if len(data) > PACKED_BYTES_MAX:
            break
    if time.monotonic() > deadline:
        raise _too_slow()
    return bytes(data)


def _too_slow() -> UnreadableFile:
    return UnreadableFile(f"takes longer than {SECONDS_MAX:.0f} s to fetch")


def _name(target: SplitResult, answer: http.client.HTTPResponse) -> str:
    path = PurePosixPath(unquote(target.path))
    media_type = answer.getheader("content-type", "").partition(";")[0].strip().lower()
    if media_type in MEDIA_TYPES:
        return f"{path.stem or target.hostname}{MEDIA_TYPES[media_type]}"
    if path.suffix.lower() in LOADERS:
        return path.name
    return f"{path.name or target.hostname}.txt" if media_type.startswith("text/") else path.name
