"""What happens together goes out together: a packet costs more than what is in it."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from inference.testing import ScriptedModel
from migrations.pool import Database
from tests.worker.answering import MODEL, answering
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
