"""Connections that send little, late, too much or nothing: they end in a stated time and keep nobody else out."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
from aiohttp import web

from migrations.pool import Database
from tests.worker.edge.sockets import Raw, head, raw
from tests.worker.harness import Client, EdgeServer, declared, make_services, serving
from tests.worker.loop_blocks import blocks
from worker.config import Config
from worker.edge import guard, listener
from worker.http.request import EVERYBODY

HEADER_S = 0.2


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HEADER_S", HEADER_S)


class Gate:
    """A handler that answers when it is opened."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()

    async def handle(self, _request: web.Request) -> web.Response:
        self.entered.set()
        await self.opened.wait()
        return web.json_response({})


@asynccontextmanager
async def worker(database: Database, config: Config, gate: Gate | None = None) -> AsyncIterator[Client]:
    """`/static/gate` needs no credentials."""
    handler = (gate or Gate()).handle
    async with serving(make_services(database, config), *declared(EVERYBODY, web.get("/gate", handler))) as client:
        yield client


def is_open(connection: Raw) -> bool:
    return not connection.reader.at_eof()


async def status(connection: Raw) -> int:
    await connection.send(head("GET", "/healthz"))
    return (await connection.answer())[0]


@pytest.mark.usefixtures("soon")
async def test_a_client_that_sends_nothing_is_closed(database: Database) -> None:
    async with worker(database, Config()) as client, raw(client) as silent:
        assert await silent.rest() == b""


@pytest.mark.parametrize("half", [b"G", b"GET / HTTP/1.1\r\nHost: x\r\n", b"\r\n\r\nGET /"])
@pytest.mark.usefixtures("soon")
async def test_half_a_head_is_answered_408(database: Database, half: bytes) -> None:
    async with worker(database, Config()) as client, raw(client) as slow:
        await slow.send(half)
        answer, content = await slow.answer()
        assert (answer, content["error"]["code"]) == (408, "request_timeout")  # type: ignore[index]
        assert await slow.rest() == b""


@pytest.mark.usefixtures("soon")
async def test_a_head_that_comes_in_drops_is_late_all_the_same(database: Database) -> None:
    async with worker(database, Config()) as client, raw(client) as slow:
        await slow.send(b"GET / HTTP/1.1\r\n")
        async with asyncio.timeout(60):
            with pytest.raises(ConnectionError):
                while True:
                    await slow.send(b"x: y\r\n")
                    await asyncio.sleep(0.01)


@pytest.mark.usefixtures("soon")
async def test_the_next_request_may_come_later_than_a_head_may_take(database: Database) -> None:
    async with worker(database, Config()) as client, raw(client) as kept:
        assert await status(kept) == 200
        await asyncio.sleep(2 * HEADER_S)
        assert await status(kept) == 200
        await kept.send(b"GET /")
        assert (await kept.answer())[0] == 408


