"""POST /v1/responses/compact, and going on from what it made."""

from __future__ import annotations

from typing import Any

import pytest

from migrations.pool import Database
from tests.compliance.specification import CompactedResponse
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, answering, get, post, stream
from tests.worker.harness import Client
from tests.worker.reader import Reader

URL = "/v1/responses"
TALK = [{"role": "user", "content": "Launch on Tuesday?"}, {"role": "assistant", "content": "Agreed."}]


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel(["The launch is on Tuesday.", "On Tuesday."], name=MODEL)


async def compacted(client: Client, **body: Any) -> dict[str, Any]:
    made: dict[str, Any] = await post(client, f"{URL}/compact", {"model": MODEL, "input": TALK, **body})
    CompactedResponse.model_validate(made)
    return made


async def test_a_conversation_goes_on_from_its_summary(client: Client, model: ScriptedModel) -> None:
    made = await compacted(client)
    (item,) = made["output"]
    assert item["type"] == "compaction" and "Tuesday" not in item["encrypted_content"]
    first = await post(client, URL, {"input": [*made["output"], {"role": "user", "content": "When?"}]})
    await post(client, URL, {"input": "Really?", "previous_response_id": first["id"]})
    for prompt in model.prompts[1:]:
        assert prompt.startswith("<system>Summary of the conversation so far:\nThe launch is on Tuesday.\n<user>When?")
    listed = (await get(client, f"{URL}/{first['id']}/input_items?order=asc"))["data"]
    assert listed[0]["encrypted_content"] == item["encrypted_content"]


async def test_a_stored_response_is_compacted_with_all_before_it(client: Client, model: ScriptedModel) -> None:
    first = await post(client, URL, {"input": TALK})
    made = await compacted(client, input=None, previous_response_id=first["id"], prompt_cache_key="k")
    assert [item["type"] for item in made["output"]] == ["compaction"]
    assert "Launch on Tuesday?" in model.prompts[1]


async def test_a_trigger_at_the_end_asks_for_a_summary_in_place_of_an_answer(
    client: Client, model: ScriptedModel
) -> None:
    """As Codex does with a server that it takes for OpenAI's. What is left of the prompt is read at once."""
    trigger = {"type": "compaction_trigger"}
    events = await stream(client, URL, {"input": [*TALK, trigger]})
    done = events[-1]["response"]
    assert done["status"] == "completed" and [item["type"] for item in done["output"]] == ["compaction"]
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == done["output"]
    assert "compaction_trigger" not in str((await get(client, f"{URL}/{done['id']}/input_items"))["data"])
    first = await post(client, URL, {"input": [*done["output"], {"role": "user", "content": "When?"}]})
    assert model.prompts[2].startswith(model.prompts[1].removesuffix("<assistant>"))
    again = await post(client, URL, {"input": [trigger], "previous_response_id": first["id"]})
    assert [item["type"] for item in again["output"]] == ["compaction"]
    for body in ({"input": [trigger, *TALK]}, {"input": [*TALK, trigger], "background": True}):
        refused = (await post(client, URL, body, 400))["error"]
        assert refused["param"] in ("input", "background") and "compaction_trigger" in refused["message"]
    refused = (await post(client, "/v1/conversations", {"items": [trigger]}, 400))["error"]
    assert refused["param"] == "items" and "compaction_trigger" in refused["message"]


async def test_a_summary_may_stand_in_a_conversation(client: Client, model: ScriptedModel) -> None:
    made = await compacted(client)
    conversation = await post(client, "/v1/conversations", {"items": made["output"]})
    await post(client, URL, {"input": "When?", "conversation": conversation["id"]})
    assert "The launch is on Tuesday." in model.prompts[1]


async def test_a_response_in_the_background_reads_a_summary_too(client: Client, model: ScriptedModel) -> None:
    body = {"input": [*(await compacted(client))["output"], {"role": "user", "content": "When?"}], "background": True}
    id = (await post(client, URL, body))["id"]
    async with client.get(f"{URL}/{id}?stream=true") as answer:
        assert "response.completed" in await answer.text()
    assert "The launch is on Tuesday.\n<user>When?" in model.prompts[1]


async def test_a_response_makes_its_conversation_short_and_the_next_one_goes_on_from_there(database: Database) -> None:
    model = ScriptedModel(["They agreed on Tuesday.", "Yes.", "Sure."], name=MODEL, context_length=3000)
    talk = [{"role": "user", "content": f"remark {number} " + "very " * 30} for number in range(6)]
    compacts: dict[str, Any] = {"context_management": [{"type": "compaction", "compact_threshold": 800}]}
    async with answering(database, model=model) as client:
        body = {"input": [*talk, {"role": "user", "content": "Tuesday?"}], **compacts}
        reader = Reader.read(await stream(client, URL, body))
        assert reader.final is not None
        summary, message = reader.final["output"]
        assert (summary["type"], message["content"][0]["text"]) == ("compaction", "Yes.")
        again = await post(client, URL, {"input": "Sure?", "previous_response_id": reader.final["id"], **compacts})
        stateless = [*body["input"], *reader.final["output"], {"role": "user", "content": "Sure?"}]
        await post(client, URL, {"input": stateless, "store": False})
    assert [item["type"] for item in again["output"]] == ["message"]
    expected = "<system>Summary of the conversation so far:\nThey agreed on Tuesday.\n"
    for prompt in model.prompts[1:]:
        assert prompt.startswith(expected) and "remark 0" not in prompt
    assert model.prompts[2] == model.prompts[3] == model.prompts[1] + "Yes.\n<user>Sure?\n<assistant>"


@pytest.mark.parametrize("change", [lambda sealed: sealed[:-4] + "AAAA", lambda sealed: "x", lambda sealed: sealed[5:]])
async def test_a_forged_summary_is_a_400_that_names_it(client: Client, change: Any) -> None:
    (item,) = (await compacted(client))["output"]
    forged = [{"type": "compaction", "encrypted_content": change(item["encrypted_content"])}]
    for path, body in ((URL, {"input": forged}), ("/v1/conversations", {"items": forged})):
        error = (await post(client, path, body, 400))["error"]
        assert error["code"] == "invalid_encrypted_content"
        assert error["param"].endswith("[0].encrypted_content")


async def test_another_tenant_cannot_use_it(client: Client, database: Database) -> None:
    output = (await compacted(client))["output"]
    async with answering(database, "x") as stranger:
        assert (await post(stranger, URL, {"input": output}, 400))["error"]["param"] == "input[0].encrypted_content"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"model": None}, 400, "model"),
        ({"model": "gpt-9"}, 404, "model"),
        ({"input": []}, 400, "input"),
        ({"input": None}, 400, "input"),
        ({"previous_response_id": "resp_0"}, 404, "previous_response_id"),
        ({"prompt_cache_options": {"prewarm": True}}, 400, "prompt_cache_options.prewarm"),
        ({"colour": "red"}, 400, "colour"),
    ],
)
async def test_what_is_wrong_is_named(client: Client, body: dict[str, Any], status: int, param: str) -> None:
    error = (await post(client, f"{URL}/compact", {"model": MODEL, "input": TALK, **body}, status))["error"]
    assert error["param"] == param


async def test_the_model_must_be_named(client: Client) -> None:
    error = (await post(client, f"{URL}/compact", {"input": TALK}, 400))["error"]
    assert (error["param"], error["code"]) == ("model", "missing_required_parameter")
