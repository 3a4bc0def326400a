"""A lane of a WebSocket: the requests with one `stream_id`, answered one after the other, and what its client sees of
them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import pack
from typing import Any

import orjson
from aiohttp import web

from worker.runs.event_stream import Stream
from worker.runs.run import Run
from worker.wire.events import data_of
from worker.wire.response_request import SaidMessage

TEXT = 0x81  # a complete text message in one frame (RFC 6455, section 5.2)
LENGTH_16, LENGTH_64 = 126, 127
WAITING_MAX = 4  # messages queued behind the current one; each may be as large as a request body


class SocketStream(Stream):
    """Its frames go directly to the transport, in one piece, so that pings and closes from aiohttp never interleave
    with them. aiohttp also reports whether the client is still connected. Events echo the `stream_id`, if there is one.
    """

    def __init__(self, request: web.Request, stream_id: str | None = None) -> None:
        super().__init__(request)
        self._begins = b"" if stream_id is None else b'{"stream_id":%b,' % orjson.dumps(stream_id)

    async def open(self) -> None:
        """Nothing to send: the handshake has opened the stream."""

    def labelled(self, event: bytes) -> bytes:
        return self._begins + event[1:] if self._begins else event

    def _encoded(self, frames: Sequence[bytes]) -> bytes:
        return b"".join([message(self.labelled(data_of(frame))) for frame in frames])


def message(data: bytes) -> bytes:
    """A frame as servers send it: without a mask."""
    size = len(data)
    if size < LENGTH_16:
        return b"%c%c%b" % (TEXT, size, data)
    if size < 2**16:
        return pack("!BBH", TEXT, LENGTH_16, size) + data
    return pack("!BBQ", TEXT, LENGTH_64, size) + data


@dataclass(frozen=True, slots=True)
class Said:
    """What was accepted: under this id, as the client sent it, and as the input of a request."""

    steer_id: str
    asked: dict[str, Any]
    input: list[SaidMessage]


@dataclass(slots=True, eq=False)
class Lane:
    stream: SocketStream
    messages: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue(WAITING_MAX))
    run: Run | None = None  # whose events are being sent
    said: list[Said] = field(default_factory=list)  # to it
    pending: tuple[str, list[Said]] = ("", [])  # the response before, and what waits for its outputs
    unanswered: int = 0  # messages
    task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost with it."""
        return not self.unanswered and not self.pending[1]
