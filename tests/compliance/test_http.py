"""The cases of the Open Responses compliance suite over HTTP, written anew: all of them at once, as the suite runs.

Some ask in other words than the suite: between two answers to its own, the bundled model decides by the last bits.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from tests.compliance.conftest import Wire
from tests.compliance.specification import CompactedResponse, Response, made, told
from tests.retrieval.loaders.test_pdf import make_pdf

Json: TypeAlias = dict[str, Any]
Case: TypeAlias = Callable[[Wire], Awaitable[None]]

# The smallest picture: one transparent point.
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
PICTURE = f"data:image/png;base64,{PIXEL}"
GET_WEATHER: Json = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"}},
        "required": ["location"],
    },
}
ASKS_FOR_WEATHER = [{"type": "message", "role": "user", "content": "What's the weather like in San Francisco?"}]


def says(role: str, content: Any, **more: Any) -> Json:
    return {"type": "message", "role": role, "content": content, **more}


def types(items: list[Json]) -> list[str]:
    return [item["type"] for item in items]


async def completes(wire: Wire, body: Json) -> Json:
    response = await wire.respond(body)
    assert response["status"] == "completed"
    assert response["output"]
    return response


async def basic_text(wire: Wire) -> None:
    await completes(wire, {"input": [says("user", "Say hello in exactly three words.")]})


async def system_prompt(wire: Wire) -> None:
    pirate = says("system", "You are a pirate. Always respond in pirate speak.")
    await completes(wire, {"input": [pirate, says("user", "Say hello.")]})


async def multi_turn(wire: Wire) -> None:
    greeting = says("assistant", "Hello Alice! Nice to meet you. How can I help you today?")
    await completes(wire, {"input": [says("user", "My name is Alice."), greeting, says("user", "What is my name?")]})


async def assistant_phase(wire: Wire) -> None:
    thought = says("assistant", "I should answer with the saved number.", phase="commentary")
    answer = says("assistant", "The number is four.", phase="final_answer")
    await completes(wire, {"input": [thought, answer, says("user", "Repeat only the number.")]})


async def streaming(wire: Wire) -> None:
    events = await wire.stream({"input": [says("user", "Count from 1 to 5.")]})
    assert events[-1]["response"]["status"] == "completed"


async def image_input(wire: Wire) -> None:
    """With a model that sees: see tests/worker/routes/test_seeing.py."""
    parts = [
        {"type": "input_text", "text": "What is in this image?"},
        {"type": "input_image", "image_url": PICTURE},
    ]
    await completes(wire, {"input": [says("user", parts)]})


async def tool_calling(wire: Wire) -> None:
    """The model chooses by itself: there is no tool_choice."""
    response = await wire.respond({"input": ASKS_FOR_WEATHER, "tools": [GET_WEATHER]})
    assert "function_call" in types(response["output"])


async def tool_calling_streamed(wire: Wire) -> None:
    events = await wire.stream({"input": ASKS_FOR_WEATHER, "tools": [GET_WEATHER]})
    kinds = types(events)
    added = next(event["item"] for event in events if event["type"] == "response.output_item.added")
    assert (added["type"], added["name"], added["arguments"]) == ("function_call", "get_weather", "")
    deltas = [e["delta"] for e in events if e["type"] == "response.function_call_arguments.delta"]
    (done,) = (e for e in events if e["type"] == "response.function_call_arguments.done")
    assert "".join(deltas) == done["arguments"]
    assert json.loads(done["arguments"])["location"]
    assert kinds.index("response.output_item.done") > kinds.index("response.function_call_arguments.done")


async def function_call_round_trip(wire: Wire) -> None:
    forced = {"tools": [GET_WEATHER], "tool_choice": {"type": "function", "name": "get_weather"}}
    first = await wire.respond({"input": ASKS_FOR_WEATHER, **forced})
    call = next(item for item in first["output"] if item["type"] == "function_call")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "64 degrees"}
    second = await completes(wire, {"input": [*ASKS_FOR_WEATHER, *first["output"], result], "tools": [GET_WEATHER]})
    assert "message" in types(second["output"])


async def previous_response(wire: Wire) -> None:
    first = await completes(wire, {"input": "Remember the word papaya."})
    second = await completes(wire, {"input": "Which word?", "previous_response_id": first["id"]})
    assert second["previous_response_id"] == first["id"]


async def text_file_input(wire: Wire) -> None:
    data = base64.b64encode(b"The meeting starts at 9.").decode()
    parts = [
        {"type": "input_text", "text": "What is in this document?"},
        {"type": "input_file", "filename": "plan.txt", "file_data": f"data:text/plain;base64,{data}"},
    ]
    await completes(wire, {"input": [says("user", parts)]})


async def pdf_file_input(wire: Wire) -> None:
    data = base64.b64encode(make_pdf("A berth costs 40 euros.")).decode()
    parts = [
        {"type": "input_file", "filename": "harbour.pdf", "file_data": data},
        {"type": "input_text", "text": "What is the title?"},
    ]
    response = await completes(wire, {"input": [says("user", parts)]})
    (item,) = (await wire.get(f"responses/{response['id']}/input_items"))["data"]
    assert "A berth costs 40 euros." in item["content"][0]["text"]


async def file_search(wire: Wire) -> None:
    """Its item, its tool and its citations are OpenAI's, which the specification does not know; the rest is its own."""
    body = {
        "model": "demo-chat",
        "input": "Which command revokes an API key?",
        "tools": [{"type": "file_search", "vector_store_ids": ["docs"]}],
        "tool_choice": {"type": "file_search"},
        "include": ["file_search_call.results"],
    }
    response = await wire.post("responses", body)
    search = response["output"][0]
    assert (response["status"], search["type"]) == ("completed", "file_search_call")
    assert isinstance(search["results"], list), "none when a busy machine skips a stage of the search"
    (message,) = response["output"][1:]
    assert {note["type"] for note in message["content"][0]["annotations"]} <= {"file_citation"}
    message["content"][0]["annotations"] = []
    made({**response, "output": [message], "tools": [], "tool_choice": "auto"})


