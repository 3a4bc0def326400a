"""Tools in a turn: the server's, and the functions that the caller runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from agents.events import ArgumentsDelta, ItemStarted
from agents.function_tool import FunctionTool
from agents.message import FunctionCall, FunctionCallOutput, Message
from agents.tool import tool
from agents.turn import Turn
from inference.generation import Delta, Sampling
from inference.prompt import ChatMessage, ToolCall
from tests.agents.turns import TENANT, asked, boom, call, double, run, user
from tests.scripted import ScriptedGeneration, ScriptedModel

WEATHER = FunctionTool("weather", "Tell the weather.", {"type": "object", "properties": {"city": {"type": "string"}}})


async def test_a_tool_runs_and_the_model_answers_from_its_result() -> None:
    model = ScriptedModel([f"Let me see.\n{call('double', x=21)}", "It is 42."])
    ran = await run(model, asked("21 * 2?", server_tools=("double",)), [double])
    assert [type(item) for item in ran.output] == [Message, FunctionCall, FunctionCallOutput, Message]
    assert (ran.results, ran.answer) == (["42"], "It is 42.")
    assert "<tool>42" in model.prompts[1]
    assert ran.finished.status == "completed"


async def test_the_next_prompt_extends_the_one_before_by_what_the_model_wrote() -> None:
    model = ScriptedModel([call("double", x=1), call("double", x=2), "Done."])
    await run(model, asked(server_tools=("double",)), [double])
    for before, after in pairwise(model.prompts):
        assert after.startswith(before)
    assert model.remembered == [
        ChatMessage("assistant", "", (ToolCall("double", '{"x": 1}'),)),
        ChatMessage("assistant", "", (ToolCall("double", '{"x": 2}'),)),
        ChatMessage("assistant", "Done."),
    ]


async def test_the_next_turn_renders_what_was_remembered() -> None:
    model = ScriptedModel([f"Hm.\n{call('double', x=1)}\n{call('double', x=2)}", "Done.", "Bye."])
    ran = await run(model, asked("Go", server_tools=("double",)), [double])
    history = (user("Go"), *ran.output)
    await run(model, Turn(TENANT, (user("Thanks"),), history, server_tools=("double",)), [double])
    assert model.prompts[2].startswith(model.prompts[1])


async def test_parallel_calls_overlap_and_their_results_stand_in_call_order() -> None:
    second_ran = asyncio.Event()

    @tool
    async def first() -> str:
        """Wait for the second."""
        await second_ran.wait()
        return "one"

    @tool
    async def second() -> str:
        """Let the first go on."""
        second_ran.set()
        return "two"

    model = ScriptedModel([call("first") + call("second"), "Done."])
    ran = await run(model, asked(server_tools=("first", "second")), [first, second])
    assert ran.results == ["one", "two"]
    outputs = [item.call_id for item in ran.output if isinstance(item, FunctionCallOutput)]
    assert outputs == [each.call_id for each in ran.calls]


async def test_a_tool_starts_while_the_model_still_writes() -> None:
    started = asyncio.Event()

    @tool
    async def early() -> None:
        """Say that it runs."""
        started.set()

    class Waiting(ScriptedModel):
        def generate(self, *args: Any, **options: Any) -> ScriptedGeneration:
            generation = super().generate(*args, **options)
            return Paused(generation) if len(self.generations) == 1 else generation  # type: ignore[return-value]  # it is one in all but name

    class Paused:
        """Lets the last piece out only when the tool runs: without an early start this never ends."""

        def __init__(self, inner: ScriptedGeneration) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        async def stream(self, receive: Callable[[Delta], None]) -> None:
            async for delta in self._inner:
                if "!" in delta.text:
                    await started.wait()
                receive(delta)

    model = Waiting([call("early") + "Wait for it!", "Done."], piece_chars=1)
    async with asyncio.timeout(60):
        assert (await run(model, asked(server_tools=("early",)), [early])).answer == "Done."


async def test_a_failing_tool_is_a_result_and_the_turn_goes_on() -> None:
    model = ScriptedModel([call("boom"), "Sorry, boom failed."])
    ran = await run(model, asked(server_tools=("boom",)), [boom])
    assert ran.results == ["Error: boom failed (RuntimeError)"]
    assert (ran.finished.status, ran.answer) == ("completed", "Sorry, boom failed.")


async def test_a_tool_that_was_not_offered_does_not_run() -> None:
    model = ScriptedModel([call("boom"), "Well."])
    ran = await run(model, asked(server_tools=("double",)), [double, boom])
    assert ran.results == ["Error: there is no tool named 'boom'"]


async def test_a_function_that_was_not_offered_is_not_left_to_the_caller() -> None:
    model = ScriptedModel([call("create_token"), "Well."])
    ran = await run(model, asked(functions=(WEATHER,)))
    assert (ran.results, ran.answer) == (["Error: there is no tool named 'create_token'"], "Well.")


@pytest.mark.parametrize(
    ("body", "name", "told"),
    [
        ('{"name": "double", "arguments": {"x": }}', "double", "not valid JSON"),
        ('{"name": "double", "arguments": {"x": 1}', "double", "not complete JSON"),
        ('{"nam": "double"}', "unreadable_call", "it has no name"),
    ],
)
async def test_a_broken_call_never_runs_and_the_model_hears_why(body: str, name: str, told: str) -> None:
    model = ScriptedModel([f"<tool_call>{body}</tool_call>", "Well."])
    ran = await run(model, asked(server_tools=("double",)), [double])
    assert [(each.name, each.status) for each in ran.calls] == [(name, "failed")]
    assert ran.results[0].startswith("Error: the tool call could not be read: ")
    assert told in ran.results[0]
    assert ran.answer == "Well."


async def test_a_call_cut_off_by_the_limit_is_never_run() -> None:
    model = ScriptedModel([call("double", x=1) + call("double", x=2)])
    limit = Sampling(max_tokens=36)  # pieces of three characters: into the second call's arguments
    ran = await run(model, asked(server_tools=("double",), sampling=limit), [double])
    assert [each.status for each in ran.calls] == ["completed", "incomplete"]
    assert ran.results == ["2"]
    assert ran.finished.status == "incomplete"


async def test_without_parallel_calls_only_the_first_counts() -> None:
    model = ScriptedModel([call("double", x=1) + call("double", x=2), "Two."])
    ran = await run(model, asked(server_tools=("double",), parallel_tool_calls=False), [double])
    assert ran.results == ["2"]
    assert model.remembered == [ChatMessage("assistant", "Two.")]  # the first step was not as its items tell


async def test_a_long_result_leaves_room_for_the_answer() -> None:
    @tool
    def recite() -> str:
        """Say a lot."""
        return "bla " * 1000

    model = ScriptedModel([call("recite") + call("recite"), "Enough."], context_length=1600)
    ran = await run(model, asked(server_tools=("recite",)), [recite])
    assert ran.finished.status == "completed"
    assert all("[cut" in result for result in ran.results)
    assert len(model.prompts[1]) < 1600 - 150


async def test_the_turn_ends_with_the_calls_that_the_caller_has_to_run() -> None:
    ran = await run(ScriptedModel([call("weather", city="Oslo")]), asked(functions=(WEATHER,)))
    assert [(each.name, each.arguments) for each in ran.calls] == [("weather", '{"city": "Oslo"}')]
    assert (ran.results, ran.finished.status) == ([], "completed")


async def test_the_servers_tools_of_the_same_step_run_first() -> None:
    model = ScriptedModel([call("weather") + call("double", x=2)])
    ran = await run(model, asked(functions=(WEATHER,), server_tools=("double",)), [double])
    assert [each.name for each in ran.calls] == ["weather", "double"]
    assert ran.results == ["4"]
    assert len(model.prompts) == 1


async def test_the_callers_output_continues_the_turn() -> None:
    model = ScriptedModel([call("weather"), "It rains."])
    first = await run(model, asked("Weather?", functions=(WEATHER,)))
    output = FunctionCallOutput(first.calls[0].call_id, "rain")
    second = await run(model, Turn(TENANT, (output,), (user("Weather?"), *first.output), functions=(WEATHER,)))
    assert second.answer == "It rains."
    assert model.prompts[1].startswith(model.prompts[0])
    assert "<tool>rain" in model.prompts[1]


CODE = {"type": "object", "properties": {"code": {"type": "string", "minLength": 3}}, "required": ["code"]}
LOOK_UP = FunctionTool("look_up", "Look a code up.", CODE, strict=True)


def tagged(code: str) -> str:
    return f"<tool_call>\n<function=look_up>\n<parameter=code>\n{code}\n</parameter>\n</function>\n</tool_call>"


async def test_strict_arguments_that_do_not_fit_never_leave() -> None:
    model = ScriptedModel([tagged("7"), tagged("77812")], chat_template="<function=")
    ran = await run(model, asked(functions=(LOOK_UP,)))
    unread, right = ran.calls
    assert (unread.status, right.arguments, right.status) == ("failed", '{"code": "77812"}', "completed")
    assert "the arguments of look_up do not fit its schema: minLength of code" in ran.results[0]
    begun = [event.item for event in ran.events if isinstance(event, ItemStarted)]
    assert [item.name for item in begun if isinstance(item, FunctionCall)] == [unread.name, "look_up"]
    assert unread.name != "look_up" and ran.finished.open_calls({"look_up"}) == [right]


async def test_arguments_that_a_grammar_enforces_stream() -> None:
    turn = asked(functions=(LOOK_UP,))
    ran = await run(ScriptedModel([call("look_up", code="77812")], piece_chars=5), turn)
    assert sum(isinstance(event, ArgumentsDelta) for event in ran.events) > 2


async def test_arguments_with_a_keyword_beyond_grammars_are_sent_once_they_fit() -> None:
    codes = {"type": "object", "properties": {"codes": {"type": "array", "uniqueItems": True}}}
    turn = asked(functions=(FunctionTool("look_up", "", codes, strict=True),))
    ran = await run(ScriptedModel([call("look_up", codes=[1, 1]), call("look_up", codes=[1, 2])]), turn)
    assert [event.text for event in ran.events if isinstance(event, ArgumentsDelta)] == ["{}", '{"codes": [1, 2]}']
    assert ran.finished.status == "completed" and "uniqueItems of codes" in ran.results[0]


PARIS, OSLO, LONGER = (call("weather", city=city) for city in ("Paris", "Oslo", "Paris, France"))


@pytest.mark.parametrize("piece_chars", [1, 3, 1000])
@pytest.mark.parametrize(
    ("reply", "cities"),
    [
        (PARIS * 16, ["Paris"]),
        (f"{PARIS}\n{OSLO}\n{PARIS}\n{LONGER}", ["Paris", "Oslo"]),
        (f"{PARIS}\n{LONGER}\n{OSLO}", ["Paris", "Paris, France", "Oslo"]),
        (f"{LONGER}\n{PARIS}", ["Paris, France", "Paris"]),
    ],
)
async def test_a_forced_call_is_not_repeated(reply: str, cities: list[str], piece_chars: int) -> None:
    model = ScriptedModel([reply], piece_chars=piece_chars)
    ran = await run(model, asked(functions=(WEATHER,), tool_choice="required"))
    assert [json.loads(each.arguments)["city"] for each in ran.calls] == cities
    assert ran.finished.status == "completed" and all(each.status == "completed" for each in ran.calls)


async def test_a_repeated_call_is_the_end_of_its_step() -> None:
    model = ScriptedModel([PARIS * 16], piece_chars=1)
    ran = await run(model, asked(functions=(WEATHER,), tool_choice="required"))
    assert len(model.generations[0].ids) < 2 * len(PARIS) + 2
    assert [len(message.tool_calls) for message in model.remembered] == [1]
    assert model.spelled == [tuple(range(len(PARIS)))]  # without those of the repeated call
    assert ran.finished.usage.output_tokens < 2 * len(PARIS)


async def test_calls_of_the_models_own_accord_may_be_equal() -> None:
    ran = await run(ScriptedModel([PARIS * 3]), asked(functions=(WEATHER,)))
    assert len(ran.calls) == 3


async def test_a_call_is_required_until_one_is_complete() -> None:
    model = ScriptedModel(["<tool_call>{x", "<tool_call>{x", PARIS])
    ran = await run(model, asked(functions=(WEATHER,), tool_choice="required"))
    assert [each.sampling.grammar is model.grammars[0] for each in model.generations] == [True, True, True]
    assert [each.arguments for each in ran.calls if each.runs] == ['{"city": "Paris"}']


async def test_a_named_tool_is_called_once() -> None:
    ran = await run(ScriptedModel([PARIS + OSLO]), asked(functions=(WEATHER,), tool_choice="weather"))
    assert [each.arguments for each in ran.calls] == ['{"city": "Paris"}']


@pytest.mark.parametrize("template", ["", "[TOOL_CALLS]", "<function=", "<|tool_call>", "<|channel|>"])
async def test_a_forced_call_that_was_cut_off_leaves_no_text(template: str) -> None:
    replies = {
        "": PARIS,
        "[TOOL_CALLS]": "[TOOL_CALLS]weather[ARGS]{}",
        "<function=": "<tool_call>\n<function=weather>",
        "<|tool_call>": "<|tool_call>call:weather{}",
        "<|channel|>": " to=functions.weather<|channel|>commentary<|message|>{}",
    }
    for cut in range(1, 12):
        model = ScriptedModel([replies[template]], chat_template=template, piece_chars=1)
        turn = asked(functions=(WEATHER,), tool_choice="required", sampling=Sampling(max_tokens=cut))
        ran = await run(model, turn)
        assert (ran.answer, ran.calls, ran.finished.status) == ("", [], "incomplete"), cut


async def test_the_model_tries_again_after_a_broken_call_of_the_callers_function() -> None:
    broken = '<tool_call>{"name": "weather", "arguments": {x}}'
    ran = await run(ScriptedModel([broken, call("weather")]), asked(functions=(WEATHER,)))
    assert [(each.name, each.status) for each in ran.calls] == [("weather", "failed"), ("weather", "completed")]
    assert len(ran.results) == 1 and "could not be read" in ran.results[0]
    assert [each.arguments for each in ran.finished.open_calls({"weather"})] == ["{}"]
