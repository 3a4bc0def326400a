"""MCP servers that requests to POST /v1/responses name: real ones, reached over HTTP."""

from __future__ import annotations

import json
import logging
from typing import Any
from uuid import uuid4

import pytest
from openai import AsyncOpenAI
from openai.types.responses.response_input_param import McpApprovalResponse
from openai.types.responses.response_output_item import McpApprovalRequest, McpCall

from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, get, post, stream
from tests.worker.harness import SECRET
from tests.worker.routes.test_client_tools import EVENTS, ITEMS, call
from tests.worker.tool_server import ToolServer, using
from worker.auth.keys import Keys
from worker.auth.principal import KeyLimits
from worker.auth.secret import Seals
from worker.runs.background import stored_request
from worker.wire.response_request import ResponseRequest

URL = "/v1/responses"
ASK = "What is twice 21?"


def tool(mcp: ToolServer, **more: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": "far", "server_url": mcp.url, "require_approval": "never", **more}


def scripted(*replies: str) -> ScriptedModel:
    return ScriptedModel(list(replies), name=MODEL, piece_chars=5)


def kinds(events: list[Any], of: str) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events if of in event["type"]]


async def test_a_tool_of_a_server_is_listed_called_and_told(database: Database, mcp: ToolServer) -> None:
    model = scripted(call("far__double", x=21), "It is 42.")
    async with using(database, model, private=mcp.origin) as client:
        events = await stream(client, URL, {"input": ASK, "tools": [tool(mcp)]})
        for event in events:
            EVENTS.validate_python(event)
        done = events[-1]["response"]
        stored = await get(client, f"{URL}/{done['id']}")
    for item in done["output"]:
        ITEMS.validate_python(item)
    listed, called, message = done["output"]
    assert (listed["type"], listed["server_label"], listed["error"]) == ("mcp_list_tools", "far", None)
    assert {each["name"]: each["annotations"]["read_only"] for each in listed["tools"]} == {
        "double": True,
        "files.delete": False,
        "refuse": False,
        "flood": False,
        "hold": False,
    }
    assert listed["tools"][0]["input_schema"]["properties"]["x"]["type"] == "integer"
    assert {key: called[key] for key in ("type", "name", "server_label", "output", "error", "status")} == {
        "type": "mcp_call",
        "name": "double",
        "server_label": "far",
        "output": "42",
        "error": None,
        "status": "completed",
    }
    assert json.loads(called["arguments"]) == {"x": 21} and called["approval_request_id"] is None
    assert message["content"][0]["text"] == "It is 42."
    assert mcp.calls == [{"x": 21}]
    assert stored["output"] == done["output"]
    assert "<tool>42" in model.prompts[1] and model.prompts[1].startswith(model.prompts[0].removesuffix("<assistant>"))


async def test_its_events_are_those_of_the_contract(database: Database, mcp: ToolServer) -> None:
    model = scripted(call("far__double", x=21), "It is 42.")
    async with using(database, model, private=mcp.origin) as client:
        events = await stream(client, URL, {"input": ASK, "tools": [tool(mcp)]})
    deltas = [event["delta"] for event in events if event["type"].endswith("mcp_call_arguments.delta")]
    (arguments,) = [event["arguments"] for event in events if event["type"].endswith("mcp_call_arguments.done")]
    assert "".join(deltas) == arguments and len(deltas) > 1
    told = [kind for kind in kinds(events, "") if "text" not in kind and "content" not in kind]
    assert [kind for kind in told if kind != "mcp_call_arguments.delta"] == [
        *("created", "in_progress"),
        *("output_item.added", "mcp_list_tools.in_progress", "mcp_list_tools.completed", "output_item.done"),
        *("output_item.added", "mcp_call.in_progress", "mcp_call_arguments.done", "mcp_call.completed"),
        *("output_item.done", "output_item.added", "output_item.done", "completed"),
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["output_index"] for event in events if event["type"].endswith("item.done")] == [0, 1, 2]


