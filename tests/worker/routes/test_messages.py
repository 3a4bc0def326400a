"""POST /v1/messages, over HTTP."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest

from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, StallingModel, answering, post
from tests.worker.harness import Client
from worker.config import Config
from worker.services import SERVICES

URL = "/v1/messages"
USER = {"role": "user", "content": "hello"}
ASK: dict[str, Any] = {"model": MODEL, "max_tokens": 100, "messages": [USER]}
TOOL = {"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
CALLED = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1"}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
THINKING = "{% if enable_thinking %}<think></think>{% endif %}"
THOUGHT = "<think>\nHm.\n</think>\n\nYes."
CUT_OFF = '<tool_call>\n{"name": "get_weather", "arguments": {"ci'


async def told(client: Client, body: Any) -> list[dict[str, Any]]:
    """All events of a streamed message but the pings."""
    async with client.post(URL, json={**body, "stream": True}) as answer:
        text = await answer.text()
        assert answer.status == 200, text
        assert answer.content_type == "text/event-stream"
    events = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(orjson.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return [event for event in events if event["type"] != "ping"]


def added_up(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that the events tell."""
    message: dict[str, Any] = events[0]["message"]
    arguments: dict[int, str] = {}
    for event in events[1:]:
        match event:
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert index == len(message["content"])
                message["content"].append(block)
            case {"type": "content_block_delta", "index": index, "delta": {"type": "input_json_delta"} as delta}:
                arguments[index] = arguments.get(index, "") + delta["partial_json"]
            case {"type": "content_block_delta", "index": index, "delta": delta}:
                key = delta["type"].removesuffix("_delta")
                message["content"][index][key] += delta[key]
            case {"type": "message_delta", "delta": delta, "usage": usage}:
                message |= {**delta, "usage": usage}
    for index, text in arguments.items():
        message["content"][index]["input"] = orjson.loads(text)
    return message


@pytest.mark.parametrize(
    ("reply", "more"),
    [
        ("Hello there.", {}),
        ("Hello there.", {"stop_sequences": ["the", "ther"]}),
        ("Hello there.", {"max_tokens": 2}),
        (f"Let me look.\n{CALL}", {"tools": [TOOL]}),
        (THOUGHT, {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        (THOUGHT, {"thinking": {"type": "adaptive", "display": "omitted"}}),
    ],
)
async def test_a_stream_adds_up_to_the_whole_message(database: Database, reply: str, more: dict[str, Any]) -> None:
    model = ScriptedModel([reply], name=MODEL, chat_template=THINKING, switches=frozenset({"enable_thinking"}))
    async with answering(database, model=model) as client:
        whole = await post(client, URL, {**ASK, **more})
        events = await told(client, {**ASK, **more})
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    streamed = added_up(events)
    for message in (whole, streamed):
        message.pop("id")
        for block in message["content"]:
            block.pop("id", None)
            block.pop("signature", None)
    assert streamed == whole
    assert (whole["type"], whole["role"], whole["model"]) == ("message", "assistant", MODEL)


async def test_an_answer_goes_on_from_the_last_message_of_the_assistant(database: Database) -> None:
    model = ScriptedModel([" am well."], name=MODEL)
    messages = [USER, {"role": "assistant", "content": "Hello,"}, {"role": "assistant", "content": " I"}]
    async with answering(database, model=model) as client:
        message = await post(client, URL, {**ASK, "messages": messages})
        streamed = added_up(await told(client, {**ASK, "messages": messages}))
    assert message["content"][0]["text"] == streamed["content"][0]["text"] == " am well."
    assert model.prompts == ["<user>hello\n<assistant>Hello, I"] * 2


async def test_the_end_says_why(database: Database) -> None:
    async with answering(database, "Hello there.") as client:
        ends = [
            await post(client, URL, {**ASK, **more})
            for more in ({}, {"max_tokens": 2}, {"stop_sequences": ["x", " th"]}, {"stop_sequences": ["x"]})
        ]
    assert [end["stop_reason"] for end in ends] == ["end_turn", "max_tokens", "stop_sequence", "end_turn"]
    assert [end["stop_sequence"] for end in ends] == [None, None, " th", None]
    assert ends[2]["content"][0]["text"] == "Hello"
    assert ends[0]["usage"]["input_tokens"] > 0 and ends[0]["usage"]["output_tokens"] == 4


async def test_a_function_makes_the_round_trip(database: Database) -> None:
    model = ScriptedModel([CALL, "It rains."], name=MODEL)
    async with answering(database, model=model) as client:
        first = await post(client, URL, {**ASK, "tools": [TOOL]})
        (call,) = first["content"]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "rain"}]}
        failed = {**result, "content": "no sensor", "is_error": True}
        said = [USER, {"role": "assistant", "content": first["content"]}]
        asked = {**ASK, "tools": [TOOL]}
        second = await post(client, URL, {**asked, "messages": [*said, {"role": "user", "content": [result]}]})
        await post(client, URL, {**asked, "messages": [*said, {"role": "user", "content": [failed]}, USER]})
    assert first["stop_reason"] == "tool_use"
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "get_weather", {"city": "Oslo"})
    assert second["content"][0]["text"] == "It rains."
    assert '<call>get_weather {"city": "Oslo"}</call>\n<tool>rain\n' in model.prompts[1]
    assert "<tool>Error: no sensor\n<user>hello" in model.prompts[2]


