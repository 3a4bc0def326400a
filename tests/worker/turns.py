"""Turns as the agent tells them, for tests of those who listen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from agents.events import (
    ArgumentsDelta,
    Event,
    ItemFinished,
    ItemStarted,
    ReasoningDelta,
    RetrievalStarted,
    SourcesFound,
    TextDelta,
    TurnFinished,
    TurnStarted,
    TurnStatus,
    Usage,
)
from agents.message import (
    Citation,
    Compaction,
    ConfigurationUpdate,
    FileSearchCall,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    ToolListing,
)
from retrieval.passage import Passage
from worker.wire.response import ResponseFrame
from worker.wire.response_request import ResponseRequest
from worker.wire.strict import parse

PASSAGE = Passage("vs_1", "file_1", "docs/a.md", "A: one", "The port is 8080.", 10, 27, 6, 0.75)
CITATION = Citation(1, 17, 20, "file_1", "docs/a.md", "A: one", 10, 27)
SOURCE = Passage("", "file_1", "docs/a.md", "", PASSAGE.text, 0, 0, 0, 0.75)


def frame(**body: Any) -> ResponseFrame:
    return ResponseFrame(parse(ResponseRequest, orjson.dumps({"input": "hello", **body})), "demo-chat")


def told(*items: Item, status: TurnStatus = "completed", cut: str | None = None, pieces: int = 3) -> list[Event]:
    """A whole turn that puts out these items; texts and arguments come in pieces of a few characters."""
    events: list[Event] = [TurnStarted()]
    for index, item in enumerate(items):
        events += item_events(index, item, pieces)
    return [*events, TurnFinished(status, items, Usage(10, 4, 5), cut)]


def item_events(index: int, item: Item, pieces: int) -> list[Event]:
    match item:
        case Message():
            started = replace(item, text="", citations=(), status="in_progress")
            deltas: list[Event] = [TextDelta(index, item.id, piece) for piece in _cut(item.text, pieces)]
            return [ItemStarted(index, started), *deltas, ItemFinished(index, item)]
        case Reasoning():
            deltas = [ReasoningDelta(index, item.id, piece) for piece in _cut(item.text, pieces)]
            return [
                ItemStarted(index, replace(item, text="", status="in_progress")),
                *deltas,
                ItemFinished(index, item),
            ]
        case FunctionCall():
            deltas = [ArgumentsDelta(index, item.id, piece) for piece in _cut(item.arguments, pieces)]
            return [
                ItemStarted(index, replace(item, arguments="", status="in_progress")),
                *deltas,
                ItemFinished(index, item),
            ]
        case FunctionCallOutput():
            return [ItemStarted(index, replace(item, output="", status="in_progress")), ItemFinished(index, item)]
        case ToolListing():
            return [ItemStarted(index, replace(item, tools=(), status="in_progress")), ItemFinished(index, item)]
        case Compaction() | ConfigurationUpdate():
            raise ValueError(f"no turn puts out {item!r}")
        case FileSearchCall():
            started_search = replace(item, results=(), status="in_progress")
            return [RetrievalStarted(index, started_search), SourcesFound(index, item, (PASSAGE,))]


def _cut(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]
