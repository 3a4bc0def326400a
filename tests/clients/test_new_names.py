"""What the official clients of today name: service tiers, options of the prompt cache, and its diagnostics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import openai
import pytest
from anthropic import Anthropic
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response

from tests.clients.conftest import MODEL

GREEDY: Any = {"model": MODEL, "temperature": 0}
HELLO: Any = {"messages": [{"role": "user", "content": "hello"}], **GREEDY}
MARKED: Any = {"type": "input_text", "text": "hello", "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}
RULES = "You answer questions about ships and harbours, briefly and with care, and you name where you know it from."
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather for a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
OF_THE_END = 6  # tokens that close a prompt, which a prompt that goes on does not have
IGNORED = "x-firsttoken-ignored"


@pytest.mark.parametrize(("asked", "used"), [("fast", "priority"), ("ultrafast", "priority"), ("scale", "default")])
def test_the_tiers_of_today_are_served_as_ours(client: OpenAI, asked: Any, used: str) -> None:
    assert client.responses.create(input="hello", service_tier=asked, **GREEDY).service_tier == used
    assert client.chat.completions.create(service_tier=asked, **HELLO).service_tier == used
    streamed = client.chat.completions.create(service_tier=asked, stream=True, **HELLO)
    assert {chunk.service_tier for chunk in streamed} == {used}


def test_options_of_the_cache_are_taken_and_told(client: OpenAI) -> None:
    asked: Any = {"mode": "explicit", "ttl": "12h"}
    question: Any = [{"role": "user", "content": [MARKED]}]
    raw = client.responses.with_raw_response.create(input=question, prompt_cache_options=asked, **GREEDY)
    assert raw.headers[IGNORED].split(",") == [
        "prompt_cache_breakpoint",
        "prompt_cache_options.mode",
        "prompt_cache_options.ttl",
    ]
    made = raw.parse()
    assert made.prompt_cache_options is not None
    assert (made.prompt_cache_options.mode, made.prompt_cache_options.ttl) == ("explicit", "12h")
    assert client.chat.completions.create(prompt_cache_options={"mode": "explicit"}, **HELLO).choices
    compacted = client.responses.compact(model=MODEL, input="hello", prompt_cache_options=asked)
    assert compacted.output


def test_a_window_for_the_background_is_met(client: OpenAI) -> None:
    window: Any = {"completion_window": "8h", "continuation_id": "nightly"}
    queued = client.responses.create(input="hello", background=True, background_options=window, **GREEDY)
    assert queued.status == "queued"
    client.responses.cancel(queued.id)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(input="hello", background_options=window, **GREEDY)
    assert refused.value.param == "background_options"


def test_a_prompt_is_read_ahead_and_continued_from_its_id(client: OpenAI) -> None:
    told: Any = {"instructions": RULES, **GREEDY}
    read = client.responses.create(input="My name is Ada.", prompt_cache_options={"prewarm": True}, **told)
    assert (read.status, read.output) == ("completed", [])
    assert read.usage is not None and read.usage.input_tokens > 0 and read.usage.output_tokens == 0
    assert client.responses.retrieve(read.id).to_dict() == read.to_dict()
    final = client.responses.create(input="hello", previous_response_id=read.id, **told)
    assert final.output_text and final.usage is not None
    assert final.usage.input_tokens_details.cached_tokens > read.usage.input_tokens - OF_THE_END


async def test_the_first_request_of_a_socket_only_reads_as_coding_agents_ask(async_client: AsyncOpenAI) -> None:
    async with async_client.responses.connect() as connection:

        async def ask(**body: Any) -> Response:
            await connection.response.create(instructions=f"Socket. {RULES}", store=False, **GREEDY, **body)
            async for event in connection:
                assert event.type != "error", event
                if event.type == "response.completed":
                    return event.response
            raise AssertionError("the connection was closed")

        read = await ask(generate=False, input=[])
        assert (read.status, read.output) == ("completed", []) and read.id.startswith("resp_")
        final = await ask(input="hello", previous_response_id=read.id)
    assert final.output_text and read.usage is not None and final.usage is not None
    assert final.usage.input_tokens_details.cached_tokens >= read.usage.input_tokens


@pytest.mark.any_answer("only its form counts")
def test_a_conversation_updates_the_format_of_its_answers(client: OpenAI) -> None:
    form: Any = {"type": "json_schema", "name": "n", "schema": {"type": "object", "properties": {"n": {"enum": [1]}}}}
    update: Any = {"type": "configuration_update", "text": {"format": form}}
    first = client.responses.create(input=[update, {"role": "user", "content": "hello"}], **GREEDY)
    second = client.responses.create(input="thanks", previous_response_id=first.id, **GREEDY)
    assert all(json.loads(each.output_text) in ({"n": 1}, {}) for each in (first, second))


@pytest.mark.any_answer("only the prompts are compared")
def test_a_response_says_why_it_could_not_go_on_from_another(client: OpenAI) -> None:
    def ask(other: Response | None = None, question: Any = f"Say hello. {RULES}", **more: Any) -> Any:
        told: Any = {"instructions": RULES, "tools": [WEATHER], **GREEDY, **more}
        options: Any = {"comparison_response_id": other.id} if other else {}
        return client.responses.create(input=question, prompt_cache_options=options, **told)

    first = ask()
    assert first.prompt_cache_diagnostics is None
    assert ask(first, "thanks", previous_response_id=first.id).prompt_cache_diagnostics.type == "cache_hit"
    for reason, change in (
        ("tools_changed", {"tools": []}),
        ("text_format_changed", {"text": {"format": {"type": "json_object"}}, "tools": [], "max_output_tokens": 9}),
        ("input_changed", {"instructions": f"Changed: {RULES}"}),
    ):
        told = ask(ask(tools=[]) if "format" in reason else first, **change).prompt_cache_diagnostics
        assert (told.type, told.reason) == ("cache_miss", reason)
        assert told.cache_missed_tokens > 0 and told.comparison_reusable_tokens is not None
    echoed = ask(first).prompt_cache_options
    assert echoed is not None and echoed.comparison_response_id == first.id
    nobody = first.model_copy(update={"id": "resp_0"})
    assert ask(nobody).prompt_cache_diagnostics.type == "comparison_response_not_found"


@pytest.mark.any_answer("only the prompts are compared")
@pytest.mark.parametrize("streamed", [False, True])
def test_a_message_says_why_it_could_not_go_on_from_another(server: Mapping[str, Any], streamed: bool) -> None:
    system, said = f"{streamed} {RULES}", {"role": "user", "content": f"Say hello. {RULES}"}
    tool = {"name": WEATHER["name"], "input_schema": WEATHER["parameters"], "description": WEATHER["description"]}

    def ask(previous_id: str | None, **more: Any) -> Any:
        asked: Any = {"system": system, "messages": [said], "tools": [tool], "max_tokens": 9, **more}
        asked |= {"model": MODEL, "diagnostics": {"previous_message_id": previous_id}}
        if not streamed:
            return client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            return stream.get_final_message()

    with Anthropic(base_url=server["url"], api_key=server["api_key"], max_retries=0) as client:
        first = ask(None)
        assert first.diagnostics is None
        goes_on = [said, {"role": "assistant", "content": first.content}, {"role": "user", "content": "thanks"}]
        assert ask(first.id, messages=goes_on).diagnostics is None
        for reason, change in (
            ("system_changed", {"system": f"Changed: {system}"}),
            ("tools_changed", {"tools": [{**tool, "description": "Changed."}]}),
            ("messages_changed", {"messages": [{"role": "user", "content": f"Changed: {RULES} {RULES}"}]}),
        ):
            told = ask(first.id, **change).diagnostics.cache_miss_reason
            assert told.type == reason and told.cache_missed_input_tokens > 0
        assert ask("msg_0").diagnostics.cache_miss_reason.type == "previous_message_not_found"
