"""A connection to an engine whose machine is gone without a word."""

from __future__ import annotations

import asyncio
import socket

from worker.engines.dial import KEEPALIVE_PROBES, KEEPALIVE_S, keep_alive


async def test_its_end_is_noticed_in_time_also_where_something_is_under_way_to_it() -> None:
    """Probes are sent while nothing is: a request that nobody acknowledges needs a limit of its own."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        address = server.sockets[0].getsockname()
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, *address)
        keep_alive(transport)
        connection: socket.socket = transport.get_extra_info("socket")
        idle_s = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        unacknowledged_ms = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        transport.abort()
    assert (idle_s, unacknowledged_ms) == (KEEPALIVE_S, 1000 * KEEPALIVE_S * (1 + KEEPALIVE_PROBES))
