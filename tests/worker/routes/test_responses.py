"""POST /v1/responses and what becomes of the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, PASSAGE, StallingModel, answering, events_of, get, post, stream
from tests.worker.harness import Client
from tests.worker.reader import Reader, check_response
from worker.config import Config

URL = "/v1/responses"
CALL = '<tool_call>\n{"name": "double", "arguments": {"number": 21}}\n</tool_call>'
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
WEATHER_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
SEARCH = {"type": "file_search", "vector_store_ids": ["docs"]}
NOWHERE = {"type": "file_search", "vector_store_ids": ["nowhere"]}


@pytest.fixture
async def client(database: Database) -> AsyncIterator[Client]:
    async with answering(database, "Hello there, friend.") as client:
        yield client


async def test_an_answer_as_a_whole(client: Client) -> None:
    response = await post(client, URL, {"input": "hello"})
    check_response(response)
    assert (response["status"], response["model"]) == ("completed", MODEL)
    (message,) = response["output"]
    assert message["content"][0]["text"] == "Hello there, friend."


async def test_an_answer_as_a_stream_is_the_same(client: Client) -> None:
    reader = Reader.read(await stream(client, URL, {"input": "hello"}))
    assert reader.texts == {0: "Hello there, friend."}
    assert reader.types[-1] == "response.completed"


async def test_headers_tell_what_is_known_when_they_go_out(client: Client) -> None:
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    body = {"input": "hello", "stream": True}
    async with client.post(URL, json=body, headers={"traceparent": traceparent}) as answer:
        assert answer.headers["Cache-Control"] == "no-cache, no-transform"
        assert "auth;dur=" in answer.headers["Server-Timing"]
        assert answer.headers["X-Request-Id"]
        assert traceparent[3:35] in answer.headers["Traceparent"]
        await answer.read()


async def test_the_trace_follows_the_turn_from_the_socket_to_the_store(client: Client) -> None:
    events = await stream(client, URL, {"input": "hello", "include": ["firsttoken:trace"]})
    trace = events[-2]["trace"]
    names = [span["name"] for span in trace["spans"]]
    assert [n for n in names if n in ("hydrate", "prefill", "first_token", "flush")] == [
        "hydrate",
        "prefill",
        "first_token",
        "flush",
    ]
    first = next(span for span in trace["spans"] if span["name"] == "first_token")
    assert trace["ttft_ms"] == pytest.approx(first["start_ms"] + first["duration_ms"], abs=0.01)
    assert trace["tpot_ms"] >= 0
    assert (trace["status"], trace["response_id"]) == ("completed", events[-1]["response"]["id"])


async def test_what_was_told_can_be_read_again_and_deleted(client: Client) -> None:
    response = (await stream(client, URL, {"input": "hello", "metadata": {"a": "b"}}))[-1]["response"]
    assert await get(client, f"{URL}/{response['id']}") == response
    async with client.delete(f"{URL}/{response['id']}") as answer:
        assert (await answer.json())["deleted"] is True
    assert (await get(client, f"{URL}/{response['id']}", 404))["error"]["code"] == "not_found"


async def test_nothing_is_kept_when_the_caller_says_so(client: Client) -> None:
    response = await post(client, URL, {"input": "hello", "store": False})
    assert response["store"] is False
    await get(client, f"{URL}/{response['id']}", 404)


async def test_a_response_continues_another(database: Database) -> None:
    model = ScriptedModel(["My name is Ada.", "Ada, as I said."], name=MODEL)
    async with answering(database, model=model) as client:
        first = await post(client, URL, {"input": "who are you", "instructions": "Be brief."})
        second = await post(client, URL, {"input": "again?", "previous_response_id": first["id"]})
    assert second["previous_response_id"] == first["id"]
    assert "<user>who are you\n<assistant>My name is Ada.\n<user>again?" in model.prompts[1]
    assert "Be brief." not in model.prompts[1]


async def test_a_conversation_grows_with_every_turn(database: Database) -> None:
    model = ScriptedModel(["One.", "Two."], name=MODEL)
    async with answering(database, model=model) as client:
        conversation = (await post(client, "/v1/conversations", {}))["id"]
        await stream(client, URL, {"input": "first", "conversation": conversation})
        response = await post(client, URL, {"input": "second", "conversation": {"id": conversation}, "store": False})
        assert response["conversation"] == {"id": conversation}
        items = (await get(client, f"/v1/conversations/{conversation}/items?order=asc"))["data"]
    assert [item["content"][0]["text"] for item in items] == ["first", "One.", "second", "Two."]
    assert "<user>first\n<assistant>One.\n<user>second" in model.prompts[1]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"previous_response_id": "resp_0"}, "previous_response_id", "previous_response_not_found"),
        ({"conversation": "conv_0"}, "conversation", "conversation_not_found"),
        ({"model": "gpt-9"}, "model", "model_not_found"),
        ({"tools": [NOWHERE]}, "tools[0].vector_store_ids", "not_found"),
        ({"tools": [{"type": "web_search"}, NOWHERE]}, "tools[1].vector_store_ids", "not_found"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_what_does_not_exist_is_a_404_before_anything_streams(
    client: Client, body: dict[str, object], param: str, code: str, streamed: bool
) -> None:
    error = (await post(client, URL, {"input": "hello", "stream": streamed, **body}, 404))["error"]
    assert (error["param"], error["code"]) == (param, code)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": "x", "tools": [{"type": "firsttoken:teleport"}]}, "tools"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "3"}]}, "input"),
        ({"input": "x", "background": True, "store": False}, "store"),
    ],
)
async def test_what_contradicts_itself_is_a_400(client: Client, body: dict[str, object], param: str) -> None:
    assert (await post(client, URL, body, 400))["error"]["param"] == param


async def test_a_prompt_that_does_not_fit_is_a_400_and_never_cut(database: Database) -> None:
    async with answering(database, model=ScriptedModel(["x"], name=MODEL, context_length=500)) as client:
        error = (await post(client, URL, {"input": "long " * 200, "stream": True}, 400))["error"]
    assert error["code"] == "context_length_exceeded"


async def test_a_tool_of_the_server_runs_inside_the_answer(database: Database) -> None:
    async with answering(database, CALL, "It is 42.") as client:
        reader = Reader.read(await stream(client, URL, {"input": "x", "tools": [{"type": "firsttoken:double"}]}))
    call, output, message = (reader.items[index] for index in range(3))
    assert (call["name"], call["arguments"]) == ("double", '{"number": 21}')
    assert (output["type"], output["output"], output["call_id"]) == ("function_call_output", "42", call["call_id"])
    assert message["content"][0]["text"] == "It is 42."


async def test_a_function_of_the_caller_ends_the_turn_and_its_output_starts_the_next(database: Database) -> None:
    model = ScriptedModel([WEATHER_CALL, "It rains."], name=MODEL)
    async with answering(database, model=model) as client:
        first = Reader.read(await stream(client, URL, {"input": "weather?", "tools": [WEATHER]})).final
        assert first is not None
        (call,) = first["output"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
        body = {"input": [output], "previous_response_id": first["id"], "tools": [WEATHER]}
        second = await post(client, URL, body)
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "get_weather", '{"city": "Oslo"}')
    assert second["output"][0]["content"][0]["text"] == "It rains."
    assert "<tool>rain" in model.prompts[1]


async def test_sources_come_before_the_text_and_citations_open_them(database: Database) -> None:
    async with answering(database, "It is 8080 [1].") as client:
        conversation = (await post(client, "/v1/conversations", {}))["id"]
        body = {
            "input": "which port?",
            "tools": [SEARCH],
            "conversation": conversation,
            "include": ["firsttoken:sources"],
        }
        events = await stream(client, URL, body)
        items = (await get(client, f"/v1/conversations/{conversation}/items?order=asc"))["data"]
        with_results = await get(
            client, f"/v1/conversations/{conversation}/items?order=asc&include[]=file_search_call.results"
        )
    reader = Reader.read(events)
    assert reader.types.index("firsttoken:sources") < reader.types.index("response.output_text.delta")
    (annotation,) = reader.annotations[1]
    assert annotation["url"] == f"/v1/files/{PASSAGE.file_id}/content#char=100,125"
    assert [item["type"] for item in items] == ["message", "file_search_call", "message"]
    assert items[2]["content"][0]["annotations"] == [annotation]
    assert items[1]["results"] is None
    assert with_results["data"][1]["results"][0]["filename"] == PASSAGE.filename


async def test_a_stored_response_shows_results_of_its_search_only_when_asked(database: Database) -> None:
    async with answering(database, "It is 8080 [1].") as client:
        id = (await post(client, URL, {"input": "which port?", "tools": [SEARCH]}))["id"]
        plain = await get(client, f"{URL}/{id}")
        full = await get(client, f"{URL}/{id}?include[]=file_search_call.results")
    assert plain["output"][0]["results"] is None
    assert full["output"][0]["results"][0]["file_id"] == PASSAGE.file_id


async def test_an_answer_that_reaches_its_limit_is_incomplete(client: Client) -> None:
    events = await stream(client, URL, {"input": "hello", "max_output_tokens": 2})
    response = Reader.read(events).final
    assert response is not None
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][-1]["status"] == "incomplete"


async def test_another_tenant_finds_nothing(database: Database) -> None:
    async with answering(database, "Secret.") as client, answering(database, "x") as stranger:
        conversation = (await post(client, "/v1/conversations", {}))["id"]
        id = (await post(client, URL, {"input": "hello", "conversation": conversation}))["id"]
        await get(stranger, f"{URL}/{id}", 404)
        await get(stranger, f"/v1/conversations/{conversation}", 404)
        await post(stranger, URL, {"input": "x", "previous_response_id": id}, 404)
        await post(stranger, URL, {"input": "x", "conversation": conversation}, 404)


async def test_an_answer_that_cannot_be_stored_is_told_as_failed(database: Database) -> None:
    model = StallingModel(["Hello."], name=MODEL)
    async with answering(database, model=model) as client:
        conversation = (await post(client, "/v1/conversations", {}))["id"]
        body = {"input": "x", "conversation": conversation, "stream": True}
        async with client.post(URL, json=body) as answer:
            beginning = await answer.content.readuntil(b"output_text.delta")
            async with client.delete(f"/v1/conversations/{conversation}"):
                model.running[0].released.set()
            rest = await answer.read()
    final = Reader.read(events_of((beginning + rest).decode())).final
    assert final is not None
    assert final["status"] == "failed"
    assert conversation in final["error"]["message"]


async def test_turns_over_the_cap_are_told_when_to_come_back(database: Database) -> None:
    model = StallingModel(["Hello."], name=MODEL)
    async with (
        answering(database, model=model, config=Config(turns=2)) as client,
        client.post(URL, json={"input": "x", "stream": True}) as running,
    ):
        await running.content.readuntil(b"response.created")
        async with client.post(URL, json={"input": "y"}) as refused:
            assert refused.status == 429
            assert int(refused.headers["Retry-After-Ms"]) > 0


UPDATE: Any = {"type": "configuration_update"}
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


async def test_an_update_holds_for_all_that_follows_it_until_another_one(database: Database) -> None:
    model = ScriptedModel(['{"n": 1}'], name=MODEL, switches=frozenset({"reasoning_effort"}))
    low = {
        **UPDATE,
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": NUMBER}},
    }
    plain = {**UPDATE, "text": {"format": {"type": "text"}}}
    asked: dict[str, Any] = {"reasoning": {"effort": "high"}}
    told = []
    async with answering(database, model=model) as client:
        for update in ([low], [], [plain]):
            body = {**asked, "input": [*update, {"role": "user", "content": "go"}]}
            told.append(await post(client, "/v1/responses", body))
            asked["previous_response_id"] = told[-1]["id"]
    assert [each["reasoning"]["effort"] for each in told] == ["low"] * 3
    assert [each["text"]["format"]["type"] for each in told] == ["json_schema", "json_schema", "text"]
    assert [prompt.partition("<user>")[0].startswith("<reasoning_effort=low>") for prompt in model.prompts] == [
        True
    ] * 3
    assert [each.sampling.grammar is not None for each in model.generations] == [True, True, False]


@pytest.mark.parametrize(
    ("update", "param"),
    [
        ({"reasoning": {"effort": "huge"}}, "input.0.configuration_update.reasoning.effort"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"text": {}}, "text.format"),
    ],
)
async def test_an_update_that_cannot_be_followed_is_refused(
    database: Database, update: dict[str, Any], param: str
) -> None:
    async with answering(database, "x") as client:
        error = (await post(client, "/v1/responses", {"input": [{**UPDATE, **update}]}, 400))["error"]
    assert str(error["param"]).endswith(param.rpartition("configuration_update.")[2]), error
