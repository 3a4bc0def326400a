"""The connection that a worker's requests to an engine share: its end at the worker before an engine that says what a
test says, and its end at a real engine before what no worker sends."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from inference.remote.protocol import PATH as PLAIN_PATH
from inference.remote.transport import (
    ASK,
    CANCEL,
    EVENTS,
    LAST,
    PATH,
    PROTOCOL,
    REFUSED,
    TAKEN,
    Answer,
    Frame,
    Frames,
    ask,
    frame,
    read_refusal,
    refusal,
    step,
)
from tests.worker.engines.conftest import TOKEN
from worker.engines import served_channel
from worker.engines.exchange import KEEPALIVE_PROBES, KEEPALIVE_S, EngineTransport, keep_alive
from worker.engines.served_channel import ServedChannel, SharedReply

SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"
UPGRADE = {"Connection": "Upgrade", "Upgrade": PROTOCOL}
pytestmark = pytest.mark.any_answer("it is about how an answer is told")
GOOD: dict[str, Any] = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 3, "temperature": 0}, "stream": True}


@dataclass
class Log:
    """A `Receiver` that writes down what it hears."""

    heard: list[object] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def begun(self) -> None:
        self._hear("begun")

    def refused(self, answer: Answer) -> None:
        self._hear(answer)

    def received(self, data: bytes) -> None:
        self._hear(data)

    def generated(self, ids: Sequence[int]) -> None:
        self._hear(tuple(ids))

    def lost(self, reason: str, *, reached: bool) -> None:
        self._hear((reason, reached))

    def _hear(self, told: object) -> None:
        self.heard.append(told)
        self.news.set()

    async def has(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.heard) < count:
                self.news.clear()
                await self.news.wait()


class Line:
    """A connection of a worker at the engine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._frames = Frames(10_000)
        self._waiting: list[Frame] = []
        self.head = b""

    async def read_head(self) -> None:
        self.head = await self._reader.readuntil(b"\r\n\r\n")

    async def frame(self) -> Frame:
        while not self._waiting:
            data = await self._reader.read(1000)
            assert data, "the worker has closed the connection"
            self._waiting += self._frames.feed(data)
        return self._waiting.pop(0)

    def say(self, *told: bytes) -> None:
        self.writer.write(b"".join(told))


@dataclass
class Stub:
    url: str
    head: bytes = SWITCH
    lines: list[Line] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Line(reader, writer)
        await line.read_head()
        self.lines.append(line)
        self.news.set()
        if line.head.startswith(b"GET"):
            writer.write(self.head)

    async def line(self, number: int) -> Line:
        async with asyncio.timeout(60):
            while len(self.lines) <= number:
                self.news.clear()
                await self.news.wait()
        return self.lines[number]


@pytest.fixture
async def stub(make_home: Callable[[], Path]) -> AsyncIterator[Stub]:
    path = make_home() / "fake.sock"
    stub = Stub(f"unix:{path}")
    server = await asyncio.start_unix_server(stub.connected, path)
    yield stub
    server.close()
    for line in stub.lines:
        line.writer.close()


@pytest.fixture
async def transport() -> AsyncIterator[EngineTransport]:
    transport = EngineTransport("secret")
    yield transport
    transport.close()
    await asyncio.sleep(0)


async def until(log: Log, *heard: object) -> None:
    await log.has(len(heard))
    assert log.heard == list(heard)


async def reason_of(log: Log) -> str:
    """Why it was lost, before the engine took it."""
    await log.has(1)
    [told] = log.heard
    assert isinstance(told, tuple) and told[1] is False
    return str(told[0])


