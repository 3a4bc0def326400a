"""What is summed up, what stays word for word, and in how many parts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agents.agent import Agent
from agents.compaction import PARTS_MAX, SUM_UP, Compacted, compact, run_compacted
from agents.errors import HistoryTooLong, Interrupted, InvalidTurn
from agents.events import Event, EventList, TurnFinished
from agents.function_tool import FunctionTool, described
from agents.message import Compaction, FunctionCall, FunctionCallOutput, Item, Message
from agents.prompt import since_compaction
from agents.toolbox import Toolbox
from agents.turn import Compacting, ToolSearch, Turn
from inference.errors import PromptTooLong
from inference.trace import Trace
from tests.agents.turns import TENANT, check_order, user
from tests.scripted import ScriptedModel

CONTEXT = 1600
LONG = "very " * 20


async def compacted(model: ScriptedModel, *said: Item) -> Compacted:
    agent = Agent(model, None, Toolbox(()))
    return await compact(agent, model, Turn(TENANT, said), Trace())


def model(*replies: str) -> ScriptedModel:
    return ScriptedModel(replies or ["They agreed on Tuesday."], context_length=CONTEXT)


def texts(items: tuple[Item, ...]) -> list[str]:
    return [item.text for item in items if isinstance(item, Message)]


async def test_a_short_conversation_becomes_a_summary() -> None:
    scripted = model()
    made = await compacted(scripted, user("Tuesday?"), Message("assistant", "Agreed."))
    assert (made.summary, made.recent, made.before) == ("They agreed on Tuesday.", (), ())
    assert "<user>Tuesday?\n<assistant>Agreed.\n<user>" + SUM_UP in scripted.prompts[0]
    assert made.usage.output_tokens > 0


async def test_the_newest_turns_stay_as_they_were_said_and_so_do_system_messages() -> None:
    rules = Message("system", "Be brief.")
    old = [user(f"old {number} {LONG * 2}") for number in range(3)]
    made = await compacted(model(), rules, *old, user("What now?"), Message("assistant", "Wait."))
    assert texts(made.before) == ["Be brief."]
    assert texts(made.recent) == ["What now?", "Wait."]


async def test_calls_that_wait_for_their_outputs_stay() -> None:
    call = FunctionCall("c", "f", "{}")
    made = await compacted(model(), user("old " + LONG * 3), call)
    assert (made.recent[-1], made.summary) == (call, "")
    answered = await compacted(model(), user("old"), call, FunctionCallOutput("c", "3"))
    assert (answered.recent, answered.summary) == ((), "They agreed on Tuesday.")


async def test_tools_that_the_conversation_added_are_not_called_in_a_summary() -> None:
    find = FunctionTool("find", "Finds.", {"type": "object", "properties": {}}, deferred=True)
    said = (user("old"), FunctionCall("c", "search", "{}"), FunctionCallOutput("c", described([find]), tools=(find,)))
    turn = Turn(TENANT, said, functions=(find,), tool_searches=(ToolSearch("search"),), tool_choice="required")
    scripted = model()
    await compact(Agent(scripted, None, Toolbox(())), scripted, turn, Trace())
    assert scripted.grammars == [] and not scripted.prompts[0].startswith('{"type": "function"')


async def test_a_summary_that_the_end_of_its_worker_cuts_off_may_be_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scripted, write = model(), EventList.write
    agent = Agent(scripted, None, Toolbox(()))

    def write_and_stop(told: EventList, events: Sequence[Event]) -> None:
        write(told, events)
        agent.turns.interrupt()

    monkeypatch.setattr(EventList, "write", write_and_stop)
    with pytest.raises(Interrupted):
        await compact(agent, scripted, Turn(TENANT, (user("old"),)), Trace())


async def test_what_does_not_fit_at_once_is_summed_up_in_parts() -> None:
    scripted = model("First part.", "Both parts.")
    made = await compacted(scripted, *(user(f"remark {number} {LONG}") for number in range(12)))
    assert len(scripted.prompts) == 2
    assert "Summary of the conversation so far:\nFirst part." in scripted.prompts[1]
    assert "remark 0" in scripted.prompts[0] and "remark 0" not in scripted.prompts[1]
    assert made.summary == "Both parts."
    assert made.usage.input_tokens == sum(map(len, scripted.prompts))


async def test_a_summary_is_summed_up_again() -> None:
    scripted = model()
    await compacted(scripted, Compaction("sealed", "They met."), user("And then?"), Message("assistant", "They left."))
    assert "Summary of the conversation so far:\nThey met." in scripted.prompts[0]


async def test_what_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidTurn):
        await compacted(model())
    with pytest.raises(PromptTooLong):
        await compacted(model(), user("x" * CONTEXT), user("y"))
    with pytest.raises(HistoryTooLong):
        await compacted(model(), *(user(LONG * 6) for _ in range(PARTS_MAX + 2)))


def test_what_stood_before_a_summary_does_not_count_any_more() -> None:
    rules, question, answer = Message("system", "rules"), user("why?"), Message("assistant", "Because.")
    summary = Compaction("sealed", "They met.", (user("then?"),))
    said: list[Item] = [rules, user("old"), Compaction("older", "x"), user("then?"), summary, answer, question]
    assert since_compaction(said) == (rules, summary, *summary.recent, answer, question)
    assert since_compaction([question, answer]) == (question, answer)


async def events_of(scripted: ScriptedModel, turn: Turn) -> list[Event]:
    agent = Agent(scripted, None, Toolbox(()))
    told = EventList()
    await run_compacted(agent, scripted, turn, Trace(), lambda *_: "sealed", told)
    check_order(told.events)
    return told.events


async def test_a_turn_makes_its_conversation_short_when_it_has_grown_too_long() -> None:
    scripted = model("They met in Oslo.", "Because.")
    history = tuple(user(f"remark {number} {LONG}") for number in range(8))
    turn = Turn(TENANT, (user("Why?"),), history, instructions="Be brief.", compacting=Compacting(400))
    *_, finished = await events_of(scripted, turn)
    assert isinstance(finished, TurnFinished)
    summary, answer = finished.output
    assert isinstance(summary, Compaction) and isinstance(answer, Message)
    assert (summary.sealed, summary.summary, answer.text) == ("sealed", "They met in Oslo.", "Because.")
    assert texts(summary.recent)[-1] == "Why?"
    assert scripted.prompts[1].startswith("<system>Be brief.\n\nSummary of the conversation so far:\nThey met in Oslo.")
    assert scripted.prompts[1].endswith("<user>Why?\n<assistant>") and "remark 0" not in scripted.prompts[1]
    assert finished.usage.input_tokens == sum(map(len, scripted.prompts))


@pytest.mark.parametrize(
    ("above", "history"), [(4000, (user("old " + LONG),)), (1, ())], ids=["it is short", "nothing is old"]
)
async def test_a_turn_goes_on_as_it_is_when_there_is_no_need(above: int, history: tuple[Item, ...]) -> None:
    *_, finished = await events_of(model(), Turn(TENANT, (user("Why?"),), history, compacting=Compacting(above)))
    assert isinstance(finished, TurnFinished)
    assert [type(item) for item in finished.output] == [Message]