async def test_a_head_beyond_the_limit_is_refused_before_it_is_whole(database: Database) -> None:
    async with worker(database, Config()) as client, raw(client) as large:
        field = b"x: " + b"y" * 8000 + b"\r\n"
        await large.send(b"GET / HTTP/1.1\r\n" + field * (guard.HEAD_BYTES_MAX // len(field) + 1))
        assert (await large.answer())[0] == 431


@pytest.mark.parametrize(
    "bad",
    [
        b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nx: " + b"y" * 9000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"x: y\r\n" * 100 + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["line", "field", "fields", "tls"],
)
async def test_what_is_no_request_is_refused_and_logs_nothing(
    database: Database, bad: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with worker(database, Config()) as client, raw(client) as broken:
        await broken.send(bad)
        answer, content = await broken.answer()
        assert (answer, content["error"]["code"]) == (400, "invalid_http")  # type: ignore[index]
        assert await broken.rest() == b""
    assert caplog.records == []


async def test_connections_that_wait_make_room_for_newcomers(database: Database) -> None:
    async with worker(database, Config(connections=8, address_connections=8)) as client, AsyncExitStack() as stack:
        half_open = [await stack.enter_async_context(raw(client)) for _ in range(30)]
        for connection in half_open[-8:]:
            await connection.send(b"GET / HTTP/1.1\r\n")
        async with raw(client) as whole:
            assert await status(whole) == 200
        assert isinstance(client.server, EdgeServer)
        assert len(client.server.listener.connections) <= 8
        assert await half_open[0].rest() == b""


async def test_where_all_are_served_a_newcomer_is_told_to_come_back(database: Database) -> None:
    gate = Gate()
    async with worker(database, Config(connections=1), gate) as client, raw(client) as served:
        await served.send(head("GET", "/gate"))
        await gate.entered.wait()
        async with raw(client) as newcomer:
            answer = await newcomer.rest()
            assert answer.startswith(b"HTTP/1.1 503 ") and b"Retry-After: 1\r\n" in answer
        gate.opened.set()
        assert (await served.answer())[0] == 200


async def test_one_address_does_not_take_all_the_places(database: Database) -> None:
    gate = Gate()
    config = Config(connections=8, address_connections=1)
    async with worker(database, config, gate) as client, raw(client) as served:
        await served.send(head("GET", "/gate"))
        await gate.entered.wait()
        async with raw(client) as second, raw(client, "127.0.0.2") as elsewhere:
            assert (await second.rest()).startswith(b"HTTP/1.1 503 ")
            assert await status(elsewhere) == 200
        gate.opened.set()


async def test_a_client_that_takes_nothing_of_its_answer_is_cut_off(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "STALL_S", 0.1)
    gone = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(bytes(1024 * 1024))
        finally:
            gone.set()

    async with (
        serving(make_services(database), *declared(EVERYBODY, web.get("/endless", endless))) as client,
        raw(client) as deaf,
    ):
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]  # of streams over sockets
        await deaf.send(head("GET", "/endless"))
        async with asyncio.timeout(60):
            await gone.wait()


CHUNKED = {"Transfer_Encoding": "chunked", "Content_Type": "application/json", "Connection": "close"}


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\nGET /gate HTTP/1.1\r\nHost: x\r\n\r\n"),
        (b"Content-Length: 5\r\nContent-Length: 6\r\n", b"hello!"),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
        (b"Transfer-Encoding: chunked, identity\r\n", b"0\r\n\r\n"),
        (b"Content-Length : 5\r\n", b"hello"),
        (b"Content-Length: +5\r\n", b"hello"),
        (b"X: y\r\n Transfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\n", b"0x5\r\nhello\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\n", b"5\nhello\n0\n\n"),
    ],
    ids=["both", "two lengths", "twice", "not last", "space", "sign", "folded", "hex", "line ends"],
)
async def test_a_body_that_two_servers_would_read_differently_is_refused(
    database: Database, lines: bytes, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with worker(database, Config()) as client, raw(client) as smuggling:
        await smuggling.send(b"POST /v1/responses HTTP/1.1\r\nHost: x\r\n" + lines + b"\r\n" + body)
        answers = await smuggling.rest()
        assert await status_of_another(client) == 200
    assert answers.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 ", b"HTTP/1.1 401 ")) and answers.count(b"HTTP/1.") == 1
    assert caplog.records == []


@pytest.mark.parametrize(
    "body",
    [b"5;" + b"x" * 2**20 + b"\r\nhello\r\n0\r\n\r\n", b"5;a=b\r\nhello\r\n0\r\n" + b"x: y\r\n" * 200_000 + b"\r\n"],
    ids=["extension", "trailers"],
)
async def test_what_comes_with_a_chunked_body_is_bounded(
    database: Database, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with worker(database, Config()) as client, raw(client) as odd:
        async with blocks() as held:
            with suppress(ConnectionError):
                await odd.send(head("POST", "/v1/responses", None, **CHUNKED) + body)
            answers = await odd.rest()
        assert await status_of_another(client) == 200
    assert not re.search(rb"HTTP/1\.[01] (2|5)", answers)
    assert held.longest_ms < 150
    assert caplog.records == []


async def status_of_another(client: Client) -> int:
    async with raw(client) as other:
        return await status(other)