async def test_requests_share_a_connection_and_a_step_brings_tokens_to_each(
    stub: Stub, transport: EngineTransport
) -> None:
    one, two = Log(), Log()
    transport.post(stub.url, PATH, b"{1}", one, "00-trace")
    transport.post(stub.url, PATH, b"{2}", two)
    line = await stub.line(0)
    assert b"Authorization: Bearer secret\r\n" in line.head and f"GET {PATH} ".encode() in line.head
    assert [await line.frame(), await line.frame()] == [Frame(ASK, 1, b"00-trace\n{1}"), Frame(ASK, 2, b"\n{2}")]
    line.say(frame(TAKEN, 1), frame(TAKEN, 2), frame(EVENTS, 1, b"data: first\n\n"))
    line.say(step((1, 1, 300, 2, 2, 5, 6)), refusal(2, 503, {}, 2.0), frame(LAST, 1, b"data: [DONE]\n\n"))
    await until(one, "begun", b"data: first\n\n", (300,), b"data: [DONE]\n\n", ("the answer ended", True))
    await until(two, "begun", (5, 6), Answer(503, b"{}", 2.0))
    assert len(stub.lines) == 1


async def test_who_closes_a_request_is_told_no_more_and_the_others_go_on(
    stub: Stub, transport: EngineTransport
) -> None:
    one, two = Log(), Log()
    first = transport.post(stub.url, PATH, b"{1}", one)
    transport.post(stub.url, PATH, b"{2}", two)
    line = await stub.line(0)
    assert [(await line.frame()).number for _ in range(2)] == [1, 2]
    first.close()
    assert await line.frame() == Frame(CANCEL, 1, b"")
    line.say(step((1, 1, 300, 2, 1, 301)))
    await until(two, (301,))
    assert one.heard == []


async def test_all_are_lost_with_the_connection_and_the_next_one_has_a_new_one(
    stub: Stub, transport: EngineTransport
) -> None:
    taken, waiting, later = Log(), Log(), Log()
    transport.post(stub.url, PATH, b"{}", taken)
    transport.post(stub.url, PATH, b"{}", waiting)
    line = await stub.line(0)
    line.say(frame(TAKEN, 1))
    await until(taken, "begun")
    line.writer.close()
    await taken.has(2)
    await waiting.has(1)
    assert [heard[-1][1] for heard in (taken.heard, waiting.heard)] == [True, False]  # type: ignore[index]
    transport.post(stub.url, PATH, b"{3}", later)
    assert (await (await stub.line(1)).frame()).content == b"\n{3}"


@pytest.mark.parametrize("said", [b"\xff" * 9, frame(99, 1), frame(REFUSED, 1, b"no"), step((1, 9, 9))])
async def test_an_engine_that_cannot_be_understood_is_lost(stub: Stub, transport: EngineTransport, said: bytes) -> None:
    log = Log()
    transport.post(stub.url, PATH, b"{}", log)
    (await stub.line(0)).say(said)
    assert "sent malformed data" in await reason_of(log)


async def test_where_there_is_nobody_requests_are_lost_before_they_were_heard(
    transport: EngineTransport, tmp_path: Path
) -> None:
    log = Log()
    transport.post(f"unix:{tmp_path}/none", PATH, b"{}", log)
    assert "there is no connection to it" in await reason_of(log)


