"""Conversations that began at another provider go on here: what its own tools did is text, what nobody else can read is
left out, and what cannot be done is refused at its place."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types.beta import BetaContentBlockParam
from openai.types.responses import ResponseInputItemParam, ResponseItem
from pydantic import TypeAdapter

from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, answering, get, post

URL, MESSAGES = "/v1/responses", "/v1/messages"
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
    ("kind", "callers", "status"), [("direct", ["direct"], 200), ("program", ["programmatic"], 400)]
)
async def test_calls_are_the_models_own(database: Database, kind: str, callers: list[str], status: int) -> None:
    """Those of a program are refused, and so is a tool for programs."""
    caller = {"type": kind}
    call = {"type": "function_call", "call_id": "a", "name": "book", "arguments": "{}", "caller": caller}
    output = {"type": "function_call_output", "call_id": "a", "output": "ok", "caller": caller}
    tool = {"type": "function", "name": "book", "parameters": None, "allowed_callers": callers}
    bodies = {"input[0].caller": {"input": [call, output]}, "tools[0].allowed_callers": {"input": "x", "tools": [tool]}}
    async with answering(database, "x") as client:
        for param, body in bodies.items():
            told = await post(client, URL, body, status)
            assert status == 200 or told["error"]["param"] == param


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


# One at Anthropic, in which the model has changed, thought, searched the network and run code.
WEB = {"type": "web_search_result", "title": "Fees", "url": "https://harbour.example/fees", "encrypted_content": "only"}
SAID: list[dict[str, Any]] = [
    {"type": "redacted_thinking", "data": "only_they_read_it"},
    {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}},
    {"type": "thinking", "thinking": "I look it up.", "signature": "only_they_read_it"},
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "berth prices"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [WEB]},
    {"type": "text", "text": "They cost 80 euros.", "citations": []},
    {"type": "container_upload", "file_id": "file_1"},
]
TOOL: dict[str, Any] = {"name": "book", "description": "Book a berth.", "defer_loading": True}
LOADED = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "book"}}
SUMMARY = {
    "type": "compaction",
    "content": "We speak of berths.",
    "encrypted_content": "only",
    "tool_changes": [LOADED],
}


def message(*said: dict[str, Any], before: str = "What do two berths cost?") -> dict[str, Any]:
    messages = [{"role": "user", "content": before}, {"role": "assistant", "content": list(said)}]
    more = {"role": "user", "content": "And three?"}
    return {"model": MODEL, "max_tokens": 100, "messages": [*messages, more], "tools": [TOOL]}


async def test_messages_of_hosted_tools_and_other_models_go_on(database: Database) -> None:
    model = ScriptedModel(["120 euros."], name=MODEL)
    async with answering(database, model=model) as client:
        await post(client, MESSAGES, message(*SAID))
    (prompt,) = model.prompts
    places = [prompt.index(text) for text in ("berth prices", "https://harbour.example/fees", "80 euros", "And three?")]
    assert places == sorted(places) and "only" not in prompt and "file_1" not in prompt


async def test_a_summary_stands_for_what_precedes_it(database: Database) -> None:
    """With the tools that were loaded until then. One that failed stands for nothing."""
    model = ScriptedModel(["120 euros."], name=MODEL)
    async with answering(database, model=model) as client:
        for summary in (SUMMARY, {"type": "compaction", "content": None}):
            await post(client, MESSAGES, message(summary, SAID[5]))
    assert "Summary of the conversation so far:\nWe speak of berths." in model.prompts[0]
    assert "Book a berth." in model.prompts[0] and "two berths cost" not in model.prompts[0]
    assert "two berths cost" in model.prompts[1] and "Summary" not in model.prompts[1]
    for prompt in model.prompts:
        assert "They cost 80 euros." in prompt and "And three?" in prompt


def test_the_samples_are_of_the_contracts() -> None:
    items: TypeAdapter[Any] = TypeAdapter(ResponseInputItemParam)
    blocks: TypeAdapter[Any] = TypeAdapter(BetaContentBlockParam)
    for item in BEGUN:
        items.validate_python(item)
    for block in (*SAID, SUMMARY):
        blocks.validate_python(block)
