"""Tools of coding agents at POST /v1/responses: calls, outputs and events, in the shapes that OpenAI's client knows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import ResponseOutputItem, ResponseStreamEvent
from pydantic import TypeAdapter

from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, answering, get, post, stream

URL = "/v1/responses"
PATCH = {"type": "custom", "name": "edit", "description": "Edit a file."}
ORDERS = {"type": "function", "name": "find_orders", "description": "Find orders.", "defer_loading": True}
CRM = {"type": "namespace", "name": "mcp__crm", "description": "Customers.", "tools": [ORDERS]}
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ITEMS: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)
TEXT = 'say "hi"\n\\ and 😀 done'


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def told(database: Database, reply: str, tools: list[Any]) -> tuple[list[Any], Any]:
    """The events of a streamed call, each of them in the shape of its type, and the item."""
    model = ScriptedModel([reply], name=MODEL, piece_chars=2)
    async with answering(database, model=model) as client:
        events = await stream(client, URL, {"input": "go", "tools": tools})
    for event in events:
        EVENTS.validate_python(event)
    (item,) = events[-1]["response"]["output"]
    ITEMS.validate_python(item)
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == [item]
    return events, item


async def test_the_input_of_a_custom_tool_is_text_that_is_streamed(database: Database) -> None:
    events, item = await told(database, call("edit", input=TEXT), [PATCH])
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "edit", TEXT)
    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    (done,) = [event for event in events if event["type"] == "response.custom_tool_call_input.done"]
    assert ("".join(deltas), done["input"]) == (TEXT, TEXT) and len(deltas) > 3
    assert not [event for event in events if "function_call_arguments" in event["type"]]


@pytest.mark.parametrize("separator", ["__", ""])
async def test_a_tool_of_a_namespace_is_told_by_the_names_it_came_with(database: Database, separator: str) -> None:
    space = {"type": "namespace", "name": f"mcp__crm{'' if separator else '__'}", "description": "Customers."}
    tools = [{**space, "tools": [{"type": "function", "name": "find"}, {**PATCH, "name": "note"}]}]
    events, item = await told(database, call("mcp__crm__find", of="Ann"), tools)
    assert (item["type"], item["namespace"], item["name"]) == ("function_call", space["name"], "find")
    assert [each["name"] for each in events if each["type"].endswith("arguments.done")] == ["find"]
    _, item = await told(database, call("mcp__crm__note", input="x"), tools)
    assert (item["type"], item["namespace"], item["name"]) == ("custom_tool_call", space["name"], "note")


@pytest.mark.parametrize(
    ("type", "arguments", "told_as"),
    [
        ("local_shell", {"command": ["ls", "-l"]}, {"action": {"type": "exec", "command": ["ls", "-l"], "env": {}}}),
        ("shell", {"commands": ["ls", "pwd"]}, {"action": {"commands": ["ls", "pwd"]}}),
        (
            "apply_patch",
            {"type": "update_file", "path": "a.py", "diff": "+x"},
            {"operation": {"type": "update_file", "path": "a.py", "diff": "+x"}},
        ),
        (
            "apply_patch",
            {"type": "delete_file", "path": "a.py", "diff": ""},
            {"operation": {"type": "delete_file", "path": "a.py"}},
        ),
    ],
)
async def test_the_contracts_own_tools_have_items_of_their_own(
    database: Database, type: str, arguments: dict[str, Any], told_as: dict[str, Any]
) -> None:
    events, item = await told(database, call(type, **arguments), [{"type": type}])
    assert item["type"] == f"{type}_call"
    assert {key: item[key] for key in told_as} == told_as
    commands = [event["command"] for event in events if event["type"] == "response.shell_call_command.done"]
    assert commands == arguments.get("commands", [])


async def test_arguments_that_do_not_fit_reach_nobody(database: Database) -> None:
    """In a dialect whose calls a grammar does not hold from their first mark on."""
    calls = [f'<|python_tag|>{{"name": "shell", "parameters": {{"commands": {each}}}}}' for each in ('"ls"', '["ls"]')]
    model = ScriptedModel(calls, name=MODEL, chat_template="<|python_tag|>")
    async with answering(database, model=model) as client:
        response = await post(client, URL, {"input": "go", "tools": [{"type": "shell"}]})
        assert await get(client, f"{URL}/{response['id']}") == response
    assert [(item["type"], item["status"]) for item in response["output"]] == [
        ("function_call", "incomplete"),
        ("function_call_output", "completed"),
        ("shell_call", "completed"),
    ]
    assert response["output"][-1]["action"]["commands"] == ["ls"]


ROUNDS: dict[str, tuple[dict[str, Any], str, dict[str, Any], str]] = {
    "custom": (PATCH, call("edit", input=TEXT), {"type": "custom_tool_call_output", "output": "edited"}, "edited"),
    "local_shell": (
        {"type": "local_shell"},
        call("local_shell", command=["ls"]),
        {"type": "local_shell_call_output", "output": '{"output": "a.py"}'},
        "a.py",
    ),
    "shell": (
        {"type": "shell"},
        call("shell", commands=["ls"]),
        {
            "type": "shell_call_output",
            "output": [{"stdout": "a.py", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        },
        "a.py",
    ),
    "apply_patch": (
        {"type": "apply_patch"},
        call("apply_patch", type="create_file", path="a.py", diff="+x"),
        {"type": "apply_patch_call_output", "status": "failed", "output": "no such folder"},
        "Error: no such folder",
    ),
    "namespace": (
        {**CRM, "tools": [{**ORDERS, "defer_loading": False}]},
        call("mcp__crm__find_orders", of="Ann"),
        {"type": "function_call_output", "output": "two", "namespace": "mcp__crm", "name": "find_orders"},
        "two",
    ),
}


@pytest.mark.parametrize("form", ROUNDS)
@pytest.mark.parametrize("stored", [True, False])
async def test_an_output_starts_the_next_turn(database: Database, form: str, stored: bool) -> None:
    """From the store, and from items that the client sends back; the prompt is the same."""
    tool, reply, output, heard = ROUNDS[form]
    model = ScriptedModel([reply, "Done."], name=MODEL)
    async with answering(database, model=model) as client:
        asked = [{"role": "user", "content": "go"}]
        first = await post(client, URL, {"input": asked, "tools": [tool], "store": stored})
        answered = {**output, "call_id": first["output"][0]["call_id"]}
        if stored:
            body = {"input": [answered], "previous_response_id": first["id"]}
        else:
            body = {"input": [*asked, *first["output"], answered]}
        second = await post(client, URL, {**body, "tools": [tool]})
    assert second["output"][0]["content"][0]["text"] == "Done."
    assert heard in model.prompts[1].partition("<tool>")[2]
    assert model.prompts[1].startswith(model.prompts[0].removesuffix("<assistant>"))


async def test_items_of_a_conversation_are_told_as_they_came(database: Database) -> None:
    async with answering(database, "x") as client:
        items: list[dict[str, Any]] = [
            {"type": "custom_tool_call", "call_id": "a", "name": "edit", "input": TEXT},
            {"type": "custom_tool_call_output", "call_id": "a", "output": "ok"},
            {"type": "shell_call", "call_id": "b", "action": {"commands": ["ls"], "timeout_ms": 5}},
            {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "a"}},
            {"type": "function_call", "call_id": "d", "name": "f", "namespace": "n", "arguments": "{}"},
            {"type": "additional_tools", "role": "developer", "tools": [{**ORDERS, "parameters": {"type": "object"}}]},
            {"type": "configuration_update", "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}}},
        ]
        conversation = await post(client, "/v1/conversations", {"items": items})
        kept = (await get(client, f"/v1/conversations/{conversation['id']}/items?order=asc"))["data"]
    for sent, item in zip(items, kept, strict=True):
        told_back = {key: item[key] for key in sent}
        if "tools" in sent:
            told_back["tools"] = [{key: tool[key] for key in sent["tools"][0]} for tool in item["tools"]]
        assert told_back == sent


async def test_a_search_of_this_server_adds_deferred_tools(database: Database) -> None:
    model = ScriptedModel(
        [call("tool_search", query="orders"), call("mcp__crm__find_orders", of="Ann"), "Two."], name=MODEL
    )
    other = {**ORDERS, "name": "play_chess", "description": "Play chess."}
    tools = [CRM, other, {"type": "tool_search"}]
    async with answering(database, model=model) as client:
        events = await stream(client, URL, {"input": "go", "tools": tools})
        first = events[-1]["response"]
        search, found, called = first["output"]
        output = {"type": "function_call_output", "call_id": called["call_id"], "output": "two"}
        again = [{"role": "user", "content": "go"}, *first["output"], output]
        await post(client, URL, {"input": [output], "previous_response_id": first["id"], "tools": tools})
        await post(client, URL, {"input": again, "tools": tools})
    for event in events:
        EVENTS.validate_python(event)
    assert "find_orders" not in model.prompts[0]
    assert (search["type"], search["execution"], search["arguments"]) == (
        "tool_search_call",
        "server",
        {"query": "orders"},
    )
    assert (found["type"], found["call_id"]) == ("tool_search_output", search["call_id"])
    (space,) = found["tools"]
    assert (space["name"], [tool["name"] for tool in space["tools"]]) == ("mcp__crm", ["find_orders"])
    assert (called["type"], called["namespace"], called["name"]) == ("function_call", "mcp__crm", "find_orders")
    assert "find_orders" not in model.grammars[0].text and "mcp__crm__find_orders" in model.grammars[1].text
    assert model.prompts[1].startswith(model.prompts[0].removesuffix("<assistant>"))
    assert model.prompts[2].startswith(model.prompts[1].removesuffix("<assistant>"))
    assert model.prompts[3] == model.prompts[2]
    assert "chess" not in "".join(model.prompts)


@pytest.mark.parametrize("call_id", ["call_1", None])
async def test_a_search_of_the_client_adds_the_tools_that_it_sends(database: Database, call_id: str | None) -> None:
    searching = {"type": "tool_search", "execution": "client", "description": "Find tools."}
    model = ScriptedModel([call("tool_search", query="orders"), call("mcp__crm__find_orders")], name=MODEL)
    async with answering(database, model=model) as client:
        first = await post(client, URL, {"input": "go", "tools": [searching]})
        (search,) = first["output"]
        ITEMS.validate_python(search)
        sent = {**search, "call_id": call_id}
        found = {"type": "tool_search_output", "call_id": call_id, "execution": "client", "tools": [CRM]}
        body = {"input": [{"role": "user", "content": "go"}, sent, found], "tools": [searching]}
        second = await post(client, URL, body)
    assert (search["type"], search["execution"]) == ("tool_search_call", "client")
    assert second["output"][0]["namespace"] == "mcp__crm"
    assert "Find orders." in model.prompts[1].partition("<tool>")[2]


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "custom", "name": "edit"}, "edit"),
        ({"type": "shell"}, "shell"),
        ({"type": "function", "name": "find", "namespace": "n"}, "n__find"),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "shell"}]}, "shell"),
    ],
)
async def test_a_choice_names_them(database: Database, choice: Any, name: str) -> None:
    model = ScriptedModel(["x"], name=MODEL)
    space = {"type": "namespace", "name": "n", "description": "", "tools": [{"type": "function", "name": "find"}]}
    async with answering(database, model=model) as client:
        await post(client, URL, {"input": "go", "tools": [PATCH, {"type": "shell"}, space], "tool_choice": choice})
    names = [each for each in ("edit", "shell", "n__find") if f'"name\\": \\"{each}' in model.grammars[0].text]
    assert names == [name]


@pytest.mark.parametrize("syntax", ["lark", "regex"])
async def test_an_input_is_held_to_its_grammar_which_the_model_sees(database: Database, syntax: str) -> None:
    definition = "start: /[a-z]{3}/ LF\n%import common.LF" if syntax == "lark" else "[a-z]{3}"
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    model = ScriptedModel([call("edit", input="abc\n")], name=MODEL)
    async with answering(database, model=model) as client:
        response = await post(client, URL, {"input": "go", "tools": [{**PATCH, "format": form}]})
    assert response["tools"][0]["format"] == form
    assert response["output"][0]["input"] == "abc\n"
    assert f"The input must match this {syntax} grammar:" in model.prompts[0]
    assert ("%lark" if syntax == "lark" else '"pattern"') in model.grammars[0].text


@pytest.mark.parametrize(
    ("tool", "named"),
    [
        ({"type": "mcp", "server_label": "a", "connector_id": "connector_gmail"}, "tools[0].server_url"),
        ({"type": "code_interpreter", "container": {"type": "auto"}}, "tools[0]"),
        ({"type": "shell", "environment": {"type": "container_auto"}}, "tools[0].environment.type"),
        ({**CRM, "tools": [{"type": "mcp"}]}, "tools[0].tools[0]"),
        ({**CRM, "name": "n" * 100, "tools": [{**ORDERS, "name": "f" * 100}]}, "tools[0]"),
        ({**CRM, "tools": [ORDERS, ORDERS]}, "tools"),
        ({**PATCH, "format": {"type": "grammar", "syntax": "regex", "definition": "("}}, "tools[0].format.definition"),
        (
            {**PATCH, "format": {"type": "grammar", "syntax": "lark", "definition": "%json"}},
            "tools[0].format.definition",
        ),
        ({**PATCH, "format": {"type": "grammar", "syntax": "ebnf", "definition": "x"}}, "tools[0].format.syntax"),
    ],
)
async def test_what_cannot_be_done_is_refused_at_its_place(database: Database, tool: Any, named: str) -> None:
    async with answering(database, "x") as client:
        refused = await post(client, URL, {"input": "go", "tools": [tool]}, 400)
    assert refused["error"]["param"] == named


async def test_a_grammar_that_no_input_completes_is_refused_before_the_turn_starts(database: Database) -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": 'start: "a" start'}
    async with answering(database, "x") as client:
        asked = {"input": "go", "tools": [{**PATCH, "format": form}], "stream": True}
        refused = await post(client, URL, asked, 400)
    assert refused["error"]["param"] == "tools"
    assert "'edit'" in refused["error"]["message"] and "never ends" in refused["error"]["message"]


@pytest.mark.parametrize(("type", "field"), [("shell", "action"), ("custom", "input"), ("apply_patch", "operation")])
async def test_a_call_that_is_cut_off_is_incomplete_and_is_kept(database: Database, type: str, field: str) -> None:
    name = "edit" if type == "custom" else type
    arguments: dict[str, Any] = {"input": TEXT} if type == "custom" else {"commands": ["ls"], "type": "delete_file"}
    tool = PATCH if type == "custom" else {"type": type}
    async with answering(database, call(name, **arguments)) as client:
        events = await stream(client, URL, {"input": "go", "tools": [tool], "max_output_tokens": 18})
        response = events[-1]["response"]
        assert await get(client, f"{URL}/{response['id']}") == response
        again = [{"role": "user", "content": "go"}, *response["output"], {"role": "user", "content": "go on"}]
        assert await post(client, URL, {"input": again, "max_output_tokens": 18})
    (item,) = response["output"]
    ITEMS.validate_python(item)
    assert (item["type"], response["status"]) == (f"{type}{'_tool' if type == 'custom' else ''}_call", "incomplete")
    assert item["status"] == ("in_progress" if type == "apply_patch" else "incomplete")  # as far as the contract goes
    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert type != "custom" or (TEXT.startswith("".join(deltas)) and "".join(deltas) == item[field] != "")
