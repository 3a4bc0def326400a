"""Broken requests as bytes over sockets: no 5xx, nothing in the log, and the worker answers afterwards."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from migrations.pool import Database
from tests.worker.answering import answering, get
from tests.worker.edge.sockets import head, raw
from tests.worker.harness import Client
from worker.config import Config
from worker.edge import body, listener

SEED = 20261122
ROUNDS = 4
AT_ONCE = 256
SILENT_S = 0.5  # longer than any part of a request may take here
JSON = b'{"input": "hello", "metadata": {"a": "b"}, "stream": true}'
FORM = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nhello\r\n--b--\r\n'
PATHS = ("/v1/responses", "/v1/chat/completions", "/v1/conversations", "/v1/files", "/", "/?token=x", "/readyz", "/%ff")
ODD = (b"\0", b"\r\n", b"\n", b"\xff", b"\xed\xa0\x80", b":", b" ", b"%00", b"0x", b"-1", b"\r\n\r\n", b"A" * 9000)
HEADERS = (
    b"Content-Encoding: gzip", b"Content-Encoding: br", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip",
    b"Expect: 100-continue", b"Expect: x", b"Connection: close", b"Upgrade: websocket", b"Connection: Upgrade",
    b"Content-Type: multipart/form-data; boundary=b", b"Content-Type: text/plain; charset=nonsense",
    b"Idempotency-Key: 1", b"Cookie: a=b; \xff", b"If-None-Match: \xff", b"Range: bytes=0-", b"Host: \xff",
    b"Sec-WebSocket-Key: x", b"Sec-WebSocket-Version: 13", b"X-Firsttoken-On-Disconnect: 5",
)  # fmt: skip


def request(client: Client, chance: random.Random) -> bytes:
    """A good one, spoilt here and there."""
    path, method = chance.choice(PATHS), chance.choice(("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "X"))
    body = chance.choice((JSON, FORM, b"", b"5\r\nhello\r\n0\r\n\r\n"))
    known = client if chance.random() < 0.8 else None
    start = head(method, path, known, Content_Length=str(len(body)))
    lines = start.split(b"\r\n")[:-2]
    lines += chance.sample(HEADERS, chance.randrange(4))
    data = b"\r\n".join([*lines, b"", b""]) + body
    for spoil in chance.choices((cut, insert, flip, double), k=chance.randrange(3)):
        data = spoil(data, chance)
    return data


def cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def insert(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice(ODD) + data[at:]


def flip(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]


def double(data: bytes, _chance: random.Random) -> bytes:
    return data + data


async def attempt(client: Client, data: bytes, chance: random.Random) -> bytes:
    """What the worker says to it. One client in five leaves without listening."""
    async with raw(client) as connection:
        await connection.send(data)
        if chance.random() < 0.2:
            connection.writer.transport.abort()
            return b""
        answer = b""
        with suppress(TimeoutError, ConnectionError):
            while piece := await asyncio.wait_for(connection.reader.read(65536), SILENT_S):
                answer += piece
        return answer


async def test_broken_requests(
    database: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HEADER_S", 0.2)
    monkeypatch.setattr(body, "STALL_S", 0.2)
    chance = random.Random(SEED)
    config = Config(body_bytes=20_000)
    async with answering(database, "Hello.", config=config) as client:
        for _ in range(ROUNDS):
            spoilt = [request(client, chance) for _ in range(AT_ONCE)]
            answers = await asyncio.gather(*(attempt(client, data, chance) for data in spoilt))
            for data, answer in zip(spoilt, answers, strict=True):
                assert b"HTTP/1.1 5" not in answer and b"HTTP/1.0 5" not in answer, (data, answer)
            assert [record.getMessage() for record in caplog.records] == []
        await get(client, "/v1/models")
        await get(client, "/readyz")
    assert [record.getMessage() for record in caplog.records] == []
