"""The first token's time is when its bytes go out, not when they were made."""

from __future__ import annotations

from typing import Any

import pytest

from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, answering, events_of, stream
from worker.runs import record
from worker.runs.event_log import EventLog
from worker.runs.event_stream import Stream

CHAT = {"messages": [{"role": "user", "content": "x"}]}
CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
RESPONSE = {"input": "x", "include": ["firsttoken:trace"]}


@pytest.mark.parametrize("room", [True, False], ids=["a client that reads", "a client that is behind"])
async def test_the_first_token_counts_when_it_is_sent(
    database: Database, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    marks: list[bool] = []  # for each mark, whether a token had gone out by then
    sent: list[bytes] = []
    behind: list[bool] = [] if room else [True] * 40  # looks at a socket that is full

    def send(self: Stream, frames: Any, send: Any = Stream.send) -> None:
        sent.extend(frames)
        send(self, frames)

    looked: Any = Stream.has_room

    def has_room(self: Stream) -> bool:
        if behind and any(b"content_part.added" in frame for frame in sent):
            behind.pop()
            self.is_behind = True  # the pulse finds that there is room again
        return bool(looked.fget(self))

    def mark(trace: Any, mark: Any = record.mark_first_token) -> None:
        marks.append(any(b"output_text.delta" in frame for frame in sent))
        mark(trace)

    monkeypatch.setattr(Stream, "send", send)
    monkeypatch.setattr(Stream, "has_room", property(has_room))
    monkeypatch.setattr(record, "mark_first_token", mark)
    async with answering(database, model=ScriptedModel(["Hello, you."], name=MODEL)) as client:
        events = await stream(client, "/v1/responses", RESPONSE)
    assert marks == [True]
    [trace] = [event["trace"] for event in events if event["type"] == "firsttoken:trace"]
    assert trace["ttft_ms"] > 0


@pytest.mark.parametrize(("reply", "of"), [("Hello, you.", None), (CALL, "call")])
async def test_the_first_token_of_a_call_is_told_apart(database: Database, reply: str, of: str | None) -> None:
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]
    async with answering(database, model=ScriptedModel([reply], name=MODEL)) as client:
        events = await stream(client, "/v1/responses", {**RESPONSE, "tools": tools})
    [trace] = [event["trace"] for event in events if event["type"] == "firsttoken:trace"]
    [first] = [span for span in trace["spans"] if span["name"] == "first_token"]
    assert first["attributes"].get("of") == of


async def test_an_answer_that_is_stored_at_once_has_the_time_of_its_first_token(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client may come back, so no event is sent before it is stored: with a short answer, that is its end."""
    monkeypatch.setattr(EventLog, "note", lambda *_, **__: None)
    async with answering(database, model=ScriptedModel(["Hello, you."], name=MODEL)) as client:
        body, headers = {**RESPONSE, "stream": True}, {"X-Firsttoken-On-Disconnect": "20"}
        async with client.post("/v1/responses", json=body, headers=headers) as answer:
            events = events_of(await answer.text())
    [trace] = [event["trace"] for event in events if event["type"] == "firsttoken:trace"]
    assert 0 < trace["ttft_ms"] <= trace["duration_ms"]