async def test_calls_of_one_step_run_together_and_their_prompt_goes_on(database: Database, mcp: ToolServer) -> None:
    """From the store, and from items that the client sends back, the later prompt is the same."""
    both = call("far__double", x=1) + call("far__double", x=2)
    model = scripted(both, "2 and 4.", "Yes.", "Yes.")
    asked = {"tools": [tool(mcp)]}
    async with using(database, model, private=mcp.origin) as client:
        first = await post(client, URL, {**asked, "input": ASK})
        await post(client, URL, {**asked, "input": "Sure?", "previous_response_id": first["id"]})
        again = [{"role": "user", "content": ASK}, *first["output"], {"role": "user", "content": "Sure?"}]
        third = await post(client, URL, {**asked, "input": again})
    assert [item["output"] for item in first["output"] if item["type"] == "mcp_call"] == ["2", "4"]
    assert model.prompts[1].count("<assistant>") == 2, "both calls are one message of the model"
    assert model.prompts[2] == model.prompts[3]
    assert model.prompts[2].startswith(model.prompts[1].removesuffix("<assistant>"))
    assert [item["type"] for item in third["output"]] == ["message"], "the list is known"


async def test_what_goes_wrong_there_is_told_to_the_model_and_the_caller(database: Database, mcp: ToolServer) -> None:
    model = scripted(call("far__refuse"), call("far__flood"), "Full.")
    async with using(database, model, private=mcp.origin) as client:
        events = await stream(client, URL, {"input": ASK, "tools": [tool(mcp)]})
    for event in events:
        EVENTS.validate_python(event)
    refused, flood = [item for item in events[-1]["response"]["output"] if item["type"] == "mcp_call"]
    assert (refused["status"], refused["output"]) == ("failed", None)
    assert "no room is free" in refused["error"]["content"]
    assert flood["status"] == "failed" and "was lost" in flood["error"]["content"]
    assert kinds(events, "mcp_call.") == ["mcp_call.in_progress", "mcp_call.failed"] * 2
    assert "<tool>Error: " in model.prompts[1]


async def test_only_tools_that_the_request_allows_can_be_called(database: Database, mcp: ToolServer) -> None:
    model = scripted(call("far__refuse"), "Hm.", "Hm.")
    async with using(database, model, private=mcp.origin) as client:
        done = await post(client, URL, {"input": ASK, "tools": [tool(mcp, allowed_tools=["double"])]})
        read = await post(client, URL, {"input": ASK, "tools": [tool(mcp, allowed_tools={"read_only": True})]})
    for response in (done, read):
        assert [each["name"] for each in response["output"][0]["tools"]] == ["double"]
    assert "far__refuse" not in model.prompts[0]
    assert "there is no tool named 'far__refuse'" in model.prompts[1]


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "mcp", "server_label": "far", "name": "double"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp", "server_label": "far"}]},
        {"type": "mcp", "server_label": "far"},
    ],
)
async def test_a_tool_choice_may_name_a_server(database: Database, mcp: ToolServer, choice: Any) -> None:
    model = scripted(call("far__double", x=3), "Six.")
    own = {"type": "function", "name": "own"}
    async with using(database, model, private=mcp.origin) as client:
        await post(client, URL, {"input": ASK, "tools": [tool(mcp), own], "tool_choice": choice})
        lost = {**choice, "server_label": "near"}
        await post(client, URL, {"input": ASK, "tools": [tool(mcp)], "tool_choice": {**lost, "tools": None}}, 400)
    assert mcp.calls == [{"x": 3}]
    assert "far__double" in model.grammars[0].text and '"own"' not in model.grammars[0].text


