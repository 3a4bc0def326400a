"""Connects to an engine, and detects the end of the connection even if the machine vanishes."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from worker.engines.address import Address

# If the machine vanishes without closing the connection, that is detected within 20 s: by keep-alive probes, or, while
# data is in flight and no probes are sent, by the time without an acknowledgement.
KEEPALIVE_S, KEEPALIVE_PROBES = 5, 3
UNACKNOWLEDGED_MS = 1000 * KEEPALIVE_S * (KEEPALIVE_PROBES + 1)


async def dial(address: Address, make: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None) -> None:
    """Raises OSError."""
    loop = asyncio.get_running_loop()
    if address.path is not None:
        await loop.create_unix_connection(make, str(address.path))
    else:
        await loop.create_connection(make, address.host, address.port, ssl=tls if address.tls else None)


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