async def test_a_call_that_was_cut_off_is_no_call(database: Database) -> None:
    async with answering(database, CUT_OFF) as client:
        message = await post(client, URL, {**ASK, "tools": [TOOL], "max_tokens": 10})
    assert (message["content"], message["stop_reason"]) == ([], "max_tokens")


@pytest.mark.parametrize(
    ("choice", "forced", "calls"),
    [
        ({"type": "any"}, "Call a tool before you answer.", 2),
        ({"type": "tool", "name": "get_weather"}, "Call the tool get_weather before you answer.", 1),
        ({"type": "none"}, None, 0),
    ],
)
async def test_a_choice_of_tools_is_kept(database: Database, choice: Any, forced: str | None, calls: int) -> None:
    model = ScriptedModel([CALL], name=MODEL)
    other = {**TOOL, "name": "get_time"}
    async with answering(database, model=model) as client:
        await post(client, URL, {**ASK, "tools": [TOOL, other], "tool_choice": choice})
    assert (forced or "before you answer") in model.prompts[0] or forced is None
    assert model.prompts[0].count('"type": "function"') == calls
    assert len(model.grammars) == (calls > 0)


async def test_what_was_said_becomes_one_message_for_each_side(database: Database) -> None:
    model = ScriptedModel(["Yes."], name=MODEL)
    note = base64.b64encode(b"The port is 8080.").decode()
    body = {
        **ASK,
        "system": [{"type": "text", "text": "x-anthropic-billing-header: a=1;"}, {"type": "text", "text": "Be kind."}],
        "messages": [
            USER,
            {"role": "user", "content": [_text("again")]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "One."},
                    {"type": "text", "text": "Two."},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "document", "title": "a.md", "source": {"type": "text", "data": "Text."}},
                    {"type": "document", "source": {"type": "content", "content": [_text("One."), _text("Two.")]}},
                    {
                        "type": "document",
                        "title": "b.md",
                        "source": {"type": "base64", "media_type": "text/markdown", "data": note},
                    },
                    {
                        "type": "search_result",
                        "title": "T",
                        "source": "S",
                        "content": [{"type": "text", "text": "found"}],
                    },
                ],
            },
        ],
    }
    async with answering(database, model=model) as client, client.post(URL, json=body) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.headers["X-Firsttoken-Ignored"] == "system.x-anthropic-billing-header"
        assert answer.headers["Request-Id"] == answer.headers["X-Request-Id"]
    assert model.prompts[0] == (
        "<system>Be kind.\n<user>hello\nagain\n<assistant>One.Two.\n"
        "<user>File a.md:\nText.\nFile document:\nOne.\nTwo.\nFile b.md:\nThe port is 8080.\nT (S):\nfound\n<assistant>"
    )


