"""What a turn leaves in its trace."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from agents.agent import Agent
from agents.events import Event, EventList, TextDelta, TurnStarted
from agents.toolbox import Toolbox
from agents.turn import Limits
from inference.trace import Trace
from tests.agents.turns import asked, boom, call, double, run
from tests.scripted import ScriptedModel

STEP = ["assemble", "tokenize", "queue", "prefill", "decode"]


async def test_a_step_has_its_five_spans() -> None:
    ran = await run(ScriptedModel(["Hello."]), asked())
    assert [span.name for span in ran.trace.spans] == STEP
    assert ran.trace.attributes["firsttoken.steps"] == 1


async def test_tools_stand_on_their_own_lane_between_two_steps() -> None:
    model = ScriptedModel([call("double", x=1) + call("boom"), "Done."])
    ran = await run(model, asked(server_tools=("double", "boom")), [double, boom])
    assert [span.name for span in ran.trace.spans] == [*STEP, "tools", "tool:double", "tool:boom", *STEP]
    around, *tools = ran.trace.spans[5:8]
    assert [(span.lane, span.parent, span.attributes["failed"]) for span in tools] == [
        ("tools", ran.trace.index(around), False),
        ("tools", ran.trace.index(around), True),
    ]
    assert ran.trace.attributes["firsttoken.tool_calls"] == 2


async def test_all_spans_are_closed_and_the_main_lane_never_overlaps() -> None:
    model = ScriptedModel([call("double", x=1), "Done."])
    ran = await run(model, asked(server_tools=("double",)), [double])
    spans = [span for span in ran.trace.spans if span.lane == "main"]
    for before, after in pairwise(spans):
        assert 0 < before.start_ns <= before.end_ns <= after.start_ns


async def test_prefill_is_known_before_the_first_token() -> None:
    trace = Trace()
    spans: dict[type, list[str]] = {}

    class Watching(EventList):
        def write(self, events: Sequence[Event]) -> None:
            for event in events:
                spans.setdefault(type(event), [span.name for span in trace.spans])

    await Agent(ScriptedModel(["Hello."]), None, Toolbox()).run(asked(), trace, Watching())
    assert spans[TurnStarted] == ["assemble", "tokenize"]
    assert spans[TextDelta] == ["assemble", "tokenize", "queue", "prefill"]
    assert trace.spans[3].attributes.keys() == {"new_tokens", "cached_tokens", "chunks", "batch"}


async def test_the_budget_that_ended_a_turn_is_in_the_trace() -> None:
    model = ScriptedModel([call("double", x=1), "Two."])
    ran = await run(model, asked(server_tools=("double",), limits=Limits(steps=2)), [double])
    assert ran.trace.attributes["firsttoken.budget"] == "steps"
