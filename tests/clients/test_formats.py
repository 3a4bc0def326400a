"""Answers in a format through the official client's own helpers, with the bundled model at temperature 1."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field

from tests.clients.conftest import MODEL
from tests.inference.test_hostile_schemas import MANY_WAYS_TO_SKIP

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"]}
SAVE: Any = {"type": "function", "name": "save", "parameters": SCHEMA, "strict": True}
SAVE_IN_CHAT: Any = {"type": "function", "function": {"name": "save", "parameters": SCHEMA, "strict": True}}


class Mood(StrEnum):
    GOOD = "good"
    BAD = "bad"


class Step(BaseModel):
    mood: Mood
    note: Annotated[str, Field(max_length=12)] | None


class Plan(BaseModel):
    """Nested, with an enumeration, a list and what may be null."""

    title: Annotated[str, Field(max_length=16)]
    share: Annotated[float, Field(ge=0, le=1)]
    steps: Annotated[list[Step], Field(max_length=3)]


def test_responses_parse_into_the_callers_model(client: OpenAI) -> None:
    for _ in range(3):
        parsed = client.responses.parse(model=MODEL, input="Plan my day.", text_format=Plan, temperature=1)
        assert isinstance(parsed.output_parsed, Plan)
    assert parsed.text is not None and parsed.text.format is not None and parsed.text.format.type == "json_schema"


def test_chat_completions_parse_into_the_callers_model(client: OpenAI) -> None:
    completion = client.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": "Plan my day."}], response_format=Plan, temperature=1
    )
    assert isinstance(completion.choices[0].message.parsed, Plan)


async def test_the_helpers_parse_the_same_asynchronously(async_client: AsyncOpenAI) -> None:
    parsed = await async_client.responses.parse(model=MODEL, input="Plan my day.", text_format=Plan, temperature=1)
    assert isinstance(parsed.output_parsed, Plan)
    completion = await async_client.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": "Plan my day."}], response_format=Plan, temperature=1
    )
    assert isinstance(completion.choices[0].message.parsed, Plan)
    async with async_client.responses.stream(
        model=MODEL, input="Plan my day.", text_format=Plan, temperature=1
    ) as stream:
        assert isinstance((await stream.get_final_response()).output_parsed, Plan)


def test_parsed_arguments_of_a_function_are_an_object_of_its_class(client: OpenAI) -> None:
    response = client.responses.parse(
        model=MODEL,
        input="Plan my day.",
        tools=[openai.pydantic_function_tool(Plan)],
        tool_choice="required",
        temperature=1,
    )
    call = response.output[0]
    assert call.type == "function_call" and isinstance(call.parsed_arguments, Plan)


def test_a_chat_stream_in_a_format_adds_up_to_it(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=[{"role": "user", "content": "Plan my day."}], response_format=Plan, temperature=1
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == Plan.model_validate_json(text)


def test_a_stream_in_a_format_adds_up_to_it(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="Plan my day.", text_format=Plan, temperature=1) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert final.output_parsed == Plan.model_validate_json(text)


def test_any_json_object_can_be_asked_for(client: OpenAI) -> None:
    bounded: Any = {"max_output_tokens": 400, "temperature": 0.3}
    whole = client.responses.create(model=MODEL, input="hello", text={"format": {"type": "json_object"}}, **bounded)
    assert whole.status == "incomplete" or isinstance(json.loads(whole.output_text), dict)
    assert whole.output_text.startswith("{")
    completion = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hello"}],
        response_format={"type": "json_object"},
        max_completion_tokens=20,
        temperature=1,
    )
    assert (completion.choices[0].message.content or "").startswith("{")


def test_a_strict_function_that_must_be_called_gets_fitting_arguments(client: OpenAI) -> None:
    choices: list[Any] = ["required", {"type": "function", "name": "save"}]
    for choice in choices:
        made = client.responses.create(
            model=MODEL, input="hello", tools=[SAVE], tool_choice=choice, parallel_tool_calls=False
        )
        (call,) = made.output
        assert call.type == "function_call" and 0 <= json.loads(call.arguments)["n"] <= 9
    completion = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hello"}],
        tools=[SAVE_IN_CHAT],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    assert completion.choices[0].finish_reason == "tool_calls" and completion.choices[0].message.tool_calls
    (asked,) = completion.choices[0].message.tool_calls
    assert asked.type == "function" and 0 <= json.loads(asked.function.arguments)["n"] <= 9


def test_a_schema_that_cannot_be_held_is_refused_with_its_place(client: OpenAI) -> None:
    odd: Any = {"type": "json_schema", "name": "odd", "strict": True, "schema": {"properties": {"a": {"contains": {}}}}}
    with pytest.raises(openai.BadRequestError, match=r"properties\.a\.contains") as refused:
        client.responses.create(model=MODEL, input="hello", text={"format": odd})
    assert refused.value.param == "text.format.schema"


TWINS: Any = {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2, "uniqueItems": True}
UNMET = "unmet_uniqueItems"


@pytest.mark.any_answer("the schema leaves no choice")
def test_an_answer_that_breaks_what_no_grammar_holds_fails_and_names_the_keyword(lenient_client: OpenAI) -> None:
    held: Any = {"name": "twins", "schema": TWINS}
    told: Any = {"format": {"type": "json_schema", **held}}
    answer = lenient_client.responses.create(model=MODEL, input="hello", text=told)
    assert (answer.status, answer.error and answer.error.code) == ("failed", UNMET)
    with pytest.raises(openai.InternalServerError) as whole:
        lenient_client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hello"}],
            response_format={"type": "json_schema", "json_schema": held},
        )
    assert whole.value.code == UNMET
    with pytest.raises(openai.APIError) as streamed:
        list(
            lenient_client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "hello"}],
                response_format={"type": "json_schema", "json_schema": held},
                stream=True,
            )
        )
    assert streamed.value.code == UNMET


@pytest.mark.any_answer("it fails whatever it says")
def test_a_schema_that_proves_too_much_in_the_middle_is_told_as_the_requests_mistake(lenient_client: OpenAI) -> None:
    sprawling: Any = {"name": "odd", "strict": True, "schema": MANY_WAYS_TO_SKIP}
    told: Any = {"format": {"type": "json_schema", **sprawling}}
    answer = lenient_client.responses.create(model=MODEL, input="hello", text=told)
    assert (answer.status, answer.error and answer.error.code) == ("failed", "invalid_prompt")
    asked: Any = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hello"}],
        "response_format": {"type": "json_schema", "json_schema": sprawling},
    }
    with pytest.raises(openai.BadRequestError, match="make its alternatives differ sooner"):  # it is not tried again
        lenient_client.chat.completions.create(**asked)
    with pytest.raises(openai.APIError) as streamed:
        list(lenient_client.chat.completions.create(**asked, stream=True))
    assert (streamed.value.code, streamed.value.type) == ("invalid_prompt", "invalid_request_error")


@pytest.mark.any_answer("the schema leaves no choice")
def test_arguments_of_a_strict_function_that_break_it_never_reach_the_caller(client: OpenAI) -> None:
    parameters = {"type": "object", "properties": {"twins": TWINS}, "required": ["twins"]}
    for strict, count in ((True, 0), (False, 1)):
        save: Any = {**SAVE, "parameters": parameters, "strict": strict}
        answer = client.responses.create(
            model=MODEL,
            input="hello",
            tools=[save],
            tool_choice="required",
            parallel_tool_calls=False,
        )
        calls = [item for item in answer.output if item.type == "function_call" and item.status == "completed"]
        assert (answer.status, len(calls)) == ("completed", count)
