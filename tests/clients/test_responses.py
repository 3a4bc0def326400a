"""Responses through the official client: what it parses, streams and raises.

Prompts are ones that the bundled model answers alike at temperature 0; what it says beyond that is not looked at.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response, ResponseFunctionToolCall, ResponseInputParam, ToolParam

from tests.clients.conftest import MODEL
from tests.worker.reader import Reader, check_response

# The client keeps tool types that it does not know, and warns when it writes them out again.
own_tool_types = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
SERVER_TOOLS: Any = [{"type": f"firsttoken:{name}"} for name in ("calculator", "current_time", "convert_units")]
WEATHER: ToolParam = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather for a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "The city"}},
        "required": ["city"],
    },
    "strict": False,
}
# One passage each, the task on which the bundled model cites in nine of ten cases.
QUESTIONS = [
    "What is stored in Postgres?",
    "Which port does the worker listen on?",
    "What does the queue span cover?",
    "Which command revokes an API key?",
    "How long are traces kept?",
]


def test_a_response_is_made_read_and_deleted(client: OpenAI) -> None:
    made = client.responses.create(model=MODEL, input="hello", temperature=0, metadata={"topic": "greeting"})
    check_response(made.to_dict())
    assert (made.status, made.metadata) == ("completed", {"topic": "greeting"})
    assert made.output_text
    assert made.usage is not None
    assert made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens
    assert client.responses.retrieve(made.id).to_dict() == made.to_dict()
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_a_raw_stream_keeps_the_law_of_order(client: OpenAI) -> None:
    reader = Reader()
    for event in client.responses.create(model=MODEL, input="hello", temperature=0, stream=True):
        reader.feed(event.to_dict())
    assert reader.final is not None
    assert reader.texts[0] == reader.final["output"][0]["content"][0]["text"]


@own_tool_types
def test_the_streaming_helper_gets_its_final_response(lenient_client: OpenAI) -> None:
    with lenient_client.responses.stream(
        model=MODEL, input="what is 12 * 7", temperature=0, tools=SERVER_TOOLS
    ) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["function_call", "function_call_output", "message"]
    assert snapshots[-1] == final.output_text
    assert "84" in final.output_text


async def test_the_streaming_helper_works_the_same_asynchronously(async_client: AsyncOpenAI) -> None:
    async with async_client.responses.stream(model=MODEL, input="hello", temperature=0) as stream:
        text = "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])
        final = await stream.get_final_response()
    assert text == final.output_text


def test_a_response_follows_another_and_reads_its_prompt_from_the_cache(lenient_client: OpenAI) -> None:
    first = lenient_client.responses.create(model=MODEL, input="what is 12 * 7", temperature=0, tools=SERVER_TOOLS)
    second = lenient_client.responses.create(
        model=MODEL, input="thanks", temperature=0, tools=SERVER_TOOLS, previous_response_id=first.id
    )
    assert second.previous_response_id == first.id
    assert first.usage is not None and second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens > first.usage.output_tokens


def test_a_function_of_the_caller_makes_the_round_trip(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="Get the weather for Oslo.", temperature=0, tools=[WEATHER])
    (call,) = first.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Oslo"})
    output: ResponseInputParam = [
        {"type": "function_call_output", "call_id": call.call_id, "output": '{"weather": "rain"}'}
    ]
    second = client.responses.create(
        model=MODEL, input=output, previous_response_id=first.id, temperature=0, tools=[WEATHER]
    )
    assert second.output[-1].type == "message"
    assert second.output_text


def test_what_was_put_out_is_taken_back_as_input(client: OpenAI) -> None:
    """Stateless round trip, as clients write it that keep the history themselves."""
    history: list[Any] = [{"role": "user", "content": "Get the weather for Oslo."}]
    first = client.responses.create(model=MODEL, input=history, temperature=0, tools=[WEATHER], store=False)
    call = first.output[0]
    assert isinstance(call, ResponseFunctionToolCall)
    history += [item.to_dict() for item in first.output]
    history.append({"type": "function_call_output", "call_id": call.call_id, "output": "rain"})
    second = client.responses.create(model=MODEL, input=history, temperature=0, tools=[WEATHER], store=False)
    assert second.output_text


def test_an_arguments_stream_adds_up_in_the_helper(client: OpenAI) -> None:
    with client.responses.stream(
        model=MODEL, input="Get the weather for Oslo.", temperature=0, tools=[WEATHER]
    ) as stream:
        done = [event for event in stream if event.type == "response.function_call_arguments.done"]
    assert [json.loads(event.arguments) for event in done] == [{"city": "Oslo"}]


def test_an_answer_from_the_documents_cites_what_it_read(client: OpenAI) -> None:
    cited = 0
    for question in QUESTIONS:
        response = client.responses.create(
            model=MODEL,
            input=question,
            temperature=0,
            tools=[{"type": "file_search", "vector_store_ids": ["docs"], "max_num_results": 1}],
            include=["file_search_call.results"],
        )
        search, message = response.output
        assert search.type == "file_search_call" and message.type == "message"
        assert search.results and search.queries == [question]
        part = message.content[0]
        assert part.type == "output_text"
        for annotation in part.annotations:
            cited += 1
            check_citation(client, response, annotation.to_dict())
    assert cited


def check_citation(client: OpenAI, response: Response, annotation: dict[str, Any]) -> None:
    search = response.output[0]
    assert search.type == "file_search_call" and search.results
    assert response.output_text[annotation["start_index"] : annotation["end_index"]] == "[1]"
    source = client.files.content(annotation["firsttoken_file_id"]).text
    span = source[annotation["firsttoken_start_char"] : annotation["firsttoken_end_char"]]
    assert span == search.results[0].text


def test_a_conversation_keeps_what_was_said(client: OpenAI) -> None:
    conversation = client.conversations.create(metadata={"title": "T"})
    client.responses.create(model=MODEL, input="hello", temperature=0, conversation=conversation.id)
    client.responses.create(model=MODEL, input="thanks", temperature=0, conversation={"id": conversation.id})
    items = list(client.conversations.items.list(conversation.id, order="asc", limit=2))  # more than one page
    assert [getattr(item, "role", None) for item in items] == ["user", "assistant"] * 2
    added = client.conversations.items.create(
        conversation.id, items=[{"type": "message", "role": "user", "content": "one more"}]
    )
    item_id = added.data[0].id
    assert item_id
    assert client.conversations.items.retrieve(item_id, conversation_id=conversation.id).id == item_id
    client.conversations.items.delete(item_id, conversation_id=conversation.id)
    assert client.conversations.update(conversation.id, metadata={"title": "U"}).metadata == {"title": "U"}
    assert client.conversations.retrieve(conversation.id).metadata == {"title": "U"}
    assert client.conversations.delete(conversation.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(conversation.id)


def test_errors_are_the_types_that_the_client_knows(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model=MODEL, input="x", previous_response_id="resp_0")
    assert (missing.value.code, missing.value.param) == ("previous_response_not_found", "previous_response_id")
    assert missing.value.request_id
    with pytest.raises(openai.NotFoundError, match="gpt-9"):
        client.responses.create(model="gpt-9", input="x")
    with pytest.raises(openai.BadRequestError) as unsupported:
        client.responses.create(model=MODEL, input="x", prompt={"id": "p"})
    assert (unsupported.value.code, unsupported.value.param) == ("unsupported_parameter", "prompt")
    with pytest.raises(openai.BadRequestError) as unknown:
        client.responses.create(model=MODEL, input="x", extra_body={"colour": "red"})
    assert (unknown.value.code, unknown.value.param) == ("unknown_parameter", "colour")
    with pytest.raises(openai.BadRequestError) as long:
        client.responses.create(model=MODEL, input="word " * 5000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model=MODEL, input="x", tools=[WEATHER, WEATHER])
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="ft_wrong").responses.create(model=MODEL, input="x")


@own_tool_types
async def test_eight_streams_at_once_say_what_each_says_alone(lenient_async_client: AsyncOpenAI) -> None:
    async def ask(number: int) -> str:
        stream = await lenient_async_client.responses.create(
            model=MODEL, input=f"what is {number} * 7", temperature=0, tools=SERVER_TOOLS, stream=True
        )
        reader = Reader()
        async for event in stream:
            reader.feed(event.to_dict())
        assert reader.final is not None
        return "|".join(str(item.get("arguments")) for item in reader.final["output"])

    numbers = range(11, 19)
    together = await asyncio.gather(*map(ask, numbers))
    assert together == [await ask(number) for number in numbers]
