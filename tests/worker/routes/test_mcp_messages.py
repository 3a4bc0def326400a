"""MCP servers that requests to POST /v1/messages name: real ones, reached over HTTP."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from anthropic import AsyncAnthropic
from anthropic.types.beta import BetaMCPToolListingBlock, BetaMCPToolResultBlock, BetaMCPToolUseBlock, BetaTextBlock

from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, post
from tests.worker.harness import SECRET
from tests.worker.routes.test_client_tools import call
from tests.worker.routes.test_messages import ASK, URL, added_up, told
from tests.worker.tool_server import ToolServer, using
from worker.auth.keys import Keys


def asking(mcp: ToolServer, toolset: Any = None, **of_server: Any) -> dict[str, Any]:
    tools = [{"type": "mcp_toolset", "mcp_server_name": "far", **(toolset or {})}]
    return {**ASK, "mcp_servers": [{"type": "url", "name": "far", "url": mcp.url, **of_server}], "tools": tools}


async def test_anthropics_client_reads_calls_and_results(database: Database, mcp: ToolServer) -> None:
    model = ScriptedModel([call("far__double", x=21), "It is 42."], name=MODEL, piece_chars=5)
    async with using(database, model, private=mcp.origin) as client:
        url, key = str(client.make_url("/")), client.session.headers["Authorization"].split()[-1]
        async with (
            AsyncAnthropic(base_url=url, api_key=key, max_retries=0) as anthropic,
            anthropic.beta.messages.stream(**asking(mcp), betas=["mcp-client-2025-11-20"]) as stream,
        ):
            message = await stream.get_final_message()
    listing, use, result, text = message.content
    assert isinstance(listing, BetaMCPToolListingBlock) and listing.mcp_server_name == "far"
    assert {tool.name: tool.description for tool in listing.tools}["double"] == "Double a number."
    assert isinstance(use, BetaMCPToolUseBlock) and isinstance(result, BetaMCPToolResultBlock)
    assert (use.name, use.server_name, use.input) == ("double", "far", {"x": 21})
    assert (result.tool_use_id, result.is_error) == (use.id, False)
    assert [part.text for part in result.content if isinstance(part, BetaTextBlock)] == ["42"]
    assert isinstance(text, BetaTextBlock) and (text.text, message.stop_reason) == ("It is 42.", "end_turn")


async def test_a_conversation_goes_on_behind_its_calls(database: Database, mcp: ToolServer) -> None:
    """The streamed message is the whole one, and the next prompt begins with the one before."""
    both = call("far__double", x=1) + call("far__files.delete", path="a")
    model = ScriptedModel([both, "Done.", both, "Done.", "Yes."], name=MODEL, piece_chars=5)
    async with using(database, model, private=mcp.origin) as client:
        whole = await post(client, URL, asking(mcp))
        streamed = added_up(await told(client, asking(mcp)))
        shapes = [[(block["type"], block.get("name")) for block in each["content"]] for each in (whole, streamed)]
        said = [*ASK["messages"], {"role": "assistant", "content": whole["content"]}]
        await post(client, URL, {**asking(mcp), "messages": [*said, {"role": "user", "content": "Sure?"}]})
    assert (
        shapes[0]
        == shapes[1]
        == [
            ("mcp_tool_listing", None),
            *(("mcp_tool_use", "double"), ("mcp_tool_use", "files.delete")),
            *(("mcp_tool_result", None), ("mcp_tool_result", None), ("text", None)),
        ]
    )
    assert model.prompts[-1].startswith(model.prompts[1].removesuffix("<assistant>"))


async def test_a_server_is_not_asked_for_tools_that_the_conversation_tells(database: Database, mcp: ToolServer) -> None:
    """Nor for those that a toolset pins. A worker that has never asked it knows them all the same."""
    model = ScriptedModel([call("far__double", x=1), "Two.", "Yes."], name=MODEL)
    async with using(database, model, private=mcp.origin) as client:
        first = await post(client, URL, asking(mcp, {"configs": {"refuse": {"enabled": False}}}))
        said = [*ASK["messages"], {"role": "assistant", "content": first["content"]}]
        asked = len(mcp.seen)
    async with using(database, model, private=mcp.origin) as client:
        later = {**asking(mcp), "messages": [*said, {"role": "user", "content": "Sure?"}]}
        second = await post(client, URL, later)
        pinned = [tool for tool in first["content"][0]["tools"] if tool["name"] == "double"]
        await post(client, URL, asking(mcp, {"tools": pinned}))
    assert len(mcp.seen) == asked > 0
    assert [block["type"] for block in second["content"]] == ["text"], "the list is known"
    assert "far__refuse" not in model.prompts[0] and "far__refuse" in model.prompts[2], "all are listed"
    assert "far__double" in model.prompts[3] and "far__refuse" not in model.prompts[3]


async def test_a_failed_call_says_so(database: Database, mcp: ToolServer) -> None:
    model = ScriptedModel([call("far__refuse"), "Full."], name=MODEL)
    async with using(database, model, private=mcp.origin) as client:
        message = await post(client, URL, asking(mcp))
    result = message["content"][2]
    assert result["is_error"] and "no room is free" in result["content"][0]["text"]


@pytest.mark.parametrize(
    ("toolset", "of_server"),
    [
        ({"default_config": {"enabled": False}, "configs": {"double": {"enabled": True}}}, {}),
        ({"configs": {name: {"enabled": False} for name in ("files.delete", "refuse", "flood", "hold")}}, {}),
        (None, {"tool_configuration": {"allowed_tools": ["double"]}}),
    ],
)
async def test_a_toolset_says_which_tools_there_are(
    database: Database, mcp: ToolServer, toolset: Any, of_server: Any
) -> None:
    model = ScriptedModel([call("far__refuse"), "Hm."], name=MODEL)
    asked = asking(mcp, toolset, **of_server)
    if toolset is None:
        del asked["tools"]
    async with using(database, model, private=mcp.origin) as client:
        await post(client, URL, asked)
        counted = await post(client, f"{URL}/count_tokens", asked)
    assert "far__double" in model.prompts[0] and "far__refuse" not in model.prompts[0]
    assert "there is no tool named 'far__refuse'" in model.prompts[1]
    assert counted["input_tokens"] == len(model.prompts[0])


async def test_deferred_tools_are_found_by_the_search(database: Database, mcp: ToolServer) -> None:
    replies = [call("tool_search_tool_bm25", query="double"), call("far__double", x=4), "Eight.", "Yes."]
    model = ScriptedModel(replies, name=MODEL)
    asked = asking(mcp, {"default_config": {"defer_loading": True}})
    asked["tools"].append({"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"})
    async with using(database, model, private=mcp.origin) as client:
        message = await post(client, URL, asked)
        said = [*ASK["messages"], {"role": "assistant", "content": message["content"]}]
        await post(client, URL, {**asked, "messages": [*said, {"role": "user", "content": "Sure?"}]})
    assert "far__double" not in model.prompts[0] and mcp.calls == [{"x": 4}]
    assert [block["type"] for block in message["content"]] == [
        *("mcp_tool_listing", "server_tool_use", "tool_search_tool_result", "mcp_tool_use", "mcp_tool_result", "text"),
    ]
    assert model.prompts[-1].startswith(model.prompts[2].removesuffix("<assistant>"))


async def test_only_origins_that_the_operator_allows_are_asked(database: Database, mcp: ToolServer) -> None:
    async with using(database, ScriptedModel(["Hm."], name=MODEL), private="https://other.example") as client:
        refused = await post(client, URL, asking(mcp), 403)
    assert (refused["error"]["type"], mcp.seen) == ("permission_error", [])


async def test_a_server_that_does_not_list_its_tools_refuses_the_message(database: Database, mcp: ToolServer) -> None:
    async with using(database, ScriptedModel(["Hm."], name=MODEL), private=mcp.origin) as client:
        refused = await post(client, URL, asking(mcp, authorization_token="wrong"), 400)
    assert "'far'" in refused["error"]["message"] and "401" in refused["error"]["message"]


async def test_a_connection_that_fails_has_a_span_that_says_why(database: Database, mcp: ToolServer) -> None:
    """The server was not asked for its tools, so that the call is the first that it refuses."""
    model = ScriptedModel([call("far__double", x=1), "Hm."], name=MODEL)
    pinned = {"tools": [{"name": "double", "input_schema": {"type": "object"}}]}
    name = f"test-{uuid4()}"
    async with using(database, model, private=mcp.origin, tenant=name) as client:
        message = await post(client, URL, asking(mcp, pinned, authorization_token="wrong"))
    assert message["content"][2]["is_error"] and "cannot be reached" in message["content"][2]["content"][0]["text"]
    async with database.tenant(await Keys(database, SECRET).tenant(name)) as connection:
        (told,) = await connection.fetch("select attributes from spans where name = 'mcp_connect'")
    assert told["attributes"] == {"failed": True, "server": "far", "reason": "it answers with the status 401"}
