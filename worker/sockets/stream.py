"""Events on a WebSocket, each in a message of its own."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack

from worker.runs.event_stream import Stream
from worker.wire import sse

TEXT = 0x81  # a complete text message in one frame (RFC 6455, section 5.2)
LENGTH_16, LENGTH_64 = 126, 127


class SocketStream(Stream):
    """Its frames go directly to the transport, in one piece, so that pings and closes from aiohttp never interleave
    with them. aiohttp also reports whether the client is still connected.
    """

    async def open(self) -> None:
        """Nothing to send: the handshake has opened the stream."""

    def _encoded(self, frames: Sequence[bytes]) -> bytes:
        return b"".join([message(sse.data_of(frame)) for frame in frames])


def message(data: bytes) -> bytes:
    """A frame as servers send it: without a mask."""
    size = len(data)
    if size < LENGTH_16:
        return b"%c%c%b" % (TEXT, size, data)
    if size < 2**16:
        return pack("!BBH", TEXT, LENGTH_16, size) + data
    return pack("!BBQ", TEXT, LENGTH_64, size) + data
