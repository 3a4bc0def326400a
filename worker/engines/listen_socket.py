"""The listening socket at an address, bound before any slow work."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from worker.engines.address import Address
from worker.errors import StartError
from worker.port import BACKLOG


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
