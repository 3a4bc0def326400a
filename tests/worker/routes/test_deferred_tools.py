"""Tools of coding agents at POST /v1/messages: deferred ones, the search for them, and those of other servers."""

from __future__ import annotations

from typing import Any

import pytest

from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, answering, post
from tests.worker.routes.test_messages import ASK, TOOL, URL, USER, added_up, told

DEFERRED: dict[str, Any] = {"name": "mcp__crm__find_orders", "description": "Find orders.", "defer_loading": True}
LOADER = {"name": "ToolSearch", "input_schema": {"type": "object", "properties": {"query": {"type": "string"}}}}
SEARCH = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
USE = {"type": "tool_use", "id": "toolu_1", "name": "ToolSearch", "input": {"query": "orders"}}
REFERENCE = {"type": "tool_reference", "tool_name": DEFERRED["name"]}
FOUND = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [REFERENCE]}
CALL = '<tool_call>\n{"name": "mcp__crm__find_orders", "arguments": {"of": "Ann"}}\n</tool_call>'
SEARCHING = '<tool_call>\n{"name": "tool_search_tool_bm25", "arguments": {"query": "order"}}\n</tool_call>'


def after(*blocks: Any, said: Any = (USE,)) -> list[dict[str, Any]]:
    return [USER, {"role": "assistant", "content": list(said)}, {"role": "user", "content": list(blocks)}]


async def test_a_deferred_tool_is_in_no_prompt_and_no_grammar_before_a_result_names_it(database: Database) -> None:
    model = ScriptedModel(["Hm.", CALL], name=MODEL)
    asked = {**ASK, "tools": [LOADER, DEFERRED]}
    async with answering(database, model=model) as client:
        await post(client, URL, asked)
        called = await post(client, URL, {**asked, "messages": after(FOUND)})
    assert DEFERRED["name"] not in model.prompts[0] + model.grammars[0].text
    shown, _, result = model.prompts[1].partition("<tool>")
    assert DEFERRED["name"] not in shown and "Find orders." in result
    assert DEFERRED["name"] in model.grammars[1].text
    assert [block["name"] for block in called["content"]] == [DEFERRED["name"]]
    assert called["stop_reason"] == "tool_use"


async def test_prompts_with_added_tools_only_grow(database: Database) -> None:
    """What precedes a result is the same before and after it, and so is the result itself."""
    model = ScriptedModel(["Hm."], name=MODEL)
    asked = {**ASK, "tools": [LOADER, DEFERRED]}
    first = after(FOUND)
    again = {**USE, "id": "toolu_2"}
    later = [
        {"role": "assistant", "content": [again]},
        {"role": "user", "content": [{**FOUND, "tool_use_id": "toolu_2"}]},
    ]
    async with answering(database, model=model) as client:
        for messages in ([USER], first, [*first, *later]):
            await post(client, URL, {**asked, "messages": messages})
    for before, grown in zip(model.prompts, model.prompts[1:], strict=False):
        assert grown.startswith(before.removesuffix("<assistant>"))


async def test_a_call_of_a_tool_that_nothing_named_is_not_the_callers(database: Database) -> None:
    model = ScriptedModel([CALL, "Well."], name=MODEL)
    async with answering(database, model=model) as client:
        message = await post(client, URL, {**ASK, "tools": [LOADER, DEFERRED]})
    assert (message["stop_reason"], message["content"][-1]["text"]) == ("end_turn", "Well.")
    assert "there is no tool named 'mcp__crm__find_orders'" in model.prompts[1]


async def test_a_name_without_a_tool_does_not_end_the_conversation(database: Database) -> None:
    gone = {"type": "tool_reference", "tool_name": "mcp__gone__away"}
    model = ScriptedModel(["Hm."], name=MODEL)
    async with answering(database, model=model) as client:
        messages = after({**FOUND, "content": [{"type": "text", "text": "Two."}, gone, REFERENCE]})
        await post(client, URL, {**ASK, "tools": [LOADER, DEFERRED], "messages": messages})
    assert "<tool>Two.\nThere is no tool mcp__gone__away any more.\n" in model.prompts[0]
    assert "Find orders." in model.prompts[0]


@pytest.mark.parametrize("role", ["user", "system"])
async def test_a_message_adds_tools_and_removes_them(database: Database, role: str) -> None:
    defined = {"type": "tool_definition", "definition": {**TOOL, "description": "Tell the weather."}}
    add = [{"type": "tool_addition", "tool": {"type": "tool_reference", "name": DEFERRED["name"]}}]
    add.append({"type": "tool_addition", "tool": defined})
    remove = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "ToolSearch"}}
    model = ScriptedModel([CALL], name=MODEL)
    messages = [{"role": role, "content": [*add, remove]}, USER]
    async with answering(database, model=model) as client:
        called = await post(client, URL, {**ASK, "tools": [LOADER, DEFERRED], "messages": messages})
    assert called["content"][0]["name"] == DEFERRED["name"]
    for told_of in ("Find orders.", "Tell the weather.", "The tool ToolSearch can no longer be called."):
        assert told_of in model.prompts[0]
    assert DEFERRED["name"] in model.grammars[0].text and "get_weather" in model.grammars[0].text
    assert "ToolSearch" not in model.grammars[0].text


