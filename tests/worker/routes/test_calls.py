"""Calls of the client's functions, on each of the three APIs, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, answering, post, stream
from tests.worker.harness import Client

SCHEMA = {"type": "object", "properties": {"text": {"type": ["string", "null"]}}, "required": ["text"]}
LONG_NAME = "mcp__a_server_with_a_long_name__" + "f" * 96
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
CODER = "<tool_call>\n<function=example>"  # a template that writes calls like Qwen3-Coder

Calls = list[tuple[str, str]]  # names and arguments
Ask = Callable[..., Awaitable[Calls]]


def called(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


async def by_chat(client: Client, name: str, streams: bool = False, **more: Any) -> Calls:
    function = {"name": name, "parameters": SCHEMA, "strict": more.pop("strict", False)}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Go."}], "max_tokens": 4_000, **more}
    body["tools"] = [{"type": "function", "function": function}]
    if not streams:
        (choice,) = (await post(client, CHAT, body))["choices"]
        assert choice["finish_reason"] == "tool_calls"
        return [(each["function"]["name"], each["function"]["arguments"]) for each in choice["message"]["tool_calls"]]
    found: dict[int, list[str]] = {}
    for chunk in await stream(client, CHAT, body):
        for each in chunk["choices"][0]["delta"].get("tool_calls", ()):
            pair = found.setdefault(each["index"], ["", ""])
            pair[0] += each["function"].get("name", "")
            pair[1] += each["function"]["arguments"]
    return [(name, arguments) for name, arguments in found.values()]


async def by_responses(client: Client, name: str, streams: bool = False, **more: Any) -> Calls:
    function = {"type": "function", "name": name, "parameters": SCHEMA, "strict": more.pop("strict", False)}
    body = {"model": MODEL, "input": "Go.", "max_output_tokens": 4_000, "store": False, "tools": [function], **more}
    if streams:
        *_, last = await stream(client, RESPONSES, body)
        output = last["response"]["output"]
    else:
        output = (await post(client, RESPONSES, body))["output"]
    items = [item for item in output if item["type"] == "function_call" and item["status"] == "completed"]
    return [(item["name"], item["arguments"]) for item in items]


async def by_messages(client: Client, name: str, streams: bool = False, **more: Any) -> Calls:
    function = {"name": name, "input_schema": SCHEMA, "strict": more.pop("strict", False)}
    body = {"model": MODEL, "max_tokens": 4_000, "messages": [{"role": "user", "content": "Go."}], **more}
    body["tools"] = [function]
    if not streams:
        message = await post(client, MESSAGES, body)
        assert message["stop_reason"] == "tool_use"
        blocks = [block for block in message["content"] if block["type"] == "tool_use"]
        return [(block["name"], json.dumps(block["input"], ensure_ascii=False)) for block in blocks]
    async with client.post(MESSAGES, json={**body, "stream": True}) as answer:
        events = [orjson.loads(line[6:]) for line in (await answer.text()).split("\n") if line.startswith("data: ")]
    found: dict[int, list[str]] = {}
    for event in events:
        match event:
            case {"type": "content_block_start", "index": index, "content_block": {"type": "tool_use"} as block}:
                found[index] = [block["name"], ""]
            case {"type": "content_block_delta", "index": index, "delta": {"partial_json": text}}:
                found[index][1] += text
    return [(name, arguments) for name, arguments in found.values()]


APIS = pytest.mark.parametrize("ask", [by_chat, by_responses, by_messages])
STREAMS = pytest.mark.parametrize("streams", [False, True])


@APIS
@STREAMS
async def test_a_function_may_have_a_name_of_128_characters(database: Database, ask: Ask, streams: bool) -> None:
    async with answering(database, called(LONG_NAME, text="a")) as client:
        assert await ask(client, LONG_NAME, streams) == [(LONG_NAME, '{"text": "a"}')]


@APIS
@STREAMS
async def test_a_megabyte_of_arguments_arrives(database: Database, ask: Ask, streams: bool) -> None:
    text = "é <b> {" * (2**20 // 8 - 8)
    model = ScriptedModel([called("write", text=text)], name=MODEL, piece_chars=1_000)
    async with answering(database, model=model) as client:
        ((_, arguments),) = await ask(client, "write", streams)
    assert json.loads(arguments) == {"text": text}


@APIS
@STREAMS
async def test_strict_arguments_have_their_declared_type_or_are_written_anew(
    database: Database, ask: Ask, streams: bool
) -> None:
    call = "<tool_call>\n<function=look_up>\n<parameter={}>\n77812\n</parameter>\n</function>\n</tool_call>"
    model = ScriptedModel([call.format("txet"), call.format("text")], name=MODEL, chat_template=CODER)
    async with answering(database, model=model) as client:
        assert await ask(client, "look_up", streams, strict=True) == [("look_up", '{"text": "77812"}')]
    assert len(model.prompts) == 2


@pytest.mark.parametrize(("ask", "stop"), [(by_chat, "stop"), (by_messages, "stop_sequences")])
@STREAMS
async def test_stop_strings_do_not_cut_calls(database: Database, ask: Ask, stop: str, streams: bool) -> None:
    async with answering(database, called("say", text="alpha beta")) as client:
        assert await ask(client, "say", streams, **{stop: ["beta", "\n"]}) == [("say", '{"text": "alpha beta"}')]


async def test_calls_without_arguments_in_a_history_have_empty_ones(database: Database) -> None:
    model = ScriptedModel(["Yes."], name=MODEL)
    messages = [
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "tool_calls": [
                {"id": str(n), "type": "function", "function": {"name": "f", "arguments": arguments}}
                for n, arguments in enumerate(("", " \n", "{}"))
            ],
        },
        *({"role": "tool", "tool_call_id": str(n), "content": ""} for n in range(3)),
    ]
    async with answering(database, model=model) as client:
        await post(client, CHAT, {"model": MODEL, "messages": messages})
    assert model.prompts[0].count("<call>f {}</call>") == 3


@pytest.mark.parametrize("output", [None, 3, {"a": 1}])
async def test_an_output_that_is_no_text_is_told_what_it_should_be(database: Database, output: Any) -> None:
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    items = [call, {"type": "function_call_output", "call_id": "1", "output": output}]
    got = {None: "null", 3: "int"}.get(output if not isinstance(output, dict) else -1, "dict")
    expected = f"Expected a string or a list of parts, but got {got}."
    async with answering(database, "Yes.") as client:
        refused = (await post(client, RESPONSES, {"model": MODEL, "input": items}, 400))["error"]
        assert (refused["param"], refused["message"]) == ("input[1].output", f"Invalid 'input[1].output': {expected}")
        said = [
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": output},
        ]
        refused = (await post(client, CHAT, {"model": MODEL, "messages": said}, 400))["error"]
        assert refused["param"] == "messages[1].content" and expected in refused["message"]