async def test_a_call_waits_for_approval_unless_the_request_trusts_it(database: Database, mcp: ToolServer) -> None:
    trusts_reading = {"never": {"read_only": True}}
    model = scripted(call("far__files.delete", path="a.txt"), call("far__double", x=1), "Two.", "Gone.")
    asked = {"tools": [tool(mcp, require_approval=trusts_reading)]}
    async with using(database, model, private=mcp.origin) as client:
        events = await stream(client, URL, {**asked, "input": "Delete a.txt"})
        done = events[-1]["response"]
        free = await post(client, URL, {**asked, "input": "Double 1"})
        assert mcp.calls == [{"x": 1}], "what needs approval has not run"
        request = done["output"][-1]
        answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
        following = {**asked, "input": [answer], "previous_response_id": done["id"]}
        told = await stream(client, URL, following)
    for event in (*events, *told):
        EVENTS.validate_python(event)
    ITEMS.validate_python(request)
    assert (request["type"], request["name"], request["server_label"]) == (
        *("mcp_approval_request", "files.delete", "far"),
    )
    assert json.loads(request["arguments"]) == {"path": "a.txt"}
    assert [item["type"] for item in free["output"]] == ["mcp_list_tools", "mcp_call", "message"]
    called, message = told[-1]["response"]["output"]
    assert (called["type"], called["output"], called["approval_request_id"]) == (
        *("mcp_call", "a.txt is gone", request["id"]),
    )
    assert message["content"][0]["text"] == "Gone."
    assert mcp.calls == [{"x": 1}, {"path": "a.txt"}]
    assert "<tool>a.txt is gone" in model.prompts[-1]


async def test_approval_is_the_default(database: Database, mcp: ToolServer) -> None:
    asked = tool(mcp)
    del asked["require_approval"]
    async with using(database, scripted(call("far__double", x=1)), private=mcp.origin) as client:
        done = await post(client, URL, {"input": ASK, "tools": [asked]})
    assert (done["output"][-1]["type"], mcp.calls) == ("mcp_approval_request", [])
    assert done["tools"][0]["require_approval"] == "always"


async def test_a_call_that_the_user_denies_does_not_run(database: Database, mcp: ToolServer) -> None:
    model = scripted(call("far__double", x=1), "I did not.")
    asked = {"tools": [tool(mcp, require_approval="always")]}
    async with using(database, model, private=mcp.origin) as client:
        first = await post(client, URL, {**asked, "input": ASK, "store": False})
        answer = {"type": "mcp_approval_response", "approval_request_id": first["output"][-1]["id"], "approve": False}
        said = [{"role": "user", "content": ASK}, *first["output"], {**answer, "reason": "Not today."}]
        second = await post(client, URL, {**asked, "input": said})
        await post(client, URL, {**asked, "input": [*said, *second["output"], {**answer, "approve": True}]})
    assert (mcp.calls, second["output"][-1]["content"][0]["text"]) == ([], "I did not.")
    assert "<tool>Error: The user did not allow this call. Not today." in model.prompts[1]


async def test_an_approved_call_runs_once(database: Database, mcp: ToolServer) -> None:
    """Also where the client sends the whole conversation again, with the result of the call."""
    model = scripted(call("far__double", x=4), "Eight.", "Yes.", "Yes.")
    asked = {"tools": [tool(mcp, require_approval="always")]}
    async with using(database, model, private=mcp.origin) as client:
        first = await post(client, URL, {**asked, "input": ASK})
        answer = {
            "type": "mcp_approval_response",
            "approval_request_id": first["output"][-1]["id"],
            "approve": True,
        }
        said = [{"role": "user", "content": ASK}, *first["output"], answer]
        second = await post(client, URL, {**asked, "input": said})
        assert (second["status"], second["output"][-1]["content"][0]["text"]) == ("completed", "Eight.")
        sure = {"role": "user", "content": "Sure?"}
        await post(client, URL, {**asked, "input": [*said, *second["output"], sure]})
        third = {**asked, "input": [sure], "previous_response_id": second["id"]}
        await post(client, URL, third)
        nobody = {**answer, "approval_request_id": "mcpr_nobody"}
        await post(client, URL, {**asked, "input": [nobody]}, 400)
    assert mcp.calls == [{"x": 4}]
    assert model.prompts[2] == model.prompts[3]
    assert model.prompts[2].startswith(model.prompts[1].removesuffix("<assistant>"))


