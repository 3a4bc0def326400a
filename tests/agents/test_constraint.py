"""To which grammar a step is held, and how an answer in a format is read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.agent import Agent
from agents.errors import InvalidTurn
from agents.events import EventList
from agents.function_tool import FunctionTool
from agents.message import FunctionCall, Message
from agents.parser.dialect import Dialect, Format
from agents.parser.markup import Text, Thought, ThoughtMarks
from agents.toolbox import SCHEMA_CHARS_MAX, Toolbox
from agents.turn import AnswerFormat, Turn
from inference.config import EngineConfig
from inference.errors import InvalidSchema
from inference.generation import Sampling
from inference.model import ChatModel
from inference.prompt import Segment
from inference.trace import Trace
from tests.agents.turns import Ran, asked, call, check_order, double, run
from tests.scripted import ScriptedGrammar, ScriptedModel

CALL = "<tool_call>"
NUMBER = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"]}
AS_NUMBER = AnswerFormat(NUMBER, "text.format")
SAVE = FunctionTool("save", "Save a number.", NUMBER, strict=True)
LOOSE = FunctionTool("save", "Save a number.", NUMBER)


async def grammars(turn: Turn, *replies: str, template: str = "", trigger: str = "") -> list[str]:
    """The grammars of the steps that are held to one from their beginning, or from a mark on."""
    model = ScriptedModel(replies or ("Hi",), chat_template=template, context_length=1_000_000)
    await run(model, turn, [double])
    held = [generation.sampling for generation in model.generations]
    grammars = [sampling.grammar for sampling in held if isinstance(sampling.grammar, ScriptedGrammar)]
    return [grammar.text for grammar in grammars if grammar.trigger == trigger]


async def test_a_turn_that_asks_for_nothing_is_free() -> None:
    for turn in (asked(), asked(functions=(LOOSE,), tool_choice="none")):
        assert await grammars(turn) == await grammars(turn, trigger=CALL) == []


async def test_calls_that_nobody_asked_for_are_held_from_their_mark_on() -> None:
    turn = asked(functions=(LOOSE,), server_tools=("double",))
    assert await grammars(turn) == []
    for grammar in await grammars(turn, call("double", x=2), "4", trigger=CALL):
        assert "save" in grammar and "double" in grammar
    assert await grammars(turn, template="[TOOL_CALLS]", trigger=CALL) == []


@pytest.mark.parametrize(
    ("template", "mark"),
    [
        ("<|python_tag|>", "<|python_tag|>"),
        ("[TOOL_CALLS]", "[TOOL_CALLS]"),
        ("<|tool_call>", "<|tool_call>"),
        ("<start_function_call>", "<start_function_call>"),
        ("<|channel|>", "<|channel|>"),
        ("<tool_call> <function=", "<function="),
    ],
)
async def test_calls_of_other_dialects_are_held_from_their_own_mark_on(template: str, mark: str) -> None:
    for function in (SAVE, LOOSE):
        turn = asked(functions=(function,), server_tools=("double",))
        (grammar,) = await grammars(turn, template=template, trigger=mark)
        assert function.name in grammar and "double" in grammar
        assert await grammars(turn, template=template) == []


@pytest.mark.parametrize(
    ("parameters", "count"),
    [
        ({"not": {}}, 1),  # as any object
        ({"enum": [{"n": "long " * SCHEMA_CHARS_MAX}]}, 1),
        ({"type": "object", "properties": {f"p{i}": NUMBER for i in range(90)}}, 1),
        ({"enum": ["long " * (SCHEMA_CHARS_MAX // 6)]}, 20),  # no schema too large, but all of them together
    ],
)
async def test_what_cannot_be_held_to_a_schema_that_nobody_insists_on_is_held_to_its_name(
    parameters: dict[str, Any], count: int
) -> None:
    functions = [FunctionTool(f"save_{i}", "", parameters) for i in range(count)]
    (grammar,) = await grammars(asked(functions=tuple(functions)), trigger=CALL)
    assert f"save_{count - 1}" in grammar and len(grammar) < SCHEMA_CHARS_MAX


async def test_a_forced_call_binds_the_first_step_only() -> None:
    turn = asked(server_tools=("double",), tool_choice="required")
    (grammar,) = await grammars(turn, call("double", x=2), "4")
    assert "double" in grammar and "Hi" not in grammar


async def test_a_named_tool_is_the_only_one_that_can_be_called() -> None:
    (grammar,) = await grammars(asked(functions=(LOOSE,), server_tools=("double",), tool_choice="double"))
    assert "double" in grammar and "save" not in grammar


async def test_a_strict_function_binds_its_calls_and_leaves_the_text_free() -> None:
    (grammar,) = await grammars(asked(functions=(SAVE,), server_tools=("double",)))
    assert "save" in grammar and "double" in grammar


async def test_a_format_binds_every_step_and_is_told_to_the_model() -> None:
    model = ScriptedModel((call("double", x=2), '{"n": 4}'))
    ran = await run(model, asked(server_tools=("double",), answer_format=AS_NUMBER), [double])
    assert all(generation.sampling.grammar for generation in model.generations) and len(model.generations) == 2
    assert len(model.grammars) == 1 and ran.answer == '{"n": 4}'
    assert all("Answer with JSON only" in prompt and '"maximum": 9' in prompt for prompt in model.prompts)


async def test_marks_within_a_formatted_answer_are_data() -> None:
    said = json.dumps({"n": "<tool_call>{</tool_call> <tool_response>"})
    ran = await run(ScriptedModel((said,)), asked(server_tools=("double",), answer_format=AS_NUMBER), [double])
    assert ran.answer == said


async def test_a_dialect_that_cannot_be_held_to_a_format_refuses_it() -> None:
    for template, turn in (
        ("<|channel|>", asked(answer_format=AS_NUMBER)),
        ("[TOOL_CALLS]", asked(answer_format=AS_NUMBER, functions=(SAVE,))),
    ):
        with pytest.raises(InvalidTurn) as refused:
            await grammars(turn, template=template)
        assert refused.value.param == "text.format"
    assert len(await grammars(asked(answer_format=AS_NUMBER), template="[TOOL_CALLS]")) == 1


@pytest.mark.parametrize("mark", ["[TOOL_CALLS]", "<function=", "<|tool_call>", "<|python_tag|>", "<|channel|>"])
async def test_a_call_is_forced_in_every_dialect(mark: str) -> None:
    for choice in ("required", SAVE.name):
        assert len(await grammars(asked(functions=(SAVE,), tool_choice=choice), template=mark)) == 1


async def test_a_schema_that_cannot_be_held_is_refused_before_the_turn_starts() -> None:
    with pytest.raises(InvalidSchema, match="not"):
        await grammars(asked(answer_format=AnswerFormat({"not": {}}, "text.format")))


@given(st.lists(st.integers(1, 12)))
def test_a_formatted_answer_is_read_alike_however_it_is_cut(cuts: Sequence[int]) -> None:
    text = '<think>hm {</think>\n{"a": "<think>x</think> <tool_call>"}'
    parser = Dialect(Format.HERMES, ThoughtMarks("<think>", "</think>")).parser()
    parser.formatted = True
    pieces, at = [], 0
    for cut in cuts:
        pieces.append(text[at : at + cut])
        at += cut
    events = [event for piece in [*pieces, text[at:]] for event in parser.feed(piece)] + parser.finish()
    assert "".join(e.text for e in events if isinstance(e, Thought)) == "hm {"
    assert "".join(e.text for e in events if isinstance(e, Text)).strip() == '{"a": "<think>x</think> <tool_call>"}'


@pytest.mark.parametrize("format", [Format.MISTRAL, Format.LLAMA, Format.QWEN_CODER])
def test_nothing_is_lost_where_a_formatted_answer_begins_like_a_mark(format: Format) -> None:
    parser = Dialect(format, ThoughtMarks("[THINK]", "[/THINK]")).parser()
    parser.formatted = True
    events = [event for character in "[[1, 2], [3]]" for event in parser.feed(character)] + parser.finish()
    assert "".join(event.text for event in events if isinstance(event, Text)) == "[[1, 2], [3]]"


@pytest.fixture(scope="module")
async def model() -> AsyncIterator[ChatModel]:
    model = await asyncio.to_thread(ChatModel.load, EngineConfig())
    await model.start()
    yield model
    await model.close()


async def bundled(model: ChatModel, turn: Turn) -> Ran:
    told = EventList()
    await Agent(model, None, Toolbox([double])).run(turn, Trace(), told)
    check_order(told.events)
    return Ran(told.events, Trace())


@pytest.mark.parametrize("seed", range(5))
async def test_the_bundled_model_answers_in_the_format(model: ChatModel, seed: int) -> None:
    ran = await bundled(model, asked("hello", answer_format=AS_NUMBER, sampling=Sampling(seed=seed, max_tokens=64)))
    (message,) = ran.output
    assert isinstance(message, Message) and 0 <= json.loads(message.text)["n"] <= 9


@pytest.mark.parametrize("seed", range(5))
async def test_the_bundled_model_makes_a_forced_strict_call(model: ChatModel, seed: int) -> None:
    sampling = Sampling(seed=seed, max_tokens=200)
    turn = asked("hello", functions=(SAVE,), tool_choice="save", parallel_tool_calls=False, sampling=sampling)
    (item,) = (await bundled(model, turn)).output
    assert isinstance(item, FunctionCall) and item.name == "save" and 0 <= json.loads(item.arguments)["n"] <= 9


@pytest.mark.parametrize("seed", range(5))
async def test_the_bundled_model_calls_nothing_that_is_not_there(model: ChatModel, seed: int) -> None:
    """However wildly it is drawn from: every turn is made to begin with a call."""
    opening = model.encode([Segment(CALL, trusted=True)])[-1]
    sampling = Sampling(seed=seed, temperature=2.0, max_tokens=300, logit_bias={opening: 100.0})
    ran = await bundled(model, asked("hello", functions=(LOOSE,), parallel_tool_calls=False, sampling=sampling))
    (item,) = (item for item in ran.output if isinstance(item, FunctionCall))
    assert item.name == "save" and 0 <= json.loads(item.arguments)["n"] <= 9
