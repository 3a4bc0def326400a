"""Clients that read slowly, late or not at all: what waits for them is bounded, nothing of it is lost, and a turn does
not run ahead of a reader who cannot follow."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import pytest

from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, StallingModel, answering
from tests.worker.harness import Client
from worker.routes.sockets.lane import message
from worker.runs import choice
from worker.runs import event_stream as stream
from worker.runs.event_stream import HEARTBEAT, ROOM_BYTES, Stream

RECEIVE_BYTES, SEND_BYTES = 4096, 16_384  # the kernel's part is kept small on both sides, so that waiting begins soon
PIECE_CHARS = 2000
TEXT = "".join(f"{number:09d} " for number in range(60_000))  # far more than all buffers on its way hold
TOKENS_MAX = 4000
CHAT = {"messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": TOKENS_MAX}
RESPONSE = {"input": "x", "stream": True, "max_output_tokens": TOKENS_MAX}


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the kernel on the worker's side."""
    create_server = socket.create_server

    def bound(*arguments: Any, **options: Any) -> socket.socket:
        listening = create_server(*arguments, **options)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)  # its connections inherit that
        return listening

    monkeypatch.setattr(socket, "create_server", bound)


@dataclass
class Reader:
    """A connection whose client reads when it is told to."""

    client: Client
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def stream(self) -> Stream:
        """The worker's side of it."""
        app = self.client.server.app  # type: ignore[attr-defined]  # a test server has one
        [stream] = app[HEARTBEAT].streams
        assert isinstance(stream, Stream)
        return stream

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def body(self, version: str = "1.1") -> str:
        """All of it: to its last chunk, or to the end of the connection."""
        data = bytearray()
        while not (version == "1.1" and data.endswith(b"\r\n0\r\n\r\n")):
            piece = await self.reader.read(2**16)
            if not piece:
                break
            data += piece
        return (unchunked(bytes(data)) if version == "1.1" else bytes(data)).decode()


@asynccontextmanager
async def asking(client: Client, path: str, body: Any, version: str = "1.1", head: str = "") -> AsyncIterator[Reader]:
    """A request on a socket of its own, on which nothing was read yet."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    connection.connect((client.host, client.port))
    connection.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=connection)
    content = json.dumps(body).encode() if body is not None else b""
    lines = [
        f"{'POST' if content else 'GET'} {path} HTTP/{version}",
        "Host: localhost",
        f"Authorization: {client.session.headers['Authorization']}",
        *([f"Content-Length: {len(content)}"] if content else []),
        head,
    ]
    writer.write("\r\n".join(filter(None, lines)).encode() + b"\r\n\r\n" + content)
    try:
        yield Reader(client, reader, writer)
    finally:
        writer.transport.abort()


def talkative(text: str = TEXT) -> StallingModel:
    model = StallingModel([text], name=MODEL)
    model.piece_chars = PIECE_CHARS
    return model


async def said(model: StallingModel) -> None:
    """Return when the model has said all of its text."""
    await model.started.wait()
    pieces = -(-len(model.replies[0]) // PIECE_CHARS)
    await until(lambda: len(model.running[0].ids) == pieces)


async def until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110 - nothing tells of it; the test's own time limit ends this
        await asyncio.sleep(0)


def texts(body: str, path: str) -> list[str]:
    """The pieces of the answer's text, in order."""
    found = []
    for line in body.splitlines():
        if line.startswith("data: {"):
            event = json.loads(line.removeprefix("data: "))
            if path.endswith("completions"):
                found += [each["delta"]["content"] for each in event["choices"] if each["delta"].get("content")]
            elif event["type"] == "response.output_text.delta":
                found.append(event["delta"])
    return found


def check_text(told: str, expected: str) -> None:
    same = told == expected.rstrip()  # pytest would work for minutes on the difference of two such texts
    assert same, f"{len(told)} characters, not {len(expected.rstrip())}"


def unchunked(data: bytes) -> bytes:
    body, at = bytearray(), 0
    while at < len(data):
        line = data.index(b"\r\n", at)
        size = int(data[at:line], 16)
        body += data[line + 2 : line + 2 + size]
        at = line + 2 + size + 2
    return bytes(body)


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/responses", RESPONSE)])
async def test_what_waits_for_a_client_is_bounded_and_reaches_it_in_the_end(
    database: Database, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], version: str
) -> None:
    monkeypatch.setattr(choice, "WAITING_BYTES_MAX", 2 * len(TEXT))
    model = talkative()
    async with answering(database, model=model) as client, asking(client, path, body, version) as slow:
        await said(model)
        await until(lambda: not slow.stream.has_room)
        assert slow.stream.buffered < ROOM_BYTES + 2 * stream.BATCH_FRAMES * PIECE_CHARS
        model.running[0].released.set()
        head = await slow.head()
        told = await slow.body(version)
        assert (b"chunked" in head) == (version == "1.1")
        check_text("".join(texts(told, path)), TEXT)
        assert told.endswith("data: [DONE]\n\n")


async def test_pieces_that_wait_for_a_client_together_come_as_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "WAITING_BYTES_MAX", 2 * len(TEXT))
    model = talkative()
    async with answering(database, model=model) as client, asking(client, "/v1/chat/completions", CHAT) as slow:
        await said(model)
        model.running[0].released.set()
        await slow.head()
        body = await slow.body()
    told = texts(body, "/v1/chat/completions")
    check_text("".join(told), TEXT)
    assert len(told) < 0.95 * len(model.running[0].ids)


