"""A turn goes on behind any of its events, at an agent that knows nothing of it but its marks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from agents.agent import Agent
from agents.events import Event, EventList, ItemFinished, TurnFinished, TurnStarted
from agents.message import FunctionCall, FunctionCallOutput, Message
from agents.progress import CannotResume, Checkpoint, Marks, packed, unpacked
from agents.step import LOST
from agents.tool import Tool, tool
from agents.toolbox import Toolbox
from agents.turn import FileSearch, Turn
from inference.generation import Finish, Sampling
from inference.trace import Trace
from tests.agents.turns import ShelfSearcher, asked, call, passage
from tests.scripted import ScriptedModel

SHELF = ShelfSearcher([passage(1), passage(2)])


@tool(idempotent=True)
async def triple(x: int) -> int:
    """Triple a number."""
    return 3 * x


async def nothing() -> None:
    """All is stored at once."""


@dataclass
class Keeping(EventList):
    """A sink whose events are stored as they come, with the marks beside them. `cuts` are the places where the turn may
    be lost: how many events there were, and how many marks."""

    marks: Marks = field(default_factory=lambda: Marks(nothing))
    kept: list[Any] = field(default_factory=list)
    cuts: list[tuple[int, int]] = field(default_factory=list)

    def write(self, events: Sequence[Event]) -> None:
        super().write(events)
        self.kept += self.marks.take()
        self.marks.keep()
        self.cuts.append((len(self.events), len(self.kept)))


def shape(event: Event) -> Any:
    """What an event says, but for the ids."""
    if isinstance(event, TurnFinished):
        usage = event.usage
        return event.status, event.cut, usage.input_tokens, usage.output_tokens, list(map(told, event.output))
    item = getattr(event, "item", None)
    return type(event).__name__, getattr(event, "output_index", None), getattr(event, "text", told(item))


def told(item: Any) -> Any:
    names = ("text", "name", "arguments", "output", "status", "citations")
    return type(item).__name__, [getattr(item, name, None) for name in names]


async def whole(model: ScriptedModel, turn: Turn, tools: Sequence[Tool] = ()) -> Keeping:
    sink = Keeping()
    await Agent(model, SHELF, Toolbox(tools)).run(turn, Trace(), sink, sink.marks)
    return sink


def bookmark_of(sink: Keeping, marks: int) -> Checkpoint:
    """As it comes out of a database."""
    return Checkpoint.read(json.loads(json.dumps(sink.kept[:marks])))


@dataclass
class Heir(ScriptedModel):
    """Goes on with the reply that was `lost`, unless that was over."""

    lost: str = ""

    def text_pieces(self, ids: Sequence[int], *, over: bool = False) -> list[str]:
        return ScriptedModel([self.lost], piece_chars=self.piece_chars).text_pieces(ids, over=over)


def behind(sink: Keeping, kind: type[FunctionCall] | type[FunctionCallOutput]) -> int:
    """The number of marks when the first item of this kind was finished."""
    for events, marks in sink.cuts:
        last = sink.events[events - 1]
        if isinstance(last, ItemFinished) and isinstance(last.item, kind):
            return marks
    raise AssertionError


async def gone_on(
    replies: Sequence[str], turn: Turn, checkpoint: Checkpoint, tools: Sequence[Tool] = (), piece_chars: int = 3
) -> tuple[Keeping, ScriptedModel]:
    step = checkpoint.budget["steps"]
    model = Heir(replies[step + (checkpoint.finish is not None) :], piece_chars=piece_chars, lost=replies[step])
    sink, recalled = Keeping(), EventList()
    agent = Agent(model, SHELF, Toolbox(tools))
    await agent.resume(turn, Trace(), sink, checkpoint, sink.marks, recalled.write)
    return sink, model


@pytest.mark.parametrize(
    ("replies", "turn"),
    [
        (["A plain answer, said in some pieces.  "], asked()),
        (["A long answer that is cut off."], asked(sampling=Sampling(max_tokens=4))),
        (["An answer up to here, and no further"], asked(stop=("here",))),
        ([f"Let me see.\n{call('triple', x=2)}", "It is six."], asked(server_tools=("triple",))),
        ([call("triple", x=1) + call("triple", x=2), call("triple", x=3), "Done."], asked(server_tools=("triple",))),
        (["The port is 8080 [1]."], asked(file_search=FileSearch(("docs",)))),
        (["<think>Hm, hm.</think>Well."], asked()),
    ],
    ids=["text", "length", "stop", "tool", "tools", "search", "thoughts"],
)
async def test_a_turn_goes_on_behind_each_of_its_events_as_it_went_on(replies: list[str], turn: Turn) -> None:
    undisturbed = await whole(ScriptedModel(replies), turn, [triple])
    expected = [*map(shape, undisturbed.events)]
    for events, marks in undisturbed.cuts[1:-1]:
        sink, model = await gone_on(replies, turn, bookmark_of(undisturbed, marks), [triple])
        assert [*expected[:events], *map(shape, sink.events)] == expected, f"behind event {events}"
        assert len(model.prompts) <= len(replies)
        assert not any(isinstance(event, TurnStarted) for event in sink.events)


async def test_it_goes_on_once_more_with_the_marks_of_both() -> None:
    replies = [call("triple", x=1), "Three, that is: three."]
    turn = asked(server_tools=("triple",))
    first = await whole(ScriptedModel(replies), turn, [triple])
    events, marks = first.cuts[4]
    second, _ = await gone_on(replies, turn, bookmark_of(first, marks), [triple])
    later, further = second.cuts[-3]
    both = Keeping(kept=[*first.kept[:marks], *second.kept[:further]])
    third, _ = await gone_on(replies, turn, bookmark_of(both, len(both.kept)), [triple])
    told = [*first.events[:events], *second.events[:later], *third.events]
    assert [*map(shape, told)] == [*map(shape, first.events)]


async def test_marks_that_are_told_twice_change_nothing_and_one_that_is_missing_is_noticed() -> None:
    undisturbed = await whole(ScriptedModel(["A plain answer, said in some pieces."]), asked())
    kept = undisturbed.kept
    assert Checkpoint.read([*kept, *kept[-2:]]).written == Checkpoint.read(kept).written
    with pytest.raises(CannotResume):
        Checkpoint.read([kept[0], *kept[4:]])
    with pytest.raises(CannotResume):
        Checkpoint.read([])
    with pytest.raises(CannotResume):
        Checkpoint.read([{**kept[0], "prompt": "%"}])


async def test_a_call_that_may_have_been_carried_out_is_not_repeated_and_the_model_is_told() -> None:
    runs = 0

    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        nonlocal runs
        runs += 1
        return "paid"

    replies, turn = [call("pay", amount=5), "I do not know whether it was paid."], asked(server_tools=("pay",))
    undisturbed = await whole(ScriptedModel(replies), turn, [pay])
    assert runs == 1
    called = behind(undisturbed, FunctionCall)
    sink, model = await gone_on(replies, turn, bookmark_of(undisturbed, called), [pay])
    assert runs == 1
    assert LOST in model.prompts[-1]
    last = sink.events[-1]
    assert isinstance(last, TurnFinished)
    output = last.output
    assert [item.output for item in output if isinstance(item, FunctionCallOutput)] == [f"Error: {LOST}"]
    answered = behind(undisturbed, FunctionCallOutput)
    sink, model = await gone_on(replies, turn, bookmark_of(undisturbed, answered), [pay])
    assert runs == 1 and "paid" in model.prompts[-1]


async def test_what_must_not_run_twice_waits_until_it_is_stored_that_it_runs() -> None:
    stored, waited = False, False

    async def until_stored() -> None:
        nonlocal stored, waited
        waited = stored = True

    @tool
    async def pay() -> str:
        """Pay."""
        assert stored
        return "paid"

    sink = EventList()
    agent = Agent(ScriptedModel([call("pay"), "Paid."]), None, Toolbox([pay]))
    finished = await agent.run(asked(server_tools=("pay",)), Trace(), sink, Marks(until_stored))
    assert waited and finished.status == "completed"


async def test_another_model_than_the_one_that_was_lost_does_not_go_on() -> None:
    undisturbed = await whole(ScriptedModel(["A plain answer."]), asked())
    checkpoint = bookmark_of(undisturbed, undisturbed.cuts[3][1])
    with pytest.raises(CannotResume):
        await gone_on(["No."], asked(), checkpoint)
    with pytest.raises(CannotResume):
        await gone_on(["A plain answer."], asked(), checkpoint, piece_chars=2)
    checkpoint.model = "another"
    with pytest.raises(CannotResume):
        await gone_on(["A plain answer."], asked(), checkpoint)


async def test_a_budget_goes_on_where_it_stood() -> None:
    replies, turn = [*3 * [call("triple", x=1)], "Enough."], asked(server_tools=("triple",))
    undisturbed = await whole(ScriptedModel(replies), turn, [triple])
    finished = undisturbed.events[-1]
    assert isinstance(finished, TurnFinished) and finished.budget == "repeated_call"
    for _, marks in undisturbed.cuts[1:-1]:
        sink, _ = await gone_on(replies, turn, bookmark_of(undisturbed, marks), [triple])
        last = sink.events[-1]
        assert isinstance(last, TurnFinished) and last.budget == "repeated_call"
        assert isinstance(last.output[-1], Message)


def test_prompts_are_packed_without_loss() -> None:
    ids = [0, 7, 151_000, 2**31]
    assert unpacked(packed(ids)) == ids and Finish("stop") is Finish.STOP
