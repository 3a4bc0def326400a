"""Raw connections to a worker, for what no client library sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import orjson

from tests.worker.harness import Client

WAIT_S = 60.0


class Raw:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def rest(self) -> bytes:
        """What comes until the other side closes."""
        received = b""
        async with asyncio.timeout(WAIT_S):
            with suppress(ConnectionError):
                while piece := await self.reader.read(65536):
                    received += piece
        return received

    async def answer(self) -> tuple[int, dict[str, object]]:
        """Status and JSON of the next answer."""
        async with asyncio.timeout(WAIT_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            body = await self.reader.readexactly(int(length.partition(b":")[2]))
        return int(head.split(b" ", 2)[1]), orjson.loads(body)


@asynccontextmanager
async def raw(client: Client, source: str = "127.0.0.1") -> AsyncIterator[Raw]:
    """A connection from this address of the loopback network."""
    reader, writer = await asyncio.open_connection(client.host, client.port, local_addr=(source, 0))
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def head(method: str, path: str, client: Client | None = None, **headers: str) -> bytes:
    """A request up to its body, signed in as the client."""
    lines = {"Host": "x", **headers}
    if client is not None:
        lines["Authorization"] = client.session.headers["Authorization"]
    told = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{told}\r\n".encode()


async def until(fact: Callable[[], bool]) -> None:
    """Return when it is one."""
    async with asyncio.timeout(WAIT_S):
        while True:
            if fact():
                return
            await asyncio.sleep(0.01)
