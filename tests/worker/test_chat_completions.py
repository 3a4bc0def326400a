"""POST /v1/chat/completions, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from inference.testing import ScriptedModel
from migrations.database import Database
from tests.worker.answering import MODEL, answering, post, stream

URL = "/v1/chat/completions"
USER = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


async def test_a_completion_as_a_whole(database: Database) -> None:
    async with answering(database, "Hello there.") as client:
        completion = await post(client, URL, {"model": MODEL, "messages": [USER]})
    (choice,) = completion["choices"]
    assert completion["object"] == "chat.completion"
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello there.", "stop")
    assert completion["usage"]["total_tokens"] > completion["usage"]["completion_tokens"] > 0


async def test_a_completion_as_a_stream_says_the_same(database: Database) -> None:
    async with answering(database, "Hello there.") as client:
        chunks = await stream(client, URL, {"messages": [USER], "stream_options": {"include_usage": True}})
    assert "".join(c["delta"].get("content", "") for chunk in chunks for c in chunk["choices"]) == "Hello there."
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["completion_tokens"] > 0


async def test_a_function_is_called_and_its_result_answered(database: Database) -> None:
    model = ScriptedModel([CALL, "It rains."], name=MODEL)
    async with answering(database, model=model) as client:
        first = await post(client, URL, {"messages": [USER], "tools": [TOOL]})
        message = first["choices"][0]["message"]
        (call,) = message["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "rain"}
        second = await post(client, URL, {"messages": [USER, message, result], "tools": [TOOL]})
    assert first["choices"][0]["finish_reason"] == "tool_calls"
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    assert second["choices"][0]["message"]["content"] == "It rains."
    assert "<tool>rain" in model.prompts[1]


async def test_a_streamed_call_adds_up(database: Database) -> None:
    async with answering(database, CALL) as client:
        chunks = await stream(client, URL, {"messages": [USER], "tools": [TOOL]})
    fragments = [f for chunk in chunks for c in chunk["choices"] for f in c["delta"].get("tool_calls", [])]
    assert fragments[0]["function"] == {"name": "get_weather", "arguments": ""}
    assert "".join(fragment["function"]["arguments"] for fragment in fragments) == '{"city": "Oslo"}'
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"messages": []}, 400, "messages"),
        ({"messages": [USER], "model": "gpt-9"}, 404, "model"),
        ({"messages": [USER], "n": 3}, 400, "n"),
        ({"messages": [{"role": "tool", "tool_call_id": "c", "content": "3"}]}, 400, "input"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_what_is_wrong_is_refused_before_anything_streams(
    database: Database, body: dict[str, Any], status: int, param: str, streamed: bool
) -> None:
    async with answering(database, "x") as client:
        assert (await post(client, URL, {**body, "stream": streamed}, status))["error"]["param"] == param
