"""A turn whose task is cancelled stops its work: at once, and without waiting for anything."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from agents.agent import Agent
from agents.events import Event, EventList, TextDelta
from agents.tool import Tool, tool
from agents.toolbox import Toolbox
from agents.turn import Turn
from inference.trace import Trace
from tests.agents.turns import asked, call
from tests.scripted import ScriptedModel


def agent(model: ScriptedModel, *tools: Tool) -> Agent:
    return Agent(model, None, Toolbox(tools))


def hanging() -> tuple[Tool, asyncio.Event, asyncio.Event]:
    """A tool that never returns, with what tells that it started and that it was cancelled."""
    started, cancelled = asyncio.Event(), asyncio.Event()

    @tool
    async def hang() -> None:
        """Never come back."""
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    return hang, started, cancelled


@dataclass
class CancelAt(EventList):
    """Cancels the turn that writes to it, at its first event of a kind."""

    kind: type = TextDelta
    turn: asyncio.Task[Any] | None = None

    def write(self, events: Sequence[Event]) -> None:
        if self.turn is not None and any(isinstance(event, self.kind) for event in events):
            self.turn.cancel()
        self.events += events


async def cancelled_at(kind: type, agent: Agent, turn: Turn, trace: Trace | None = None) -> None:
    told = CancelAt(kind=kind)
    told.turn = asyncio.create_task(agent.run(turn, trace or Trace(), told))
    with pytest.raises(asyncio.CancelledError):
        await told.turn


async def test_cancelling_a_turn_cancels_its_generation() -> None:
    model = ScriptedModel(["A long answer."])
    async with asyncio.timeout(60):
        await cancelled_at(TextDelta, agent(model), asked())
    assert model.generations[0].cancelled
    assert len(model.generations[0].ids) < len("A long answer.")


async def test_cancelling_a_turn_cancels_its_tools() -> None:
    hang, started, cancelled = hanging()
    model = ScriptedModel([call("hang") + "And more."])
    async with asyncio.timeout(60):
        turn = asyncio.create_task(agent(model, hang).run(asked(server_tools=("hang",)), Trace(), EventList()))
        await started.wait()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        await cancelled.wait()
    assert model.generations[0].cancelled


async def test_a_turn_that_is_refused_by_its_sink_cancels_its_generation() -> None:
    class Refusing(EventList):
        async def open(self) -> None:
            raise ConnectionError("the database is away")

    model, told = ScriptedModel(["An answer."]), Refusing()
    with pytest.raises(ConnectionError):
        await agent(model).run(asked(), Trace(), told)
    assert model.generations[0].cancelled
    assert told.events == []


async def test_a_turn_waits_for_its_reader_between_two_steps() -> None:
    class Full(EventList):
        waits: ClassVar[asyncio.Event] = asyncio.Event()
        room: ClassVar[asyncio.Event] = asyncio.Event()

        async def drain(self) -> None:
            self.waits.set()
            await self.room.wait()

    @tool
    async def double(x: int) -> int:
        """Double a number."""
        return 2 * x

    model, told = ScriptedModel([call("double", x=1), "Two."]), Full()
    async with asyncio.timeout(60):
        turn = asyncio.create_task(agent(model, double).run(asked(server_tools=("double",)), Trace(), told))
        await told.waits.wait()
        assert len(model.generations) == 1
        told.room.set()
        assert (await turn).status == "completed"
    assert len(model.generations) == 2


async def test_what_breaks_while_events_are_written_fails_the_turn() -> None:
    class Broken(EventList):
        def write(self, events: Sequence[Event]) -> None:
            if any(isinstance(event, TextDelta) for event in events):
                raise ValueError("cannot be spelled")
            self.events += events

    told = Broken()
    async with asyncio.timeout(60):
        finished = await agent(ScriptedModel(["An answer."])).run(asked(), Trace(), told)
    assert (finished.status, finished.error_code) == ("failed", "server_error")
    assert told.events[-1] is finished


async def test_a_cancelled_turn_still_has_its_spans() -> None:
    trace = Trace()
    async with asyncio.timeout(60):
        await cancelled_at(TextDelta, agent(ScriptedModel(["A long answer."])), asked(), trace)
    assert [span.name for span in trace.spans] == ["assemble", "tokenize", "queue", "prefill", "decode"]
