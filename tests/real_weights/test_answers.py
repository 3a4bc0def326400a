"""Answers of real weights: where they end, what is reasoning in them, and that they come the same in every way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
from anthropic import Anthropic
from openai import OpenAI

from tests.real_weights.conftest import NARROW, NARROW_CONTEXT
from tests.real_weights.test_tools import WORDS, calls_of, tool

SEA: list[Any] = [{"role": "user", "content": "Describe the sea in two sentences."}]
EXACT: Any = {"extra_headers": {"x-firsttoken-deterministic": "true"}}  # the same prompt, the same bytes
TOKENS = 24
NODE = {
    "type": "object",
    "properties": {"name": {"enum": ["fox", "hen"]}, "age": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def of_nodes(first: Any, second: Any, **more: Any) -> dict[str, Any]:
    properties = {"left": first, "right": second}
    return {
        "type": "object",
        "properties": properties,
        "required": ["left", "right"],
        "additionalProperties": False,
        **more,
    }


# As generators of schemas write what two properties have in common.
SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "a reference into a list": of_nodes({"anyOf": [{"type": "null"}, NODE]}, {"$ref": "#/properties/left/anyOf/1"}),
    "a reference into a tuple": of_nodes(
        {"type": "array", "prefixItems": [{"type": "boolean"}, NODE], "items": False, "minItems": 2},
        {"$ref": "#/properties/left/prefixItems/1"},
    ),
    "a percent-encoded reference": of_nodes(
        *[{"$ref": "#/definitions/Page%3CUser%3E"}] * 2, definitions={"Page<User>": NODE}
    ),
    "an anchor": of_nodes(*[{"$ref": "#node"}] * 2, **{"$defs": {"node": {"$anchor": "node", **NODE}}}),
    "an absolute reference": of_nodes(
        *[{"$ref": "https://example.com/pair#/$defs/node"}] * 2,
        **{"$id": "https://example.com/pair", "$defs": {"node": NODE}},
    ),
    "a format of a number": of_nodes(*[{"type": "integer", "format": "int32", "minimum": 0, "maximum": 9}] * 2),
}
ASKED = ("a reference into a tuple", "an absolute reference")  # of these, by `make test`


def chat(client: OpenAI, model: str, **asked: Any) -> Any:
    asked = {"messages": SEA, "temperature": 0, "max_tokens": TOKENS, **EXACT, **asked}
    return client.chat.completions.create(model=model, **asked).choices[0]


def message(anthropic: Anthropic, model: str, **asked: Any) -> Any:
    asked = {"messages": SEA, "max_tokens": TOKENS, "extra_body": {"temperature": 0}, **EXACT, **asked}
    return anthropic.messages.create(model=model, **asked)


def told_in(block: Any) -> tuple[str, str]:
    return block.type, block.thinking if block.type == "thinking" else block.text


def word_in(text: str) -> str:
    """One from the middle of the text, as a client could choose it to stop at."""
    words = [word for word in text.split() if word.isalpha()]
    return words[len(words) // 2]


# --- stop strings ---


def test_a_stop_string_ends_the_text_before_it(client: OpenAI, anthropic: Anthropic) -> None:
    text = chat(client, "own").message.content
    stop = word_in(text)
    stopped = chat(client, "own", stop=[stop])
    assert (stopped.message.content, stopped.finish_reason) == (text[: text.index(stop)], "stop")
    last = message(anthropic, "own", stop_sequences=[stop])
    assert (last.content[0].text, last.stop_reason) == (text[: text.index(stop)], "stop_sequence")
    assert last.stop_sequence == stop


def test_a_stop_string_in_the_reasoning_stops_nothing(client: OpenAI, anthropic: Anthropic) -> None:
    whole, told = chat(client, "thinking"), message(anthropic, "thinking")
    stop = word_in(whole.message.reasoning_content)
    stopped = chat(client, "thinking", stop=[stop])
    assert (stopped.message, stopped.finish_reason) == (whole.message, whole.finish_reason)
    last = message(anthropic, "thinking", stop_sequences=[stop])
    assert last.stop_reason == told.stop_reason
    assert [told_in(block) for block in last.content] == [told_in(block) for block in told.content]


def test_a_stop_string_in_the_markup_of_a_call_stops_nothing(client: OpenAI) -> None:
    stops = ["<", "\n", "look_up", '"', "arguments"]
    choice = chat(client, "hermes", tools=[WORDS], tool_choice="required", stop=stops, max_tokens=120)
    assert choice.finish_reason == "tool_calls" and {name for name, _ in calls_of(choice)} == {"look_up"}


def test_a_stop_string_in_the_arguments_stops_nothing(client: OpenAI) -> None:
    constant = tool(strict=True, q={"const": "alpha beta"})
    choice = chat(client, "hermes", tools=[constant], tool_choice="required", stop=["beta"], max_tokens=120)
    assert {(name, *arguments.values()) for name, arguments in calls_of(choice)} == {("look_up", "alpha beta")}


# --- lengths ---


def test_an_answer_ends_at_the_limit_of_the_client(client: OpenAI, anthropic: Anthropic) -> None:
    for model in ("own", "thinking"):
        choice = chat(client, model, extra_body={"ignore_eos": True}, max_tokens=8)
        assert choice.finish_reason == "length", model
    last = message(anthropic, "own", max_tokens=8, extra_body={"temperature": 0, "ignore_eos": True})
    assert (last.stop_reason, last.usage.output_tokens) == ("max_tokens", 8)


def test_an_answer_may_have_what_the_context_has_left(client: OpenAI) -> None:
    """Whatever the client allows beyond that, and whatever a turn with tools may spend."""
    loop = {"tools": [WORDS], "tool_choice": "none"}
    for words, more in ((NARROW_CONTEXT - 60, {}), (NARROW_CONTEXT - 250, loop)):
        asked: Any = {"max_tokens": 100_000, "temperature": 0, "extra_body": {"ignore_eos": True}, **more}
        long: Any = {"role": "user", "content": "sea " * words}
        told = client.chat.completions.create(model=NARROW, messages=[long], **asked)
        assert told.usage is not None and told.choices[0].finish_reason == "length"
        assert NARROW_CONTEXT - 1 <= told.usage.total_tokens <= NARROW_CONTEXT


# --- reasoning ---


def test_reasoning_is_told_apart_in_a_chat(client: OpenAI) -> None:
    told = client.chat.completions.create(model="thinking", messages=SEA, temperature=0, max_tokens=TOKENS)
    said: Any = told.choices[0].message
    assert said.reasoning_content and "think>" not in said.reasoning_content + (said.content or "")
    assert told.usage is not None and told.usage.completion_tokens_details is not None
    assert told.usage.completion_tokens_details.reasoning_tokens


def test_reasoning_is_told_apart_in_a_response(client: OpenAI) -> None:
    told: Any = client.responses.create(
        model="thinking", input=SEA, temperature=0, max_output_tokens=TOKENS, store=False
    )
    assert told.output[0].type == "reasoning" and told.output[0].content[0].text
    assert "think>" not in told.output_text
    assert told.usage.output_tokens_details.reasoning_tokens
    again: list[Any] = [*SEA, *(item.to_dict() for item in told.output), *SEA]
    assert client.responses.create(model="thinking", input=again, max_output_tokens=1, store=False).output


def test_reasoning_is_told_apart_in_a_message(anthropic: Anthropic) -> None:
    said = message(anthropic, "thinking").content
    assert said[0].type == "thinking" and said[0].thinking
    again: list[Any] = [*SEA, {"role": "assistant", "content": said}, *SEA]
    assert message(anthropic, "thinking", messages=again, max_tokens=1).role == "assistant"


def test_a_model_that_is_told_not_to_reason_answers_at_once(client: OpenAI) -> None:
    said = chat(client, "thinking", reasoning_effort="none").message
    assert said.content and "think>" not in said.content and not getattr(said, "reasoning_content", None)


# --- forms ---


# What references lead to is compared with another validator in tests/inference/grammar/test_references.py.
@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(schema, id=name, marks=[] if name in ASKED else [pytest.mark.long])
        for name, schema in SCHEMAS.items()
    ],
)
def test_an_answer_matches_its_schema(client: OpenAI, schema: Mapping[str, Any]) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "pair", "schema": schema, "strict": True}}
    choice = chat(client, "hermes", response_format=wanted, max_tokens=100)
    assert choice.finish_reason == "stop"
    jsonschema.validate(json.loads(choice.message.content), schema)


@pytest.mark.parametrize("model", ["own", "thinking"])
def test_an_answer_is_the_same_whole_and_streamed(client: OpenAI, anthropic: Anthropic, model: str) -> None:
    whole = chat(client, model).message
    stream: Any = client.chat.completions.create(
        model=model, messages=SEA, temperature=0, max_tokens=TOKENS, stream=True, **EXACT
    )
    deltas = [chunk.choices[0].delta for chunk in stream]
    for part in ("content", "reasoning_content"):
        assert "".join(getattr(delta, part, None) or "" for delta in deltas) == (getattr(whole, part, None) or "")
    asked: Any = {"model": model, "input": SEA, "temperature": 0, "max_output_tokens": TOKENS, "store": False, **EXACT}
    response: Any = client.responses.create(**asked)
    *_, last = client.responses.create(**asked, stream=True)
    assert [(item.type, item.content[0].text) for item in last.response.output] == [
        (item.type, item.content[0].text) for item in response.output
    ]
    sent: Any = {"model": model, "messages": SEA, "max_tokens": TOKENS, "extra_body": {"temperature": 0}, **EXACT}
    with anthropic.messages.stream(**sent) as streamed:
        final = streamed.get_final_message()
    blocks = message(anthropic, model).content
    assert [told_in(block) for block in final.content] == [told_in(block) for block in blocks]


def test_calls_are_the_same_whole_and_streamed(client: OpenAI) -> None:
    asked: Any = {"tools": [WORDS], "tool_choice": "required", "max_tokens": 120}
    whole = chat(client, "hermes", **asked)
    with client.chat.completions.stream(model="hermes", messages=SEA, temperature=0, **asked, **EXACT) as stream:
        final = stream.get_final_completion().choices[0]
    assert calls_of(final) and calls_of(final) == calls_of(whole)
    assert final.finish_reason == whole.finish_reason
