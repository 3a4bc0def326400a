"""What is asked of an engine outside of its answers: how it is, what it serves, its numbers."""

from __future__ import annotations

import asyncio

import pytest

from worker.engines.exchange import EngineTransport

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


async def told(answer: bytes) -> bytes:
    """What comes of a server that says so much and closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        return (await EngineTransport().get(f"http://{host}:{port}", "/metrics", 10)).body


async def test_an_answer_that_breaks_off_is_none() -> None:
    with pytest.raises(ConnectionError, match="was cut off"):
        await told(HEAD + b"Content-Length: 100\r\n\r\nfirst")
    with pytest.raises(ConnectionError, match="was cut off"):
        await told(HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")


async def test_an_answer_is_whole_with_its_length_its_last_chunk_or_its_connection() -> None:
    assert await told(HEAD + b"Content-Length: 5\r\n\r\nfirst") == b"first"
    assert await told(HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n0\r\n\r\n") == b"first"
    assert await told(HEAD + b"\r\nfirst") == b"first"
