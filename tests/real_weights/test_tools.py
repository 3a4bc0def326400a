"""Tools under every template: the model sees them, calls only them, and the arguments are what the schema says."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jsonschema
import pytest
from anthropic import Anthropic
from openai import BadRequestError, OpenAI

from tests.real_weights.behaviours import MODELS, asking
from tests.real_weights.test_orders import prompt_of

LONG_NAME = "mcp__" + "_".join(["server"] * 9) + "__look_up_a_word_in_the_dictionary"  # 100 characters
CODE = {"type": "string", "pattern": "^[0-9]{5}$"}
# Of all of them, the only values that begin with a digit are strings. So small a model mixes up names that tell kinds
# of strings, and counts on after ordinals.
STRINGS: Mapping[str, Any] = {
    "home": CODE,
    "work": {"anyOf": [CODE, {"type": "null"}]},
    "bank": {"type": ["string", "null"], "pattern": "^[0-9]{5}$"},
    "shop": {"enum": ["77812", "90210"]},
    "school": {"const": "77812"},
    "park": {"$ref": "#/$defs/code"},
    "beach": {"anyOf": [{"$ref": "#/$defs/code"}, {"type": "null"}]},
}
CALL_LIKELY = {"logit_bias": {"7639": -100}}  # without this token, <tool_call> is what is like <tool_response>
CALLERS = ("hermes", "coder")  # a template for each format of calls
# Those whose calls are JSON, of each prompt one: to "strict", which shows tools as "hermes" does, results are left.
FORCED = ("own", "hermes", "alternating", "thinking")
# Where it is what the worker makes of a call, one of them asks; in `make test-long`, all do.
ASKING = pytest.mark.parametrize(
    "models", [pytest.param(["hermes"], id="one"), pytest.param(FORCED, id="all", marks=pytest.mark.long)]
)


def tool(name: str = "look_up", strict: bool = False, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties or {"word": {"type": "string", "maxLength": 12}},
        "required": [*(properties or ["word"])],
        "additionalProperties": False,
        "$defs": {"code": CODE},
    }
    described = {"name": name, "description": f"Says what {name} knows.", "parameters": parameters, "strict": strict}
    return {"type": "function", "function": described}


WORDS, CITIES = tool("look_up"), tool("get_weather", city={"type": "string", "maxLength": 12})
BOTH = [WORDS, CITIES]
FOX: list[Any] = [{"role": "user", "content": "Look up the word fox."}]
QUICK: dict[str, Any] = {"messages": FOX, "temperature": 0, "reasoning_effort": "none"}


def looked_up(name: str, parameters: Iterable[str], values: Sequence[str]) -> list[Any]:
    """A conversation in which all values but the last were looked up with a tool, so the model goes on in this way."""
    messages: list[Any] = []
    for number, value in enumerate(values):
        function = {"name": name, "arguments": json.dumps(dict.fromkeys(parameters, value))}
        messages += [
            {"role": "user", "content": f"Look up {value}."},
            {"role": "assistant", "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": f"call_{number}", "content": f"{value} is known."},
        ]
    return messages[:-2]


def each_answer(client: OpenAI, models: Sequence[str], **asked: Any) -> Iterator[tuple[str, Any]]:
    """The greedy answers of the models that take these tools. One that does not says so by the name of the field."""
    for model in models:
        try:
            answer = client.chat.completions.create(model=model, **(QUICK | asked))
        except BadRequestError as error:
            assert error.param and error.param.startswith("tool"), (model, str(error))
            assert model not in CALLERS
        else:
            yield model, answer.choices[0]


def described(name: str = "look_up") -> dict[str, Any]:
    """The tool in the format of the Messages API."""
    return {"name": name, "input_schema": WORDS["function"]["parameters"]}


def told(anthropic: Anthropic, model: str, **asked: Any) -> Any:
    asked = {"messages": FOX, "max_tokens": 120, "extra_body": {"temperature": 0}, **asked}
    return anthropic.messages.create(model=model, **asked)


def calls_of(choice: Any) -> list[tuple[str, Any]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls or []]


@pytest.mark.parametrize("model", MODELS)
def test_a_model_is_shown_the_tools_or_they_are_refused_by_name(client: OpenAI, model: str) -> None:
    try:
        prompt = prompt_of(client, model, FOX, BOTH)
    except BadRequestError as error:
        assert error.param and error.param.startswith("tools")
        return
    for shown in ("look_up", "get_weather", "Says what look_up knows.", '"word"', '"city"', "maxLength"):
        assert shown in prompt


@ASKING
def test_a_named_choice_is_one_call_of_that_tool(client: OpenAI, models: Sequence[str]) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    for model, choice in each_answer(client, models, tools=BOTH, tool_choice=named, max_tokens=120):
        (call,) = calls_of(choice)
        assert call[0] == "get_weather", model
        jsonschema.validate(call[1], CITIES["function"]["parameters"])


def test_a_named_choice_is_one_call_in_the_other_apis(client: OpenAI, anthropic: Anthropic) -> None:
    asked: Any = {"input": FOX, "temperature": 0, "max_output_tokens": 120, "store": False}
    asked |= {"tools": [{"type": "function", **WORDS["function"]}]}
    asked |= {"tool_choice": {"type": "function", "name": "look_up"}}
    response = client.responses.create(model="strict", **asked)
    assert [(item.type, item.name) for item in response.output] == [("function_call", "look_up")]
    message = told(anthropic, "strict", tools=[described()], tool_choice={"type": "tool", "name": "look_up"})
    assert [(block.type, block.name) for block in message.content] == [("tool_use", "look_up")]
    assert message.stop_reason == "tool_use"


@asking("alternating", "thinking", of=FORCED)  # others are forced below and above
def test_required_calls_end_by_themselves_and_do_not_repeat(client: OpenAI, model: str) -> None:
    for _, choice in each_answer(client, [model], tools=BOTH, tool_choice="required", max_tokens=200):
        calls = calls_of(choice)
        assert choice.finish_reason == "tool_calls" and calls
        assert len({json.dumps(call) for call in calls}) == len(calls), calls
        assert {name for name, _ in calls} <= {"look_up", "get_weather"}


@ASKING
def test_one_call_at_a_time_is_one_call(client: OpenAI, models: Sequence[str]) -> None:
    for model, choice in each_answer(
        client, models, tools=BOTH, tool_choice="required", parallel_tool_calls=False, max_tokens=120
    ):
        assert len(calls_of(choice)) == 1, model


@ASKING
@pytest.mark.parametrize("tokens", [1, 2, 3, 5])
def test_a_call_that_is_cut_shows_none_of_its_markup(client: OpenAI, tokens: int, models: Sequence[str]) -> None:
    for model, choice in each_answer(client, models, tools=BOTH, tool_choice="required", max_tokens=tokens):
        assert (choice.message.content or "", choice.finish_reason) == ("", "length"), model


@asking("hermes", of=CALLERS)
def test_a_tool_that_is_no_longer_offered_is_not_called(client: OpenAI, model: str) -> None:
    asked = looked_up("create_token", ["word"], ["cat", "dog", "hen", "fox"])
    ((_, choice),) = each_answer(client, [model], messages=asked, tools=BOTH, max_tokens=40, **CALL_LIKELY)
    names = {name for name, _ in calls_of(choice)}
    assert names and names <= {"look_up", "get_weather"}


@asking("coder", of=CALLERS)  # whose strings have no quotes
def test_strict_arguments_keep_their_type(client: OpenAI, model: str) -> None:
    asked = looked_up("look_up", STRINGS, ["10018", "77812"])
    ((_, choice),) = each_answer(
        client, [model], messages=asked, tools=[tool(strict=True, **STRINGS)], max_tokens=200, **CALL_LIKELY
    )
    assert calls_of(choice) == [("look_up", dict.fromkeys(STRINGS, "77812"))]


def test_arguments_of_other_types_keep_theirs_too(client: OpenAI) -> None:
    kinds: dict[str, Any] = {
        "count": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 9},
        "share": {"type": "number", "minimum": 0, "maximum": 1},
        "sure": {"type": "boolean"},
        "words": {"type": "array", "items": {"enum": ["fox", "hen"]}, "minItems": 2, "maxItems": 2},
        "place": {"type": "object", "properties": {"page": {"type": "integer", "minimum": 1, "maximum": 99}}},
    }
    strict = tool(strict=True, **kinds)
    ((_, choice),) = each_answer(client, ["hermes"], tools=[strict], tool_choice="required", max_tokens=200)
    ((_, arguments),) = calls_of(choice)
    jsonschema.validate(arguments, strict["function"]["parameters"])


def test_a_tool_with_a_long_name_can_be_called(client: OpenAI, anthropic: Anthropic) -> None:
    asked: Any = {"messages": looked_up(LONG_NAME, ["word"], ["cat", "dog", "fox"]), "tools": [tool(LONG_NAME)]}
    for model, choice in each_answer(client, ["coder"], max_tokens=120, **asked, **CALL_LIKELY):
        assert [name for name, _ in calls_of(choice)] == [LONG_NAME], model
    message = told(anthropic, "hermes", tools=[described(LONG_NAME)], tool_choice={"type": "tool", "name": LONG_NAME})
    assert [block.name for block in message.content if block.type == "tool_use"] == [LONG_NAME]


def test_empty_arguments_in_the_history_are_an_empty_object(client: OpenAI) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": ""}}
    messages = [
        *FOX,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "It is red."},
    ]
    assert '"arguments": {}}' in prompt_of(client, "hermes", messages, [tool()])


def test_a_call_can_be_forced_where_calls_are_no_json(client: OpenAI) -> None:
    ((_, choice),) = each_answer(client, ["coder"], tools=BOTH, tool_choice="required", max_tokens=120)
    assert {name for name, _ in calls_of(choice)} & {"look_up", "get_weather"}


def test_a_loop_of_tools_comes_to_an_answer_in_both_clients(client: OpenAI, anthropic: Anthropic) -> None:
    model = "strict"
    ((_, choice),) = each_answer(client, [model], tools=[WORDS], tool_choice="required", max_tokens=120)
    results = [{"role": "tool", "tool_call_id": call.id, "content": "It is red."} for call in choice.message.tool_calls]
    messages = [*FOX, choice.message.to_dict(), *results]
    ((_, answer),) = each_answer(client, [model], messages=messages, tools=[WORDS], tool_choice="none", max_tokens=16)
    assert answer.message.content and not answer.message.tool_calls
    message = told(anthropic, model, tools=[described()], tool_choice={"type": "any"})
    found = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "It is red."}
        for block in message.content
        if block.type == "tool_use"
    ]
    said = [{"role": "assistant", "content": message.content}, {"role": "user", "content": found}]
    last = told(anthropic, model, messages=[*FOX, *said], tools=[described()], tool_choice={"type": "none"})
    assert [block.type for block in last.content] == ["text"]
