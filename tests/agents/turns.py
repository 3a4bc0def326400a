"""Runs turns and holds every one of them against the order that agents/events.py states."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any
from uuid import UUID

from agents.agent import Agent
from agents.events import (
    ArgumentsDelta,
    Event,
    EventList,
    ItemFinished,
    ItemStarted,
    ReasoningDelta,
    RetrievalStarted,
    SourcesFound,
    TextDelta,
    TurnFinished,
    TurnStarted,
)
from agents.message import Compaction, FunctionCall, FunctionCallOutput, Item, Message, Reasoning
from agents.tool import Tool, tool
from agents.toolbox import Toolbox
from agents.turn import FREE, Prices, Turn
from inference.trace import Trace
from retrieval.errors import StoreNotFound
from retrieval.passage import Passage
from retrieval.query import Query, Searcher
from tests.scripted import ScriptedModel

TENANT = UUID(int=7)


@dataclass(frozen=True)
class Ran:
    """A turn that ran to its end."""

    events: list[Event]
    trace: Trace

    @property
    def finished(self) -> TurnFinished:
        last = self.events[-1]
        assert isinstance(last, TurnFinished)
        return last

    @property
    def output(self) -> tuple[Item, ...]:
        return self.finished.output

    @property
    def answer(self) -> str:
        """The text of the last message."""
        return [item.text for item in self.output if isinstance(item, Message)][-1]

    @property
    def calls(self) -> list[FunctionCall]:
        return [item for item in self.output if isinstance(item, FunctionCall)]

    @property
    def results(self) -> list[str]:
        return [item.output for item in self.output if isinstance(item, FunctionCallOutput)]


def user(text: str) -> Message:
    return Message("user", text)


def asked(text: str = "Hello", **rest: Any) -> Turn:
    return Turn(TENANT, (user(text),), **rest)


def call(name: str, **arguments: Any) -> str:
    """A tool call as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@tool
def double(x: int) -> int:
    """Double a number."""
    return 2 * x


@tool
async def boom() -> str:
    """Fail."""
    raise RuntimeError


async def run(
    model: ScriptedModel,
    turn: Turn,
    tools: Sequence[Tool] = (),
    searcher: Searcher | None = None,
    prices: Prices = FREE,
) -> Ran:
    """Run a turn to its end and check the order of its events."""
    trace = Trace()
    agent = Agent(model, searcher, Toolbox(tools), prices)
    told = EventList()
    finished = await agent.run(turn, trace, told)
    check_order(told.events)
    assert told.events[-1] is finished
    return Ran(told.events, trace)


def check_order(events: Sequence[Event]) -> None:
    """The law of agents/events.py: fails unless `events` are one whole turn in the right order."""
    assert isinstance(events[0], TurnStarted)
    finished = events[-1]
    assert isinstance(finished, TurnFinished)
    items: list[Item] = []
    rest = list(events[1:-1])
    if rest and isinstance(rest[0], RetrievalStarted):
        started, found = rest.pop(0), rest.pop(0)
        assert isinstance(started, RetrievalStarted) and isinstance(found, SourcesFound)
        assert (started.output_index, found.output_index) == (0, 0)
        assert started.item.id == found.item.id
        assert (started.item.status, found.item.status) == ("in_progress", "completed")
        items.append(found.item)
    while rest:
        items.append(_check_item(rest, len(items)))
    assert tuple(items) == finished.output


def _check_item(rest: list[Event], index: int) -> Item:
    started = rest.pop(0)
    assert isinstance(started, ItemStarted)
    assert started.output_index == index
    assert started.item.status == "in_progress"
    pieces = []
    while not isinstance(event := rest.pop(0), ItemFinished):
        assert isinstance(event, TextDelta | ReasoningDelta | ArgumentsDelta)
        assert (event.output_index, event.item_id) == (index, started.item.id)
        assert event.text
        pieces.append(event.text)
    assert (event.output_index, event.item.id) == (index, started.item.id)
    assert event.item.status != "in_progress"
    match started.item, event.item:
        case Message(text=""), Message(text=text):
            assert "".join(pieces) == text
        case Reasoning(text=""), Reasoning(text=text):
            assert "".join(pieces) == text
        case FunctionCall(arguments=""), FunctionCall(arguments=arguments):
            assert "".join(pieces) == arguments
        case Compaction(), Compaction():
            assert not pieces
        case FunctionCallOutput(output=""), FunctionCallOutput():
            assert not pieces
        case _:
            raise AssertionError(f"{started.item} became {event.item}")
    return event.item


def passage(number: int, *, text: str = "", title: str = "") -> Passage:
    return Passage(
        vector_store_id="vs_1",
        file_id=f"file_{number}",
        filename=f"{number}.md",
        title=title or f"Title {number}",
        text=text or f"Fact {number}.",
        start_char=10 * number,
        end_char=10 * number + 9,
        tokens=4,
        score=1 / number,
    )


@dataclass
class ShelfSearcher:
    """Hands out the passages of one store, whatever is asked, and remembers what was."""

    passages: Sequence[Passage]
    store: str = "docs"

    def __post_init__(self) -> None:
        self.queries: list[tuple[str, float]] = []

    async def retrieve(self, query: Query, trace: Trace, budget_ms: float = inf) -> list[Passage]:
        for store in query.stores:
            if store != self.store:
                raise StoreNotFound(store)
        self.queries.append((query.text, query.score_threshold))
        return list(self.passages[: query.limit])
