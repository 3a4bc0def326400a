"""The TCP port of a worker, alone or shared with others."""

from __future__ import annotations

import errno
import socket

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