async def test_what_coding_agents_send_is_taken_and_named(database: Database) -> None:
    model = ScriptedModel(["Yes."], name=MODEL)
    body = {
        **ASK,
        "messages": [{"role": "user", "content": [{**_text("hello"), "cache_control": {"type": "ephemeral"}}]}],
        "tools": [
            {
                **TOOL,
                "description": "x" * 20_000,
                "cache_control": {"type": "ephemeral"},
                "eager_input_streaming": True,
            },
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        ],
        "metadata": {"user_id": "user_1_account__session_2"},
        "thinking": {"type": "enabled", "budget_tokens": 31_999},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "max"},
        "temperature": 1,
        "top_k": 5,
        "speed": None,
        "one_of_tomorrow": {},
    }
    async with answering(database, model=model) as client:
        client.session.headers["anthropic-version"] = "2023-06-01"
        client.session.headers["anthropic-beta"] = "interleaved-thinking-2025-05-14"
        async with client.post(f"{URL}?beta=true", json=body) as answer:
            assert answer.status == 200, await answer.text()
            named = set(answer.headers["X-Firsttoken-Ignored"].split(","))
    assert named == {
        "cache_control",
        "tools.web_search_20250305",
        "thinking",
        "output_config.effort",
        "context_management",
        "one_of_tomorrow",
    }
    assert model.generations[0].sampling.top_k == 5


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


async def test_thinking_is_switched_where_the_template_has_a_switch(database: Database) -> None:
    model = ScriptedModel(["Yes."], name=MODEL, switches=frozenset({"enable_thinking", "reasoning_effort"}))
    async with answering(database, model=model) as client:
        for more in (
            {},
            {"thinking": {"type": "enabled", "budget_tokens": 2000}},
            {"thinking": {"type": "disabled"}},
            {"output_config": {"effort": "max"}},
        ):
            async with client.post(URL, json={**ASK, **more}) as answer:
                assert "output_config" not in answer.headers.get("X-Firsttoken-Ignored", "")
    begun = [prompt.partition("<user>")[0] for prompt in model.prompts]
    assert begun == [
        "",
        "<reasoning_effort=medium><enable_thinking=True>",
        "<reasoning_effort=none><enable_thinking=False>",
        "<reasoning_effort=high><enable_thinking=True>",
    ]


@pytest.mark.parametrize(
    ("change", "status", "kind", "named"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"model": "claude"}, 404, "not_found_error", "model"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"messages": [USER, {"role": "assistant", "content": ""}]}, 400, "invalid_request_error", "messages"),
        ({"messages": [USER, {"role": "assistant", "content": [CALLED]}]}, 400, "invalid_request_error", "messages"),
        (
            {
                "messages": [USER, {"role": "assistant", "content": "{"}],
                "tools": [TOOL],
                "tool_choice": {"type": "any"},
            },
            400,
            "invalid_request_error",
            "messages",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "invalid_request_error", "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, 400, "invalid_request_error", "[0].content"),
        ({"messages": [USER, {"role": "user", "content": [PICTURE]}]}, 400, "invalid_request_error", "[1].content[0]"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "file:/"}}]}
                ]
            },
            400,
            "invalid_request_error",
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]},
            400,
            "invalid_request_error",
            "messages",
        ),
        ({"tools": [{"name": "bash", "type": "bash_20250124"}]}, 400, "invalid_request_error", "tools[0]"),
        ({"tools": [TOOL, TOOL]}, 400, "invalid_request_error", "tools"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, 400, "invalid_request_error", "tool_choice"),
        ({"mcp_servers": [{"url": "x"}]}, 400, "invalid_request_error", "mcp_servers[0].type"),
        ({"container": "x"}, 400, "invalid_request_error", "container"),
        ({"stop_sequences": ["x"] * 17}, 400, "invalid_request_error", "stop_sequences"),
        ({"thinking": {"type": "deep"}}, 400, "invalid_request_error", "thinking"),
        ({"a\r\nb": 1}, 400, "invalid_request_error", "a key must have"),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, 400, "invalid_request_error", "prompt is too long"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_what_is_wrong_is_refused_in_the_shape_of_this_api(
    database: Database, change: dict[str, Any], status: int, kind: str, named: str, streamed: bool
) -> None:
    body = {**ASK, **change, "stream": streamed}
    model = ScriptedModel(["x"], name=MODEL, context_length=200)
    async with answering(database, model=model) as client:
        refused = await post(client, URL, {key: value for key, value in body.items() if value is not None}, status)
    assert refused.keys() == {"type", "error"} and refused["type"] == "error"
    assert refused["error"]["type"] == kind
    assert named in refused["error"]["message"]