async def compaction(wire: Wire) -> None:
    said = [
        says("user", "We agreed to launch on Tuesday and notify support first."),
        says("assistant", "Understood. The launch is Tuesday, with support notified beforehand."),
    ]
    body = {"model": "demo-chat", "prompt_cache_key": "openresponses-compact-test", "input": said}
    compacted = await wire.post("responses/compact", body)
    CompactedResponse.model_validate(compacted)
    assert "compaction" in types(compacted["output"])


async def compaction_without_a_model(wire: Wire) -> None:
    error = await wire.post("responses/compact", {"input": [says("user", "Compact this conversation.")]}, status=400)
    assert error["error"]["param"] == "model"


CASES: list[Case] = [
    basic_text,
    system_prompt,
    multi_turn,
    assistant_phase,
    streaming,
    tool_calling,
    tool_calling_streamed,
    function_call_round_trip,
    previous_response,
    text_file_input,
    pdf_file_input,
    file_search,
    compaction,
    compaction_without_a_model,
]


async def test_all_cases_at_once(wire: Wire) -> None:
    outcomes = await asyncio.gather(*(case(wire) for case in CASES), return_exceptions=True)
    failed = {case.__name__: outcome for case, outcome in zip(CASES, outcomes, strict=True) if outcome is not None}
    assert failed == {}


async def test_an_error_is_an_object_of_the_specification(wire: Wire) -> None:
    error = (await wire.post("responses", {"model": "fake-model", "input": "x"}, status=404))["error"]
    assert error.keys() >= {"message", "type", "param", "code"}
    assert error["code"] == "model_not_found"


async def test_the_other_dialect_is_chosen_by_its_header(wire: Wire) -> None:
    """The bundled model has no thoughts to tell: the events are the same, and all of the specification's."""
    wire.http.headers["OpenResponses-Version"] = "latest"
    events = await wire.stream({"input": "hello"})
    assert events[-1]["response"]["status"] == "completed"


@pytest.mark.parametrize("change", [{"temperature": None}, {"tools": None}, {"output": [{"type": "acme:note"}]}])
async def test_the_models_of_the_specification_can_refuse(wire: Wire, change: Json) -> None:
    response = await wire.respond({"input": "hello"})
    with pytest.raises(ValueError, match=next(iter(change))):
        made({**response, **change})
    with pytest.raises(ValueError, match="firsttoken:trace"):
        told({"type": "firsttoken:trace", "sequence_number": 1})


def test_the_phase_of_a_message_is_part_of_the_schema() -> None:
    phases = Response.model_json_schema()["$defs"]["Message"]["properties"]["phase"]["enum"]
    assert phases == ["commentary", "final_answer"]
