"""POST /v1/chat/completions, over HTTP."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import pytest

from inference.errors import QueueFull
from inference.generation import ANY_TERMS, Sampling, Terms
from migrations.pool import Database
from tests.scripted import ScriptedGeneration, ScriptedGrammar, ScriptedModel
from tests.worker.answering import MODEL, StallingModel, answering, events_of, post, stream
from worker.config import Config

URL = "/v1/chat/completions"
USER = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@dataclass
class OneAtATime(ScriptedModel):
    """Takes one generation and refuses the next, which is not asked for before `heard`."""

    heard: Event = field(default_factory=Event)
    prepared: int = 0

    def prepare(self, grammar: str, trigger: str = "", *, salt: str = "") -> ScriptedGrammar:
        self.prepared += 1
        if self.prepared > 1:
            assert self.heard.wait(60)
        return super().prepare(grammar, trigger, salt=salt)

    def generate(self, prompt: Sequence[int], sampling: Sampling, terms: Terms = ANY_TERMS) -> ScriptedGeneration:
        if self.generations:
            raise QueueFull("the queue is full", 1)
        return super().generate(prompt, sampling, terms)


async def test_a_completion_as_a_whole(database: Database) -> None:
    async with answering(database, "Hello there.") as client:
        completion = await post(client, URL, {"model": MODEL, "messages": [USER]})
    (choice,) = completion["choices"]
    assert completion["object"] == "chat.completion"
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello there.", "stop")
    assert completion["usage"]["total_tokens"] > completion["usage"]["completion_tokens"] > 0


async def test_the_last_message_is_continued_where_that_is_asked(database: Database) -> None:
    model = ScriptedModel([" am well."], name=MODEL)
    body = {"model": MODEL, "messages": [USER, {"role": "assistant", "content": "Hello, I"}]}
    asked = {**body, "continue_final_message": True, "add_generation_prompt": False}
    async with answering(database, model=model) as client:
        (choice,) = (await post(client, URL, asked))["choices"]
        await post(client, URL, body)
        wrong = [
            {**asked, "add_generation_prompt": True},
            {**asked, "messages": [USER]},
            {**asked, "response_format": {"type": "json_object"}},
        ]
        refused = [(await post(client, URL, each, 400))["error"]["param"] for each in wrong]
    assert choice["message"]["content"] == " am well."
    assert model.prompts == ["<user>hello\n<assistant>Hello, I", "<user>hello\n<assistant>Hello, I\n<assistant>"]
    assert refused == ["add_generation_prompt", "messages", "messages"]


async def test_files_are_read_as_in_responses_and_pictures_refused(database: Database) -> None:
    model = ScriptedModel(["I see."], name=MODEL)
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}}
    note = base64.b64encode(b"The port is 8080.").decode()
    file = {"type": "file", "file": {"filename": "note.md", "file_data": f"data:text/markdown;base64,{note}"}}
    async with answering(database, model=model) as client:
        await post(client, URL, {"messages": [{"role": "user", "content": [file]}]})
        refused = await post(client, URL, {"messages": [USER, {"role": "user", "content": [file, picture]}]}, 400)
        assert (refused["error"]["param"], refused["error"]["code"]) == ("messages[1].content[1]", "unsupported_image")
        for part, param in (
            ({"type": "file", "file": {"file_id": "file_0"}}, "messages[0].content[0].file_id"),
            ({"type": "file", "file": {"filename": "a.md"}}, "messages[0].content[0].file"),
            ({"type": "input_audio", "input_audio": {}}, "messages[0].content[0]"),
        ):
            status = 404 if "file_id" in str(part) else 400
            refused = await post(client, URL, {"messages": [{"role": "user", "content": [part]}]}, status)
            assert refused["error"]["param"] == param
    assert "<user>File note.md:\nThe port is 8080." in model.prompts[0]


async def test_a_list_of_allowed_tools_holds_the_answer(database: Database) -> None:
    other = {"type": "function", "function": {"name": "get_time"}}
    listed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}
    body = {
        "messages": [USER],
        "tools": [TOOL, other],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": listed},
    }
    model = ScriptedModel([CALL], name=MODEL)
    async with answering(database, model=model) as client:
        completion = await post(client, URL, body)
        absent = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "get_rich"}}]}
        wrong = {**body, "tool_choice": {"type": "allowed_tools", "allowed_tools": absent}}
        refused = await post(client, URL, wrong, 400)
    assert refused["error"]["param"] == "tool_choice"
    assert completion["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    assert "get_time" in model.prompts[0] and "get_time" not in model.grammars[0].text


async def test_what_is_too_long_stands_in_the_messages(database: Database) -> None:
    async with answering(database, model=ScriptedModel(["Hi."], name=MODEL, context_length=200)) as client:
        refused = await post(client, URL, {"messages": [{"role": "user", "content": "x" * 300}]}, 400)
    assert (refused["error"]["param"], refused["error"]["code"]) == ("messages", "context_length_exceeded")


async def test_the_template_is_told_what_it_has_a_switch_for_and_the_rest_is_named(database: Database) -> None:
    model = ScriptedModel(["Hi."], name=MODEL, switches=frozenset({"enable_thinking"}))
    wishes = {"reasoning_effort": "none", "verbosity": "low", "chat_template_kwargs": {"tone": "dry"}}
    async with answering(database, model=model) as client:
        for path, body in (
            (URL, {"messages": [USER], **wishes}),
            (URL, {"messages": [USER], **wishes, "stream": True}),
            ("/v1/responses", {"input": "hello", "reasoning": {"effort": "none"}, "top_k": 3, "store": False}),
        ):
            async with client.post(path, json=body) as response:
                assert response.status == 200
                ignored = response.headers.get("X-Firsttoken-Ignored")
                await response.read()
            assert ignored == ("verbosity,chat_template_kwargs.tone" if "verbosity" in body else None)
    assert all(prompt.startswith("<enable_thinking=False>") for prompt in model.prompts)
    assert model.generations[2].sampling.top_k == 3


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


async def test_choices_stream_beside_each_other_under_one_id(database: Database) -> None:
    model = ScriptedModel(["One.", "Another."], name=MODEL)
    async with answering(database, model=model) as client:
        body = {"messages": [USER], "n": 2, "stream_options": {"include_usage": True}}
        *chunks, last = await stream(client, URL, body)
    told = {0: "", 1: ""}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        told[choice["index"]] += choice["delta"].get("content", "")
    assert sorted(told.values()) == ["Another.", "One."]
    assert len({chunk["id"] for chunk in [*chunks, last]}) == 1
    assert sorted(c["index"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"] == "stop") == [0, 1]
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == len(model.prompts[0])
    assert last["usage"]["completion_tokens"] == sum(len(each.ids) for each in model.generations)


async def test_a_choice_that_is_refused_late_is_told_as_an_error_and_the_others_end_well(database: Database) -> None:
    model = OneAtATime(['{"a": 1}'], name=MODEL)
    body = {"messages": [USER], "n": 2, "response_format": {"type": "json_object"}, "stream": True}
    async with answering(database, model=model) as client, client.post(URL, json=body) as answer:
        first = await answer.content.readuntil(b"}\n\n")
        model.heard.set()
        chunks = events_of((first + await answer.read()).decode())
    told = "".join(c["delta"].get("content", "") for chunk in chunks for c in chunk.get("choices", []))
    assert told == '{"a": 1}'
    assert [chunk["error"]["message"] for chunk in chunks if "error" in chunk] == ["the queue is full"]


async def test_leaving_ends_every_choice(database: Database) -> None:
    model = StallingModel(["Half an answer, "], name=MODEL)
    async with answering(database, model=model) as client:
        async with client.post(URL, json={"messages": [USER], "n": 2, "stream": True}) as answer:
            await answer.content.readuntil(b'"index":1')
        answer.close()
        assert len(model.running) == 2
        for generation in model.running:
            await generation.stopped.wait()


async def test_choices_count_as_turns_in_progress(database: Database) -> None:
    config = Config(turns=4)
    async with answering(database, "x", config=config) as client:
        assert len((await post(client, URL, {"messages": [USER], "n": 2}))["choices"]) == 2
        refused = await post(client, URL, {"messages": [USER], "n": 3}, 429)
    assert refused["error"]["code"] == "rate_limit_exceeded"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"messages": []}, 400, "messages"),
        ({"messages": [USER], "model": "gpt-9"}, 404, "model"),
        ({"messages": [USER], "n": 9}, 400, "n"),
        ({"messages": [{"role": "tool", "tool_call_id": "c", "content": "3"}]}, 400, "messages"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_what_is_wrong_is_refused_before_anything_streams(
    database: Database, body: dict[str, Any], status: int, param: str, streamed: bool
) -> None:
    async with answering(database, "x") as client:
        assert (await post(client, URL, {**body, "stream": streamed}, status))["error"]["param"] == param
