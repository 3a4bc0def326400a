"""Whoever stops listening stops the work: at once, and without waiting for anything."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from agents.agent import Agent
from agents.events import ItemFinished, TextDelta
from agents.tool import Tool, tool
from agents.toolbox import Toolbox
from inference.testing import ScriptedModel
from inference.trace import Trace
from tests.agents.turns import asked, call


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


async def test_closing_the_events_cancels_the_generation_before_anything_else() -> None:
    model = ScriptedModel(["A long answer."])
    events = agent(model).run(asked(), Trace())
    async for event in events:
        if isinstance(event, TextDelta):
            break
    assert not model.generations[0].cancelled
    closing = events.aclose()
    with pytest.raises(StopIteration):
        closing.send(None)  # runs to the end without awaiting once
    assert model.generations[0].cancelled


async def test_closing_the_events_cancels_the_tools() -> None:
    hang, started, cancelled = hanging()
    model = ScriptedModel([call("hang") + "And more."])
    async with asyncio.timeout(5):
        async with aclosing(agent(model, hang).run(asked(server_tools=("hang",)), Trace())) as events:
            async for event in events:
                if isinstance(event, ItemFinished):
                    await started.wait()
                    break
        await cancelled.wait()


async def test_a_cancelled_listener_cancels_the_tools_it_waits_for() -> None:
    hang, started, cancelled = hanging()
    model = ScriptedModel([call("hang")])

    async def listen() -> None:
        async for _ in agent(model, hang).run(asked(server_tools=("hang",)), Trace()):
            pass

    listening = asyncio.create_task(listen())
    async with asyncio.timeout(5):
        await started.wait()
        listening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await listening
        await cancelled.wait()
    assert model.generations[0].cancelled


async def test_an_abandoned_turn_still_has_its_spans() -> None:
    trace = Trace()
    events = agent(ScriptedModel(["A long answer."])).run(asked(), trace)
    async for event in events:
        if isinstance(event, TextDelta):
            break
    await events.aclose()
    assert [span.name for span in trace.spans] == ["assemble", "tokenize", "queue", "prefill", "decode"]