async def test_an_approved_call_is_not_refused_once_it_has_run(database: Database, mcp: ToolServer) -> None:
    """The turn that follows it fails as a turn, and what the call did is kept."""
    model = scripted(call("far__double", x=4), "Eight.")
    asked = {"tools": [tool(mcp, require_approval="always")]}
    async with using(database, model, private=mcp.origin) as client:
        first = await post(client, URL, {**asked, "input": ASK})
        answer = {"type": "mcp_approval_response", "approval_request_id": first["output"][-1]["id"], "approve": True}
        model.context_length = len(model.prompts[0]) + 20
        second = await post(client, URL, {**asked, "input": [answer], "previous_response_id": first["id"]})
        assert await get(client, f"{URL}/{second['id']}") == second
    assert (second["status"], second["error"]["code"]) == ("failed", "context_length_exceeded")
    assert [(item["type"], item["output"]) for item in second["output"]] == [("mcp_call", "8")]


async def test_openais_client_reads_it(database: Database, mcp: ToolServer) -> None:
    model = scripted(call("far__double", x=21), "It is 42.")
    async with using(database, model, private=mcp.origin) as client:
        url, key = client.make_url("/v1"), client.session.headers["Authorization"].split()[-1]
        async with AsyncOpenAI(base_url=str(url), api_key=key, max_retries=0) as openai:
            tools: Any = [tool(mcp, require_approval="always")]
            first = await openai.responses.create(model=MODEL, input=ASK, tools=tools)
            request = first.output[-1]
            assert isinstance(request, McpApprovalRequest)
            answer = McpApprovalResponse(type="mcp_approval_response", approval_request_id=request.id, approve=True)
            async with openai.responses.stream(
                model=MODEL, input=[answer], previous_response_id=first.id, tools=tools
            ) as streamed:
                kinds = [event.type async for event in streamed]
                second = await streamed.get_final_response()
    called, message = second.output
    assert isinstance(called, McpCall) and (called.output, called.approval_request_id) == ("42", request.id)
    assert (second.output_text, message.type) == ("It is 42.", "message")
    assert "response.mcp_call.completed" in kinds


async def test_a_server_is_asked_for_its_tools_once_by_each_tenant_and_token(
    database: Database, mcp: ToolServer
) -> None:
    model = scripted("Hm.")
    tokens: list[Any] = [{}, {}, {"authorization": "one"}, {"headers": {"x-key": "two"}}]
    async with using(database, model, private=mcp.origin) as client:
        for token in tokens:
            await post(client, URL, {"input": ASK, "tools": [tool(mcp, **token)]})
        asked = [headers for headers in mcp.seen if headers.get("mcp-method") == "tools/list"]
        assert len(asked) == 3
        assert [headers.get("authorization") for headers in asked] == [None, "Bearer one", None]
        assert asked[2]["x-key"] == "two"
        keys = Keys(database, SECRET)
        other = (await keys.create(await keys.tenant(f"test-{uuid4()}"), "test"))[1]
        client.session.headers["Authorization"] = f"Bearer {other}"
        await post(client, URL, {"input": ASK, "tools": [tool(mcp)]})
    assert mcp.asked("tools/list") == 4


async def test_a_server_that_cannot_list_its_tools_says_why_and_the_turn_goes_on(
    database: Database, mcp: ToolServer
) -> None:
    async with using(database, scripted("Without."), private=mcp.origin) as client:
        asked = {"input": ASK, "tools": [tool(mcp, authorization="wrong")]}
        events = await stream(client, URL, asked)
        away = tool(mcp, server_url=f"{mcp.origin}/away", server_label="away")
        moved = await post(client, URL, {"input": ASK, "tools": [away]})
    listed, message = events[-1]["response"]["output"]
    assert (listed["tools"], message["content"][0]["text"]) == ([], "Without.")
    assert kinds(events, "mcp_list_tools.") == ["mcp_list_tools.in_progress", "mcp_list_tools.failed"]
    assert "wrong" not in listed["error"] and "401" in listed["error"]
    assert moved["output"][0]["error"] and "127.0.0.1:9" not in json.dumps(moved)