async def test_where_connections_are_not_shared_each_request_has_its_own(
    stub: Stub, transport: EngineTransport
) -> None:
    stub.head = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    one, two = Log(), Log()
    transport.post(stub.url, PATH, b"{1}", one, "00-trace")
    line = await stub.line(1)
    assert line.head.startswith(f"POST {PLAIN_PATH} ".encode()) and b"Traceparent: 00-trace\r\n" in line.head
    line.say(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
    await until(one, "begun", b"hello", ("the answer ended", True))
    transport.post(stub.url, PATH, b"{2}", two).close()
    transport.post(stub.url, PATH, b"{2}", two)
    assert (await stub.line(2)).head.startswith(b"POST")  # nobody asks again at once


async def test_an_engine_that_does_not_answer_at_all_keeps_nobody_for_long(
    stub: Stub, transport: EngineTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.engines.exchange.TAKEN_S", 0.1)
    stub.head = b""
    one, two = Log(), Log()
    transport.post(stub.url, PATH, b"{}", one)
    transport.post(stub.url, PATH, b"{}", two)
    assert [await reason_of(log) for log in (one, two)] == ["it did not respond in time"] * 2
    stub.head = SWITCH
    transport.post(stub.url, PATH, b"{3}", Log())
    assert (await (await stub.line(1)).frame()).content == b"\n{3}"


# --- a real engine ---


@pytest.fixture
async def line(address: str) -> AsyncIterator[Line]:
    reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
    head = f"GET {PATH} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n"
    writer.write(f"{head}Authorization: Bearer {TOKEN}\r\n\r\n".encode())
    line = Line(reader, writer)
    await line.read_head()
    assert line.head.startswith(b"HTTP/1.1 101 ")
    yield line
    writer.close()


def body(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


async def test_what_is_wrong_with_a_request_is_named_and_the_next_one_is_answered(line: Line) -> None:
    line.say(ask(1, body(token_ids=[5, -1]), ""), ask(2, b"{", ""))
    for number, param in ((1, "token_ids[1]"), (2, None)):
        refused = await line.frame()
        assert (refused.kind, refused.number) == (REFUSED, number)
        answer = read_refusal(refused.content)
        assert (answer.status, json.loads(answer.body)["error"]["param"]) == (400, param)
    line.say(ask(1, body(), ""))
    assert await line.frame() == Frame(TAKEN, 1, b"")
    while (told := await line.frame()).kind != LAST:
        pass
    assert told.content.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("said", [b"\xff" * 9, frame(TAKEN, 1), ask(1, body(), "") * 2])
async def test_what_no_worker_says_ends_the_connection_and_nothing_else(line: Line, address: str, said: bytes) -> None:
    line.say(said)
    with pytest.raises((AssertionError, ConnectionResetError)):
        async with asyncio.timeout(60):
            while True:
                await line.frame()
    assert (await EngineTransport(TOKEN).get(address, "/health", 5)).status == 200


async def test_an_address_for_connections_is_for_nothing_else_and_for_nobody_without_the_token(address: str) -> None:
    connector = aiohttp.UnixConnector(address.removeprefix("unix:"))
    async with aiohttp.ClientSession("http://engine", connector=connector) as http:
        for headers, status in (({"Authorization": f"Bearer {TOKEN}"}, 426), (UPGRADE, 401)):
            async with http.get(PATH, headers=headers) as answer:
                assert answer.status == status


async def test_nothing_is_computed_for_a_worker_that_is_gone(line: Line, address: str) -> None:
    endless = {"max_tokens": 2000, "temperature": 0, "logit_bias": {"0": -100, "2": -100}}
    line.say(ask(1, body(sampling_params=endless), ""))
    assert (await line.frame()).kind == TAKEN
    await until_running(address, 1)  # what is taken is admitted a moment later
    line.writer.close()
    await until_running(address, 0)


class Written(asyncio.Transport):
    """A transport that keeps what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.told: asyncio.Queue[Frame] = asyncio.Queue()

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        for told in Frames(2**20).feed(bytes(data)):
            self.told.put_nowait(told)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0


async def test_a_worker_has_so_many_requests_at_a_time_and_more_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_channel, "REQUESTS_MAX", 2)
    over = asyncio.Event()

    async def answer(reply: SharedReply, body: bytes) -> None:
        reply.taken()
        await over.wait()
        reply.last(b"")

    async with asyncio.timeout(60):
        transport = Written()
        channel = ServedChannel(transport, answer, 2**20)
        channel.data_received(b"".join(ask(number, b"", "") for number in (1, 2, 3)))
        told = [await transport.told.get() for _ in range(3)]
        assert {(each.kind, each.number) for each in told} == {(TAKEN, 1), (TAKEN, 2), (REFUSED, 3)}
        assert [read_refusal(each.content).status for each in told if each.kind == REFUSED] == [503]
        over.set()
        assert {(await transport.told.get()).kind for _ in (1, 2)} == {LAST}
        channel.data_received(ask(4, b"", ""))
        assert [(await transport.told.get()).kind for _ in range(2)] == [TAKEN, LAST]


async def until_running(address: str, requests: int) -> None:
    async with asyncio.timeout(60):
        while True:
            if await running(address) == requests:
                return
            await asyncio.sleep(0.01)


async def running(address: str) -> float:
    """Requests that the engine computes."""
    text = (await EngineTransport(TOKEN).get(address, "/metrics", 5)).body.decode()
    return float(re.findall(r"^firsttoken_engine_running (.+)$", text, re.MULTILINE)[0])


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
