"""What a turn without tools does, what it refuses, and how it fails."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from agents.errors import InvalidTurn
from agents.events import ItemFinished, ItemStarted, TextDelta
from agents.function_tool import FunctionTool
from agents.message import FunctionCall, FunctionCallOutput, Message
from agents.prompt import FAST_ITEMS_MAX, FAST_JSON_CHARS_MAX
from agents.prompt_builder import ENCODE_CHARS_MAX
from agents.turn import Turn
from inference.errors import EngineStopped, PromptTooLong, QueueFull
from inference.generation import ANY_TERMS, Delta, Finish, Sampling, Terms
from inference.prompt import ChatMessage, PromptTokens, Rendered, Segment
from tests.agents.turns import TENANT, asked, boom, call, double, run
from tests.scripted import ScriptedGeneration, ScriptedModel


async def test_an_answer_is_one_message_that_streams() -> None:
    ran = await run(ScriptedModel(["Hello there."]), asked())
    assert [type(item) for item in ran.output] == [Message]
    assert ran.answer == "Hello there."
    assert ran.finished.status == "completed"
    assert len([event for event in ran.events if isinstance(event, TextDelta)]) > 1


async def test_a_prompt_without_a_template_is_continued_as_it_stands() -> None:
    model = ScriptedModel([" \n<tool_call> in\nOslo. \n"], piece_chars=2)
    ran = await run(model, Turn(TENANT, (), prompt=(Segment("It rains", trusted=False),)))
    assert (model.prompts, ran.answer) == (["It rains"], " \n<tool_call> in\nOslo. \n")
    assert ran.finished.status == "completed" and model.remembered == []


async def test_the_stop_string_that_ended_an_answer_is_told() -> None:
    ran = await run(ScriptedModel(["One, two, three."]), asked(stop=("three", ", ")))
    assert (ran.answer, ran.finished.stop_string) == ("One", ", ")
    ran = await run(ScriptedModel(["One."]), asked(stop=("three",)))
    assert (ran.answer, ran.finished.stop_string) == ("One.", None)


async def test_an_empty_answer_is_still_a_message() -> None:
    ran = await run(ScriptedModel(["  \n"]), asked())
    assert [item.text for item in ran.output if isinstance(item, Message)] == [""]


async def test_white_space_around_an_answer_is_not_shown() -> None:
    ran = await run(ScriptedModel(["\n\n Hello \n there. \n"]), asked())
    assert ran.answer == "Hello \n there."


async def test_what_cannot_be_stored_is_replaced() -> None:
    ran = await run(ScriptedModel(["a\0b"]), asked())
    assert ran.answer == "a\N{REPLACEMENT CHARACTER}b"


async def test_the_answer_is_remembered_as_it_will_be_rendered() -> None:
    model = ScriptedModel(["\nHello."])
    await run(model, asked())
    assert model.remembered == [ChatMessage("assistant", "Hello.")]


async def test_the_white_space_before_a_stop_string_belongs_to_the_answer() -> None:
    ran = await run(ScriptedModel(["I am.\n  END"]), asked(stop=("END",)))
    assert ran.answer == "I am.\n  " == "".join(event.text for event in ran.events if isinstance(event, TextDelta))
    ran = await run(ScriptedModel(["I am.\n  "]), asked(stop=("END",)))
    assert ran.answer == "I am."


async def test_an_answer_with_stop_strings_is_not_remembered() -> None:
    model = ScriptedModel(["Hello."])
    await run(model, asked(stop=("END",)))
    assert model.remembered == []


async def test_usage_counts_what_the_model_read_and_wrote() -> None:
    ran = await run(ScriptedModel(["Hello."], piece_chars=1), asked())
    assert ran.finished.usage.output_tokens == len("Hello.")
    assert ran.finished.usage.input_tokens > 0


async def test_an_answer_that_is_cut_off_is_incomplete() -> None:
    ran = await run(ScriptedModel(["A long answer."]), asked(sampling=Sampling(max_tokens=2)))
    assert ran.finished.status == "incomplete"
    assert (ran.answer, ran.output[-1].status) == ("A long"[:6], "incomplete")


async def test_no_tools_are_shown_when_none_may_be_called() -> None:
    model = ScriptedModel([call("double", x=1) + "Hello."])
    ran = await run(model, asked(server_tools=("double",), tool_choice="none"), [double])
    assert "double" not in model.prompts[0]
    assert [type(item) for item in ran.output] == [Message]
    assert ran.answer == "Hello."


async def test_an_answer_that_is_nothing_but_a_call_nobody_offered_is_told_as_it_was_written() -> None:
    written = call("double", x=1)
    ran = await run(ScriptedModel([written], piece_chars=3), asked())
    assert [type(item) for item in ran.output] == [Message]
    assert ran.answer == written


async def test_a_named_choice_offers_that_tool_alone() -> None:
    model = ScriptedModel(["Hello."])
    ran = await run(model, asked(server_tools=("double", "boom"), tool_choice="double"), [double, boom])
    assert "Call the tool double" in model.prompts[0]
    assert "boom" not in model.prompts[0]
    assert ran.finished.status == "completed"


@pytest.mark.parametrize(
    ("turn", "param"),
    [
        (asked(server_tools=("nope",)), "tools"),
        (asked(server_tools=("double", "double")), "tools"),
        (asked(server_tools=("double",), functions=(FunctionTool("double", "", {}),)), "tools"),
        (asked(tool_choice="required"), "tool_choice"),
        (asked(tool_choice="double"), "tool_choice"),
        (Turn(TENANT, (FunctionCallOutput("c", "x"),)), "input"),
        (Turn(TENANT, ()), "input"),
    ],
)
async def test_a_turn_that_contradicts_itself_is_refused_before_it_starts(turn: Turn, param: str) -> None:
    model = ScriptedModel(["Hello."])
    with pytest.raises(InvalidTurn) as refused:
        await run(model, turn, [double])
    assert refused.value.param == param
    assert model.prompts == []


async def failing(error: Exception, at_call: int) -> Any:
    class Failing(ScriptedModel):
        def generate(self, *args: Any, **options: Any) -> ScriptedGeneration:
            if len(self.prompts) == at_call:
                raise error
            return super().generate(*args, **options)

    return await run(Failing([call("double", x=1)]), asked(server_tools=("double",)), [double])


@pytest.mark.parametrize("error", [PromptTooLong("too long"), QueueFull("busy", 1.0), EngineStopped("bye")])
async def test_what_refuses_the_first_step_is_raised(error: Exception) -> None:
    with pytest.raises(type(error)):
        await failing(error, 0)


async def test_what_refuses_a_later_step_fails_the_turn() -> None:
    ran = await failing(PromptTooLong("too long"), 1)
    assert (ran.finished.status, ran.finished.error_code) == ("failed", "context_length_exceeded")
    assert ran.finished.error_message == "too long"
    assert ran.results == ["2"]


async def test_an_unforeseen_failure_ends_the_turn_without_its_details(caplog: pytest.LogCaptureFixture) -> None:
    ran = await failing(RuntimeError("the secret is 42"), 1)
    assert (ran.finished.status, ran.finished.error_code) == ("failed", "server_error")
    assert "42" not in (ran.finished.error_message or "")
    assert "the secret is 42" in caplog.text


@pytest.mark.parametrize(("finish", "status"), [(Finish.CANCELLED, "cancelled"), (Finish.ERROR, "failed")])
async def test_an_answer_that_breaks_off_leaves_an_incomplete_item(finish: Finish, status: str) -> None:
    class Broken(ScriptedGeneration):
        async def __aiter__(self) -> AsyncIterator[Delta]:
            yield Delta("Half an ans", 3)
            self.finish = finish

    class Breaking(ScriptedModel):
        def generate(self, prompt: Any, sampling: Sampling, terms: Terms = ANY_TERMS) -> ScriptedGeneration:
            return Broken("", len(prompt), sampling, 1)

    ran = await run(Breaking([""]), asked())
    assert ran.finished.status == status
    assert [(item.text, item.status) for item in ran.output if isinstance(item, Message)] == [
        ("Half an ans", "incomplete")
    ]


async def test_an_item_starts_only_when_there_is_something_to_show() -> None:
    model = ScriptedModel([f"\n\n{call('double', x=1)}\n", "Two."])
    ran = await run(model, asked(server_tools=("double",)), [double])
    started = [event.item for event in ran.events if isinstance(event, ItemStarted)]
    assert [type(item) for item in started] == [FunctionCall, FunctionCallOutput, Message]
    assert len([event for event in ran.events if isinstance(event, ItemFinished)]) == 3


async def test_the_model_is_asked_for_the_tenant_of_the_turn_alone() -> None:
    model = ScriptedModel([call("double", x=1), "Two."])
    await run(model, asked(server_tools=("double",)), [double])
    assert model.salts == {str(TENANT)}


async def test_a_long_input_is_tokenised_beside_the_event_loop() -> None:
    threads: list[int] = []

    class Watching(ScriptedModel):
        def encode(self, segments: Sequence[Segment], *, salt: str = "") -> PromptTokens:
            threads.append(threading.get_ident())
            return super().encode(segments, salt=salt)

    await run(Watching(["short"]), asked("hello"))
    await run(Watching(["long"], context_length=10**6), asked("x" * ENCODE_CHARS_MAX))
    assert (threads[0] == threading.get_ident()) and threads[1] != threading.get_ident()


@pytest.mark.parametrize(
    "long",
    [
        Turn(TENANT, tuple(Message("user", "hello") for _ in range(FAST_ITEMS_MAX + 1))),
        asked("hello", functions=tuple(FunctionTool(f"f{n}", "x" * 1000, {}) for n in range(20))),
        asked("hello", functions=(FunctionTool("f", "", {"type": "object", "enum": ["x" * FAST_JSON_CHARS_MAX]}),)),
        Turn(
            TENANT,
            (
                Message("user", "hello"),
                FunctionCall("call_1", "f", "[" * FAST_JSON_CHARS_MAX + "1"),
                FunctionCallOutput("call_1", "2"),
            ),
        ),
    ],
    ids=["items", "functions", "schema", "arguments"],
)
async def test_a_long_prompt_is_rendered_beside_the_event_loop(long: Turn) -> None:
    threads: list[int] = []

    class Watching(ScriptedModel):
        def render(self, *arguments: Any, **options: Any) -> Rendered:
            threads.append(threading.get_ident())
            return super().render(*arguments, **options)

    await run(Watching(["short"]), asked("hello"))
    await run(Watching(["long"], context_length=10**6), long)
    assert threads[0] == threading.get_ident()
    assert threads[1:] and threading.get_ident() not in threads[1:]
