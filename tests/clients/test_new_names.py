"""What the official clients of today name: service tiers and the options of the prompt cache."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response

from tests.clients.conftest import MODEL

GREEDY: Any = {"model": MODEL, "temperature": 0}
HELLO: Any = {"messages": [{"role": "user", "content": "hello"}], **GREEDY}
MARKED: Any = {"type": "input_text", "text": "hello", "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}
RULES = "You answer questions about ships and harbours, briefly and with care, and you name where you know it from."
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