async def test_a_key_opens_in_the_header_of_this_api(database: Database) -> None:
    async with answering(database, "Hello.") as client:
        key = client.session.headers.pop("Authorization").removeprefix("Bearer ")
        for headers, status in (({"x-api-key": key}, 200), ({"x-api-key": "ft_wrong"}, 401), ({}, 401)):
            async with client.post(URL, json=ASK, headers=headers) as answer:
                body = await answer.json()
                assert (answer.status, body["type"]) == (status, "message" if status == 200 else "error")
        assert body["error"]["type"] == "authentication_error"
        async with client.get("/v1/models", headers={"x-api-key": key}) as answer:
            assert answer.status == 200


async def test_the_tokens_of_a_prompt_are_counted(database: Database) -> None:
    model = ScriptedModel(["x"], name=MODEL)
    body = {"model": MODEL, "messages": [USER], "system": "Be kind.", "tools": [TOOL]}
    async with answering(database, model=model) as client:
        counted = await post(client, f"{URL}/count_tokens", body)
        asked = await post(client, URL, {**body, "max_tokens": 5})
        refused = await post(client, f"{URL}/count_tokens", {"messages": "x"}, 400)
    assert counted == {"input_tokens": asked["usage"]["input_tokens"]}
    assert refused["type"] == "error"


async def test_the_tokens_of_a_prompt_that_no_context_holds_are_counted_too(database: Database) -> None:
    """Without a system message, the prompt is one of its length and the tokens around the message."""
    model = ScriptedModel(["x"], name=MODEL, context_length=500)
    async with answering(database, model=model) as client:

        async def counted(chars: int) -> int:
            body = {"model": MODEL, "messages": [{"role": "user", "content": "a" * chars}]}
            return int((await post(client, f"{URL}/count_tokens", body))["input_tokens"])

        fitting, far, farther = [await counted(chars) for chars in (100, 9_000, 90_000)]
        body = {"model": MODEL, "input": "a" * 90_000, "instructions": None}
        of_response = await post(client, "/v1/responses/input_tokens", body)
        await post(client, URL, {"model": MODEL, "max_tokens": 5, "messages": [{**USER, "content": "a" * 9_000}]}, 400)
    assert (far - fitting, farther - fitting) == (8_900, 89_900)
    assert of_response["input_tokens"] == farther


async def test_an_answer_that_breaks_ends_with_an_error(database: Database) -> None:
    model = StallingModel(["Half "], name=MODEL)
    async with (
        answering(database, model=model) as client,
        client.post(URL, json={**ASK, "stream": True}) as answer,
    ):
        await answer.content.readuntil(b'"text_delta"')
        assert client.app is not None
        client.app[SERVICES].agent.turns.interrupt()
        rest = (await answer.read()).decode()
    last = rest.strip().split("\n\n")[-1].split("\n")
    assert last[0] == "event: error"
    assert orjson.loads(last[1].removeprefix("data: "))["error"]["type"] == "api_error"


async def test_leaving_ends_the_message(database: Database) -> None:
    model = StallingModel(["Half an answer, "], name=MODEL)
    async with answering(database, model=model) as client:
        async with client.post(URL, json={**ASK, "stream": True}) as answer:
            await answer.content.readuntil(b'"text_delta"')
        answer.close()
        await model.running[0].stopped.wait()


async def test_a_message_is_a_turn_in_progress(database: Database) -> None:
    model = StallingModel(["Half an answer, "], name=MODEL)
    async with answering(database, model=model, config=Config(turns=2)) as client:
        async with client.post(URL, json={**ASK, "stream": True}) as answer:
            await answer.content.readuntil(b'"text_delta"')
            refused = await post(client, URL, ASK, 429)
        answer.close()
    assert refused["error"]["type"] == "rate_limit_error"
