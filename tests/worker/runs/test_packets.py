"""What happens together goes out together: a packet costs more than what is in it."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import Any

import pytest
from aiohttp import web

from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, StallingModel, answering
from worker.runs.event_stream import Stream

CHAT = {"messages": [{"role": "user", "content": "x"}], "stream_options": {"include_usage": True}}


@pytest.fixture
def packets(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is handed to the socket at once, of all streams."""
    handed: list[bytes] = []

    def send(self: Stream, frames: Any, send: Any = Stream.send) -> None:
        handed.append(b"".join([*self._kept, *frames]))
        send(self, frames)

    async def write_eof(self: Any, data: bytes = b"", write_eof: Any = web.StreamResponse.write_eof) -> None:
        handed.extend([data] if data else [])  # aiohttp calls it once more
        await write_eof(self, data)

    monkeypatch.setattr(Stream, "send", send)
    monkeypatch.setattr(web.StreamResponse, "write_eof", write_eof)
    return handed


async def sent(database: Database, path: str, body: dict[str, Any]) -> None:
    async with answering(database, model=ScriptedModel(["Hello, you."], name=MODEL)) as client:
        answer = await client.post(path, json={**body, "stream": True})
        await answer.read()
        assert answer.status == 200


async def test_the_end_of_a_completion_is_one_packet(database: Database, packets: list[bytes]) -> None:
    await sent(database, "/v1/chat/completions", CHAT)
    assert [mark in packets[-1] for mark in (b'"finish_reason":"stop"', b'"prompt_tokens"', b"[DONE]")] == [True] * 3
    assert not any(b'"finish_reason":"stop"' in packet for packet in packets[:-1])


async def test_an_item_begins_in_the_packet_of_its_first_text(database: Database, packets: list[bytes]) -> None:
    await sent(database, "/v1/responses", {"input": "x"})
    [first] = [packet for packet in packets if b"response.output_item.added" in packet]
    assert b"response.content_part.added" in first and b"response.output_text.delta" in first
    [last] = [packet for packet in packets if b"response.output_item.done" in packet]
    assert b"response.output_text.done" in last and b"response.content_part.done" in last


async def test_the_headers_go_out_in_the_packet_of_the_first_event(database: Database) -> None:
    model = StallingModel([""], name=MODEL)
    async with answering(database, model=model) as client:
        reader, writer = await asyncio.open_connection(client.server.host, client.server.port)
        authorization = f"Authorization: Bearer {client.session.headers['Authorization'].split()[-1]}"
        for path, body, first in (
            ("/v1/chat/completions", CHAT, b'"role":"assistant"'),
            ("/v1/responses", {"input": "x", "store": False}, b"response.in_progress"),
        ):
            before = packets_to(writer)
            content = json.dumps({**body, "stream": True}).encode()
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\n{authorization}\r\nContent-Length: {len(content)}\r\n\r\n"
            writer.write(head.encode() + content)
            told = await reader.readuntil(first)
            assert told.startswith(b"HTTP/1.1 200")
            assert packets_to(writer) == before + 1
            model.running.pop().released.set()
            await reader.readuntil(b"0\r\n\r\n")
        writer.close()


def packets_to(writer: asyncio.StreamWriter) -> int:
    """How many packets with data this end of a connection has received (`tcpi_data_segs_in`)."""
    told: bytes = writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)
    return int.from_bytes(told[152:156], sys.byteorder)
