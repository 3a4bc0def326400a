"""Where processes of ours listen and are reached: workers on a TCP port, alone or shared with others, engines on a Unix
socket or a host and a port. The listening socket is bound before any slow work."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from worker.errors import StartError

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
BACKLOG = 512  # connections that the system accepts while the event loop is busy


def bind(host: str, port: int) -> socket.socket:
    """Bind the port before any slow work, so that a port in use is reported at once. Connections wait in the backlog
    until the worker accepts them. Raises StartError."""
    listener = _bound(host, port, shared=False)
    listener.listen(BACKLOG)
    return listener


def reserve(host: str, port: int) -> socket.socket:
    """Bind the port for other processes of this account, which `join` it. No connection arrives here. Raises
    StartError.
    """
    with _bound(host, port, shared=False) as alone:  # with SO_REUSEPORT, a port of another crew would be bound too
        port = alone.getsockname()[1]
    return _bound(host, port, shared=True)


def join(host: str, port: int) -> socket.socket:
    """Take a share of the connections: the system spreads them over all listeners. Raises StartError."""
    listener = _bound(host, port, shared=True)
    listener.listen(BACKLOG)
    return listener


def url_of(host: str, port: int) -> str:
    """The URL to use on this machine."""
    return f"http://{ANY_ADDRESS.get(host, f'[{host}]' if ':' in host else host)}:{port}"


def _bound(host: str, port: int, *, shared: bool) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise StartError(
            f"--host {host} is not an address of this machine: {getattr(error, 'strerror', error)}"
        ) from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise StartError(
                f"port {port} of {host} is already in use: choose another with --port, or 0 for a free one"
            ) from error
        raise StartError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose others with --host and --port"
        ) from error
    return listener


UNIX = "unix:"
UNIX_PATH_BYTES_MAX = 100  # the system's limit is 107
ENGINES_MAX = 64
PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """`path` is that of a Unix socket; without one, there are a host and a port."""

    host: str = ""
    port: int = 0
    path: Path | None = None
    tls: bool = False

    @classmethod
    def listening(cls, text: str) -> Address:
        """Parse unix:PATH or HOST:PORT; a port of 0 picks a free one. Raises ValueError with the accepted forms."""
        if text.startswith(UNIX):
            return cls._unix(text)
        host, _, port = text.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"must be unix:PATH or HOST:PORT, not {text!r}")
        return cls(host.strip("[]"), int(port))

    @classmethod
    def of_engine(cls, text: str) -> Address:
        """Parse unix:PATH or an http(s) URL. Raises ValueError with the accepted forms."""
        if text.startswith(UNIX):
            return cls._unix(text)
        try:
            url = urlsplit(text)
            port = url.port
        except ValueError:
            raise ValueError("must be unix:PATH or http(s)://HOST:PORT") from None
        if url.scheme not in PORTS or not url.hostname or url.path.strip("/") or url.query or url.username:
            raise ValueError("must be unix:PATH or http(s)://HOST:PORT")  # not quoted: it may contain a password
        return cls(url.hostname, port or PORTS[url.scheme], tls=url.scheme == "https")

    @classmethod
    def _unix(cls, text: str) -> Address:
        path = Path(os.path.expanduser(text.removeprefix(UNIX))).absolute()
        if text == UNIX or len(bytes(path)) > UNIX_PATH_BYTES_MAX:
            raise ValueError(f"must be unix: and a path of at most {UNIX_PATH_BYTES_MAX} bytes")
        return cls(path=path)

    @property
    def is_local(self) -> bool:
        """Whether it is reachable from this machine only."""
        if self.path is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.path is None else "engine"

    def __str__(self) -> str:
        if self.path is not None:
            return f"{UNIX}{self.path}"
        return f"{'https' if self.tls else 'http'}://{self.host_header}"


def engines_in(text: str) -> list[str]:
    """The engines of a setting, without duplicates. Raises ValueError."""
    found = list(dict.fromkeys(str(Address.of_engine(part.strip())) for part in text.split(",") if part.strip()))
    if not 1 <= len(found) <= ENGINES_MAX:
        raise ValueError(f"must name 1 to {ENGINES_MAX} engines")
    return found


@contextmanager
def listen_socket(address: Address) -> Iterator[socket.socket]:
    """A Unix socket is removed when the block ends. Raises StartError."""
    try:
        listener = _unix(address.path) if address.path else _tcp(address)
    except OSError as error:
        taken = "is already in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
        raise StartError(f"{address} {taken} (--listen)") from error
    try:
        yield listener
    finally:
        listener.close()
        if address.path:
            with suppress(OSError):
                address.path.unlink()


def _tcp(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    return socket.create_server((address.host, address.port), family=family)


def _unix(path: Path) -> socket.socket:
    """Accessible to this account only. A socket that a killed process left behind is taken over."""
    with socket.socket(socket.AF_UNIX) as other:
        if other.connect_ex(str(path)) == 0:
            raise OSError(errno.EADDRINUSE, "in use")
    if path.is_socket():
        path.unlink()
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener
