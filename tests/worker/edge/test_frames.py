"""What arrives on a WebSocket reaches its protocol in pieces, and no faster than the client takes the answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from tests.worker.edge.sockets import until
from worker.edge.guard import FRAMES_BYTES_MAX, Connections, Guard

SENT_BYTES = 32 * 2**20  # more than the system holds for two sockets
TURNS = 200  # of the event loop in which nothing comes: then nothing will


class Upgraded(asyncio.Protocol):
    """Answers each piece with as many bytes as a WebSocket would with pongs; `pauses` reading when it has some."""

    def __init__(self, *, pauses: bool = False) -> None:
        self.pieces: list[int] = []
        self._pauses = pauses
        self._lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost.set()

    async def close(self) -> None:
        self.transport.abort()
        await self._lost.wait()

    def data_received(self, data: bytes) -> None:
        self.pieces.append(len(data))
        self.transport.write(data)
        if self._pauses:
            self.transport.pause_reading()


@asynccontextmanager
async def connection(upgraded: Upgraded) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    def guarded() -> Guard:
        guard = Guard(lambda: upgraded, Connections(1, 1), header_s=60)
        guard.on_bytes = lambda _size: None  # from here on it is a WebSocket
        return guard

    server = await asyncio.get_running_loop().create_server(guarded, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2], limit=SENT_BYTES)
        try:
            yield reader, writer
        finally:
            writer.close()
            await upgraded.close()


async def nothing_more(upgraded: Upgraded) -> None:
    seen, still = 0, 0
    while still < TURNS:
        await asyncio.sleep(0)
        still = still + 1 if len(upgraded.pieces) == seen else 0
        seen = len(upgraded.pieces)


async def test_many_frames_come_in_pieces_and_reading_goes_on_when_all_are_passed() -> None:
    upgraded = Upgraded()
    async with connection(upgraded) as (reader, writer):
        writer.write(bytes(64 * 1024))
        assert len(await reader.readexactly(64 * 1024)) == 64 * 1024
        assert max(upgraded.pieces) <= FRAMES_BYTES_MAX
        await until(upgraded.transport.is_reading)
        writer.write(b"more")
        assert await reader.readexactly(4) == b"more"


async def test_a_client_that_takes_no_answers_is_not_read_from() -> None:
    upgraded = Upgraded()
    async with connection(upgraded) as (reader, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(bytes(SENT_BYTES))
        await until(lambda: bool(upgraded.pieces) and not upgraded.transport.is_reading())
        await nothing_more(upgraded)
        buffered = upgraded.transport.get_write_buffer_size()
        assert buffered < SENT_BYTES / 8
        assert sum(upgraded.pieces) < SENT_BYTES
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        await reader.readexactly(SENT_BYTES)
        assert sum(upgraded.pieces) == SENT_BYTES


async def test_reading_that_the_protocol_has_paused_stays_paused() -> None:
    upgraded = Upgraded(pauses=True)
    async with connection(upgraded) as (reader, writer):
        writer.write(b"some")
        await reader.readexactly(4)
        assert not upgraded.transport.is_reading()