async def test_a_hosted_search_runs_here_and_its_history_goes_on(database: Database) -> None:
    model = ScriptedModel([SEARCHING, CALL, SEARCHING, CALL, "Two orders."], name=MODEL)
    asked = {**ASK, "tools": [SEARCH, DEFERRED, {**DEFERRED, "name": "other", "description": "Play chess."}]}
    async with answering(database, model=model) as client:
        whole = await post(client, URL, asked)
        streamed = added_up(await told(client, asked))
        result = {"type": "tool_result", "tool_use_id": whole["content"][2]["id"], "content": "two"}
        messages = [USER, {"role": "assistant", "content": whole["content"]}, {"role": "user", "content": [result]}]
        await post(client, URL, {**asked, "messages": messages})
    assert whole["stop_reason"] == "tool_use"
    search, found, call = whole["content"]
    assert (search["type"], search["input"]) == ("server_tool_use", {"query": "order"})
    assert found == {
        "type": "tool_search_tool_result",
        "tool_use_id": search["id"],
        "content": {"type": "tool_search_tool_search_result", "tool_references": [REFERENCE]},
    }
    assert (call["type"], call["name"]) == ("tool_use", DEFERRED["name"])
    assert [block["type"] for block in streamed["content"]] == [block["type"] for block in whole["content"]]
    assert streamed["content"][0]["input"] == {"query": "order"}
    assert "chess" not in model.prompts[1]
    assert model.prompts[4].startswith(model.prompts[1].removesuffix("<assistant>"))


async def test_a_search_that_cannot_be_read_is_told_as_an_error(database: Database) -> None:
    broken = '<tool_call>\n{"name": "tool_search_tool_regex", "arguments": {"query": "("}}\n</tool_call>'
    model = ScriptedModel([broken, "Well."], name=MODEL)
    search = {"type": "tool_search_tool_regex", "name": "tool_search_tool_regex"}
    async with answering(database, model=model) as client:
        message = await post(client, URL, {**ASK, "tools": [search, DEFERRED]})
    assert message["content"][1]["content"]["type"] == "tool_search_tool_result_error"
    assert message["content"][-1]["text"] == "Well."


async def test_answers_of_hosted_tools_are_kept_as_text(database: Database) -> None:
    web = {"type": "web_search_result", "title": "Fjords", "url": "https://a.example", "encrypted_content": "Zm9v"}
    said = [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "fjords"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [web]},
        {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "echo", "server_name": "s", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "content": [{"type": "text", "text": "echoed"}]},
        {"type": "server_tool_use", "id": "srvtoolu_2", "name": "code_execution", "input": {"code": "1"}},
        {
            "type": "code_execution_tool_result",
            "tool_use_id": "srvtoolu_2",
            "content": {"type": "code_execution_result", "stdout": "1\n", "stderr": "", "return_code": 0},
        },
        {"type": "text", "text": "There are fjords."},
    ]
    model = ScriptedModel(["Yes."], name=MODEL)
    async with answering(database, model=model) as client:
        await post(client, URL, {**ASK, "messages": after({"type": "text", "text": "Sure?"}, said=said)})
    prompt = model.prompts[0]
    assert '<call>web_search {"query": "fjords"}</call>\n<tool>Fjords\nurl: https://a.example\n' in prompt
    assert "<tool>echoed\n" in prompt and "<tool>1\n\nreturn_code: 0\n" in prompt
    assert "There are fjords." in prompt and "Zm9v" not in prompt


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"type": "tool_search_tool_bm25", "name": "x"}]}, "tools[0].name"),
        ({"tools": [{"type": "tool_search_tool_fuzzy", "name": "x"}]}, "tools[0].type"),
        ({"messages": after({**FOUND, "content": [{"type": "tool_reference"}]})}, "messages[2].content[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_addition", "tool": {"type": "mcp_toolset"}}]}]},
            "messages[0].content[0].tool",
        ),
    ],
)
async def test_what_cannot_be_done_is_named(database: Database, change: dict[str, Any], named: str) -> None:
    async with answering(database, "x") as client:
        refused = await post(client, URL, {**ASK, **change}, 400)
    assert f"'{named}" in refused["error"]["message"]


async def test_an_empty_list_of_servers_asks_for_nothing(database: Database) -> None:
    async with answering(database, "Hello.") as client:
        assert (await post(client, URL, {**ASK, "mcp_servers": []}))["stop_reason"] == "end_turn"


async def test_naming_a_large_tool_often_does_not_multiply_the_prompt(database: Database) -> None:
    large = {**DEFERRED, "description": "x" * 30_000}
    uses = [{**USE, "id": f"toolu_{i}"} for i in range(200)]
    found = [{**FOUND, "tool_use_id": use["id"]} for use in uses]
    body = {**ASK, "tools": [LOADER, large], "messages": after(*found, said=uses)}
    async with answering(database, model=ScriptedModel(["x"], name=MODEL, context_length=1_500_000)) as client:
        message = await post(client, URL, body)
    assert message["usage"]["input_tokens"] < 1_200_000