async def test_only_origins_that_the_operator_allows_are_asked(database: Database, mcp: ToolServer) -> None:
    async with using(database, scripted("Hm."), private="https://other.example") as client:
        refused = await post(client, URL, {"input": ASK, "tools": [tool(mcp)]}, 403)
        parts = (mcp.origin, "https://other.example:8443/mcp", "http://other.example/", "https://x.other.example/")
        for url in parts:
            await post(client, URL, {"input": ASK, "tools": [tool(mcp, server_url=url)]}, 403)
    error = refused["error"]
    assert (error["param"], error["code"]) == ("tools.far.server_url", "mcp_server_not_allowed")
    assert mcp.seen == []


async def test_a_name_that_leads_to_this_machine_is_not_asked(database: Database, mcp: ToolServer) -> None:
    """Although its origin is allowed: its owner decides where it leads."""
    origin = mcp.origin.replace("127.0.0.1", "localhost")
    for named in (origin, mcp.origin):
        async with using(database, scripted("Hm."), public=named) as client:
            done = await post(client, URL, {"input": ASK, "tools": [tool(mcp, server_url=f"{named}/mcp")]})
        assert "leads to this machine" in done["output"][0]["error"]
    assert mcp.seen == []


async def test_a_key_may_be_limited_to_some_of_the_origins(database: Database, mcp: ToolServer) -> None:
    for origins, status in ((mcp.origin, 200), ("https://other.example", 403), ("", 403)):
        bounds = KeyLimits(mcp_origins=origins)
        async with using(database, scripted("Hm."), private=mcp.origin, bounds=bounds) as client:
            await post(client, URL, {"input": ASK, "tools": [tool(mcp)]}, status)


async def test_secrets_are_stored_nowhere_in_readable_form(
    database: Database, mcp: ToolServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in the response, its events or its trace, and not in the log; the queue has them encrypted."""
    caplog.set_level(logging.DEBUG)
    url, secret = f"{mcp.url}?key=hidden-in-url", {"x-key": "hidden-in-header"}
    asked = tool(mcp, server_url=url, headers=secret, authorization="hidden-token")
    model = scripted(call("far__double", x=4), "Eight.")
    async with using(database, model, private=mcp.origin, tenant=(name := f"test-{uuid4()}")) as client:
        done = await post(client, URL, {"input": ASK, "tools": [asked], "background": True})
        async with client.get(f"{URL}/{done['id']}?stream=true") as answer:
            told = await answer.text()
        (shown,) = (await get(client, f"{URL}/{done['id']}"))["tools"]
    assert shown["server_url"] == f"{mcp.origin}/<redacted>" and shown["headers"] == {"x-key": "<redacted>"}
    assert '"output":"8"' in told.replace(" ", "") and "hidden" not in told
    assert "hidden" not in caplog.text
    tenant_id = await Keys(database, SECRET).tenant(name)
    async with database.tenant(tenant_id) as connection:
        for table in ("responses", "response_events", "traces", "spans"):
            rows = await connection.fetch(f"select t::text as row from {table} t")
            assert rows and "hidden" not in str(rows), table
    seals, body = Seals(SECRET), ResponseRequest.model_validate({"input": ASK, "tools": [asked]})
    assert "hidden" in body.model_dump_json() and "hidden" not in json.dumps(stored_request(seals, tenant_id, body))
    assert {headers.get("authorization") for headers in mcp.seen} == {"Bearer hidden-token"}


async def test_deferred_tools_are_found_and_then_run_here(database: Database, mcp: ToolServer) -> None:
    model = scripted(call("tool_search", query="double"), call("far__double", x=4), "Eight.")
    tools = [{"type": "tool_search"}, tool(mcp, defer_loading=True)]
    async with using(database, model, private=mcp.origin) as client:
        done = await post(client, URL, {"input": ASK, "tools": tools})
    assert "far__double" not in model.prompts[0]
    assert [item["type"] for item in done["output"]] == [
        *("mcp_list_tools", "tool_search_call", "tool_search_output", "mcp_call", "message"),
    ]
    assert mcp.calls == [{"x": 4}]
