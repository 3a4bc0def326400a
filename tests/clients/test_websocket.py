"""Responses over a WebSocket through the official client, as its documentation does it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response

from tests.clients.conftest import MODEL
from tests.worker.reader import Reader

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather for a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.mark.filterwarnings("ignore:connect:DeprecationWarning")  # how the client calls its library is its own affair
def test_responses_follow_each_other_on_one_connection(client: OpenAI) -> None:
    with client.responses.connect() as connection:
        finals: list[Response] = []
        for question in ("hello", "thanks"):
            previous: Any = {"previous_response_id": finals[-1].id} if finals else {}
            connection.response.create(model=MODEL, input=question, store=False, temperature=0, **previous)
            reader = Reader()
            for event in connection:
                reader.feed(event.to_dict())
                if event.type in ("response.completed", "response.incomplete"):
                    finals.append(event.response)
                    break
            assert reader.texts[0] == finals[-1].output_text
    assert finals[1].previous_response_id == finals[0].id
    assert finals[0].usage is not None and finals[1].usage is not None
    assert finals[1].usage.input_tokens_details.cached_tokens > finals[0].usage.output_tokens


async def test_a_loop_of_tools_sends_only_what_is_new(async_client: AsyncOpenAI) -> None:
    async with async_client.responses.connect() as connection:

        async def ask(**body: Any) -> Response:
            await connection.response.create(model=MODEL, temperature=0, store=False, tools=[WEATHER], **body)
            async for event in connection:
                if event.type in ("response.completed", "response.incomplete"):
                    return event.response
                assert event.type != "error", event
            raise AssertionError("the connection was closed")

        first = await ask(input="Get the weather for Oslo.")
        call = first.output[0]
        assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Oslo"}
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": '{"weather": "rain"}'}
        second = await ask(input=[output], previous_response_id=first.id)
    assert second.output_text


@pytest.mark.any_answer("what is said ends the answer at whichever token it has reached")
async def test_what_is_said_while_an_answer_is_written_is_answered_next(async_client: AsyncOpenAI) -> None:
    asked: Any = {
        "type": "response.create",
        "model": MODEL,
        "input": "hello",
        "max_output_tokens": 1000,
        "ignore_eos": True,
    }
    async with async_client.responses.connect() as connection:
        await connection.send(asked)
        seen: list[str] = []
        responses: list[Response] = []
        async for event in connection:
            seen.append(event.type)
            if event.type == "response.created":
                responses.append(event.response)
            if event.type == "response.output_text.delta" and seen.count(event.type) == 1:
                await connection.response.steer(input="thanks", previous_response_id=responses[0].id)
            if event.type == "response.incomplete" and event.response.id == responses[0].id:
                details = event.response.incomplete_details
                assert details is not None and details.reason == "steered" and event.response.output_text
            if len(responses) == 2 and event.type in ("response.completed", "response.incomplete"):
                break
    assert seen.count("response.steer.accepted") == 1 and "error" not in seen
    assert responses[1].previous_response_id == responses[0].id


async def test_each_stream_of_a_connection_gets_its_own_events(async_client: AsyncOpenAI) -> None:
    async with async_client.responses.connect() as connection:
        for name in ("first", "second"):
            await connection.response.create(model=MODEL, input="hello", temperature=0, stream_id=name)
        readers = {"first": Reader(), "second": Reader()}
        async for event in connection:
            told = event.to_dict()
            readers[str(told.pop("stream_id"))].feed(told)
            if all(reader.final for reader in readers.values()):
                break
    assert readers["first"].texts == readers["second"].texts


async def test_an_error_is_an_event_and_the_connection_goes_on(async_client: AsyncOpenAI) -> None:
    async with async_client.responses.connect() as connection:
        await connection.response.create(model=MODEL, input="x", background=True)
        error = await connection.recv()
        assert error.type == "error" and error.to_dict()["error"]["param"] == "background"  # type: ignore[index]
        await connection.response.create(model=MODEL, input="hello", max_output_tokens=4)
        assert (await connection.recv()).type == "response.created"
