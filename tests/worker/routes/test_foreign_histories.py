"""Conversations that began at another provider go on here: what its own tools did is text, what nobody else can read is
left out, and what cannot be done is refused at its place."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import ResponseInputItemParam, ResponseItem
from pydantic import TypeAdapter

from inference.testing import ScriptedModel
from migrations.pool import Database
from tests.worker.answering import MODEL, answering, get, post

URL = "/v1/responses"
STORED: TypeAdapter[Any] = TypeAdapter(ResponseItem)
PIXELS = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
FOUND = {"type": "search", "query": "berth prices", "sources": [{"type": "url", "url": "https://harbour.example/fees"}]}
LOGS = [{"type": "logs", "logs": "80.0"}]
# A session of a coding agent at OpenAI.
BEGUN: list[dict[str, Any]] = [
    {"role": "user", "content": "What do two berths cost? Draw them."},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAABo_only_they_read_it"},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": FOUND},
    {
        "type": "code_interpreter_call",
        "id": "ci_1",
        "status": "completed",
        "code": "print(2 * 40.0)",
        "container_id": "cntr_1",
        "outputs": LOGS,
    },
    {
        "type": "image_generation_call",
        "id": "ig_1",
        "status": "generating",
        "result": PIXELS,
        "revised_prompt": "Two berths in a harbour",
    },
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "phase": "final_answer",
        "content": [{"type": "output_text", "text": "They cost 80 euros.", "annotations": [], "logprobs": []}],
    },
]
ASKED = {"role": "user", "content": "And three?", "internal_chat_message_metadata_passthrough": {"turn_id": "1"}}


async def test_calls_of_hosted_tools_are_read_with_their_results(database: Database) -> None:
    model = ScriptedModel(["120 euros.", "160.", "160."], name=MODEL)
    more = {"role": "user", "content": "Four?"}
    async with answering(database, model=model) as client:
        async with client.post(URL, json={"input": [*BEGUN, ASKED]}) as answer:
            first = await answer.json()
            assert answer.status == 200, first
            assert answer.headers["x-firsttoken-ignored"] == "internal_chat_message_metadata_passthrough"
        await post(client, URL, {"input": [more], "previous_response_id": first["id"]})
        kept = (await get(client, f"{URL}/{first['id']}/input_items?order=asc&limit=100"))["data"]
        await post(client, URL, {"input": [*kept, *first["output"], more]})
    prompt = model.prompts[0]
    for text in ("berth prices", "harbour.example", "print(2 * 40.0)", "80.0", "Two berths in a harbour", "80 euros"):
        assert text in prompt
    assert PIXELS not in prompt and "only_they_read_it" not in prompt
    places = [prompt.index(text) for text in ("berth prices", "print(2", "Two berths in", "80 euros")]
    assert places == sorted(places)
    for item in kept:
        STORED.validate_python(item)
    assert [item["type"] for item in kept] == [item.get("type", "message") for item in (*BEGUN, ASKED)]
    assert (kept[2]["action"], kept[3]["outputs"], kept[4]["status"]) == (FOUND, LOGS, "generating")
    assert model.prompts[1] == model.prompts[2]
    assert model.prompts[1].startswith(prompt.removesuffix("<assistant>"))


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "computer_call", "call_id": "a", "action": {"type": "screenshot"}}, "input[1]"),
        ({"type": "program", "call_id": "a", "code": "x", "fingerprint": "y"}, "input[1]"),
        ({"type": "compaction", "encrypted_content": "gAAAAABo_only_they_read_it"}, "input[1].encrypted_content"),
    ],
)
async def test_what_nobody_else_can_do_is_refused_at_its_place(database: Database, item: Any, param: str) -> None:
    async with answering(database, "x") as client:
        refused = await post(client, URL, {"input": [BEGUN[0], item]}, 400)
    assert refused["error"]["param"] == param


def test_the_samples_are_of_the_contract() -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseInputItemParam)
    for item in BEGUN:
        adapter.validate_python(item)
