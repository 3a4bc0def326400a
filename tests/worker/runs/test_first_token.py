"""The first token's time is when its bytes go out, not when they were made."""

from __future__ import annotations

from typing import Any

import pytest

from inference.testing import ScriptedModel
from migrations.pool import Database
from tests.worker.answering import MODEL, answering, stream
from worker.runs import record
from worker.runs import run as runs
from worker.runs.event_stream import Stream

CHAT = {"messages": [{"role": "user", "content": "x"}]}
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
            self._behind = True  # the pulse finds that there is room again
        return bool(looked.fget(self))

    def mark(trace: Any, mark: Any = record.mark_first_token) -> None:
        marks.append(any(b"output_text.delta" in frame for frame in sent))
        mark(trace)

    monkeypatch.setattr(Stream, "send", send)
    monkeypatch.setattr(Stream, "has_room", property(has_room))
    monkeypatch.setattr(runs, "mark_first_token", mark)
    async with answering(database, model=ScriptedModel(["Hello, you."], name=MODEL)) as client:
        events = await stream(client, "/v1/responses", RESPONSE)
    assert marks == [True]
    [trace] = [event["trace"] for event in events if event["type"] == "firsttoken:trace"]
    assert trace["ttft_ms"] > 0