async def test_a_completion_of_which_too_much_waits_is_cut(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "WAITING_BYTES_MAX", 10 * PIECE_CHARS)
    model = talkative()
    async with answering(database, model=model) as client, asking(client, "/v1/chat/completions", CHAT):
        await model.started.wait()
        await model.running[0].stopped.wait()


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/responses", RESPONSE)])
async def test_a_client_that_takes_nothing_is_cut(
    database: Database, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], version: str
) -> None:
    monkeypatch.setattr(stream, "STALL_S", 0.1)
    monkeypatch.setattr(choice, "WAITING_BYTES_MAX", 10 * len(TEXT))
    model = talkative()
    async with answering(database, model=model) as client, asking(client, path, body, version) as stuck:
        await stuck.head()  # the last thing that is read
        await model.running[0].stopped.wait()


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_an_idle_stream_shows_that_it_lives(
    database: Database, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(stream, "BEATS_BETWEEN", 1)
    model = StallingModel(["Half an answer, "], name=MODEL)
    async with answering(database, model=model) as client, asking(client, "/v1/responses", RESPONSE, version) as idle:
        await idle.reader.readuntil(b"er,")
        for _ in range(2):
            await idle.reader.readuntil(b": ping\n\n")
        model.running[0].released.set()
        await idle.reader.readuntil(b"data: [DONE]\n\n")


@dataclass(eq=False)  # a heartbeat keeps its streams in sets
class CountedStream:
    is_behind: bool
    beats: int = 0

    def beat(self, now: int) -> None:
        self.beats += 1


async def test_a_client_that_keeps_up_is_looked_at_less_often_than_one_that_is_behind() -> None:
    pulse, streams = stream.Heartbeat(), [CountedStream(False), CountedStream(True)]
    for each in streams:
        pulse.add(cast(Stream, each))
    for _ in range(2 * stream.BEATS_BETWEEN):
        pulse._beat()
    for each in streams:
        pulse.remove(cast(Stream, each))
    assert [each.beats for each in streams] == [2, 2 * stream.BEATS_BETWEEN]


@asynccontextmanager
async def on_socket(client: Client) -> AsyncIterator[Reader]:
    head = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    head += "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
    async with asking(client, "/v1/responses", None, head=head) as connection:
        await connection.head()
        data = json.dumps({"type": "response.create", "input": "x", "max_output_tokens": TOKENS_MAX}).encode()
        connection.writer.write(bytes([0x81, 0x80 | len(data), 0, 0, 0, 0]) + data)  # masked with zeros
        yield connection


async def test_what_waits_on_a_websocket_is_bounded_and_reaches_the_client_in_the_end(database: Database) -> None:
    model = talkative()
    async with answering(database, model=model) as client, on_socket(client) as slow:
        await said(model)
        await until(lambda: not slow.stream.has_room)
        assert slow.stream.buffered < ROOM_BYTES + 2 * stream.BATCH_FRAMES * PIECE_CHARS
        model.running[0].released.set()
        told, kind = "", ""
        while kind != "response.completed":
            event = json.loads(await _message(slow.reader))
            kind = event["type"]
            told += event["delta"] if kind == "response.output_text.delta" else ""
    check_text(told, TEXT)


async def _message(reader: asyncio.StreamReader) -> bytes:
    while True:
        first, size = await reader.readexactly(2)
        if size == 126:
            size = int.from_bytes(await reader.readexactly(2), "big")
        elif size == 127:
            size = int.from_bytes(await reader.readexactly(8), "big")
        data = await reader.readexactly(size)
        if first == 0x81:
            return data


async def test_a_client_that_takes_nothing_from_a_websocket_is_cut(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "STALL_S", 0.1)
    model = talkative()
    async with answering(database, model=model) as client, on_socket(client):
        await model.started.wait()
        await model.running[0].stopped.wait()


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 100_000])
def test_a_message_has_the_length_that_its_header_tells(size: int) -> None:
    framed = message(b"x" * size)
    assert framed[0] == 0x81 and framed.endswith(b"x" * size)
    if size < 126:
        assert framed[1] == size and len(framed) == size + 2
    elif size < 65_536:
        assert (framed[1], int.from_bytes(framed[2:4], "big"), len(framed)) == (126, size, size + 4)
    else:
        assert (framed[1], int.from_bytes(framed[2:10], "big"), len(framed)) == (127, size, size + 10)


async def test_a_turn_waits_between_two_steps_for_a_client_that_is_behind(database: Database) -> None:
    call = '<tool_call>\n{"name": "double", "arguments": {"number": 2}}\n</tool_call>'
    model = ScriptedModel([TEXT + call, "Four."], name=MODEL, piece_chars=PIECE_CHARS, context_length=2 * len(TEXT))
    asked = {**RESPONSE, "tools": [{"type": "firsttoken:double"}]}
    async with answering(database, model=model) as client, asking(client, "/v1/responses", asked) as slow:
        await until(lambda: bool(model.generations) and model.generations[0].finish is not None)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(model.generations) == 1 and not slow.stream.has_room
        await slow.head()
        assert (await slow.body()).endswith("data: [DONE]\n\n")
        assert len(model.generations) == 2
