"""Items that are stored here can be sent back by their ids alone, as some SDKs do from the second turn on."""

from __future__ import annotations

from typing import Any

import pytest

from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, answering, get, post
from tests.worker.harness import Client

URL = "/v1/responses"
AGAIN = {"role": "user", "content": "again?"}
FUNCTION = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def reference(id: str) -> dict[str, Any]:
    return {"type": "item_reference", "id": id}


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel(["My name is Ada."], name=MODEL)


async def test_an_item_of_a_response_is_read_by_its_id(client: Client, model: ScriptedModel) -> None:
    first = await post(client, URL, {"input": "who are you"})
    said = [{"role": "user", "content": "who are you"}, reference(first["output"][0]["id"]), AGAIN]
    second = await post(client, URL, {"input": said})
    assert "<user>who are you\n<assistant>My name is Ada.\n<user>again?" in model.prompts[1]
    items = (await get(client, f"{URL}/{second['id']}/input_items?order=asc"))["data"]
    assert [item["type"] for item in items] == ["message"] * 3
    assert items[1]["id"] != first["output"][0]["id"]  # an item of its own, so that both can be kept


async def test_a_call_is_read_by_its_id_and_answered(database: Database) -> None:
    model = ScriptedModel([CALL, "Rain."], name=MODEL)
    async with answering(database, model=model) as client:
        first = await post(client, URL, {"input": "weather?", "tools": [FUNCTION]})
        (call,) = first["output"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
        said = [{"role": "user", "content": "weather?"}, reference(call["id"]), output]
        second = await post(client, URL, {"input": said, "tools": [FUNCTION]})
    assert second["output"][0]["content"][0]["text"] == "Rain."


async def test_an_item_of_a_conversation_is_read_by_its_id(client: Client, model: ScriptedModel) -> None:
    conversation = await post(client, "/v1/conversations", {"items": [{"role": "user", "content": "the sky is blue"}]})
    (item,) = (await get(client, f"/v1/conversations/{conversation['id']}/items"))["data"]
    await post(client, URL, {"input": [reference(item["id"]), AGAIN], "conversation": conversation["id"]})
    assert model.prompts[0].count("the sky is blue") == 2


async def test_what_is_not_stored_is_not_found(client: Client) -> None:
    unstored = await post(client, URL, {"input": "hello", "store": False})
    for id in ("msg_0", unstored["output"][0]["id"]):
        error = await post(client, URL, {"input": [AGAIN, reference(id)]}, 404)
        assert (error["error"]["param"], error["error"]["code"]) == ("input[1].id", "not_found")


async def test_items_of_other_tenants_are_not_found(client: Client, database: Database) -> None:
    first = await post(client, URL, {"input": "a secret"})
    async with answering(database, "Hello.") as other:
        await post(other, URL, {"input": [reference(first["output"][0]["id"]), AGAIN]}, 404)
