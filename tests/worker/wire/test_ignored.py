"""What a request asks for in vain: passed over where the answer means the same, and named."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import orjson
import pytest

from agents.message import FunctionCall, Message
from tests.worker.wire.test_parse import refused
from worker.wire.chat_request import ChatRequest
from worker.wire.completion_request import CompletionRequest
from worker.wire.response_request import ResponseRequest
from worker.wire.strict import Ignored, parse

TENANT = UUID(int=7)
QUESTION: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
MARK: dict[str, Any] = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}
FUNCTION: dict[str, Any] = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def named(request: type[ResponseRequest | ChatRequest | CompletionRequest], body: Any, *switches: str) -> str:
    """The header of an answer by a model whose template has these switches."""
    ignored = Ignored()
    parse(request, orjson.dumps(body), ignored).note_ignored(frozenset(switches), ignored)
    return ignored.header


def test_a_request_that_is_honoured_in_full_has_no_header() -> None:
    assert not Ignored()
    assert named(ResponseRequest, {"input": "x", "temperature": 0.5, "reasoning": {"effort": None}}) == ""
    assert named(ChatRequest, {**QUESTION, "top_k": 20, "reasoning_effort": None, "ignore_eos": True}) == ""
    asks_for_nothing = {"store": False, "prompt_cache_retention": "in_memory", "stream_options": {}}
    assert named(ChatRequest, {**QUESTION, **asks_for_nothing}) == ""


@pytest.mark.parametrize(
    ("body", "header"),
    [
        ({"reasoning": {"effort": "high", "summary": "auto"}}, "reasoning.summary,reasoning.effort"),
        ({"reasoning": {"context": "all_turns", "mode": "pro"}}, "reasoning.context,reasoning.mode"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"client_metadata": {"id": "7"}}, "client_metadata"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
        ({"prompt_cache_options": {"mode": "implicit", "ttl": "30m"}}, ""),
        (
            {"prompt_cache_options": {"mode": "explicit", "ttl": "12h"}},
            "prompt_cache_options.mode,prompt_cache_options.ttl",
        ),
        (
            {"background": True, "background_options": {"completion_window": "2h", "continuation_id": "a"}},
            "background_options.completion_window,background_options.continuation_id",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x", **MARK}]}]},
            "prompt_cache_breakpoint",
        ),
        (
            {"tools": [{"type": "tool_search"}, {"type": "image_generation"}]},
            "tools.image_generation",
        ),
        (
            {"tools": [{"type": "web_search"}, FUNCTION, {"type": "web_search_preview"}]},
            "tools.web_search,tools.web_search_preview",
        ),
        ({"chat_template_kwargs": {"a": 1, "b": True}}, "chat_template_kwargs.a,chat_template_kwargs.b"),
    ],
)
def test_a_response_names_what_it_ignores(body: Any, header: str) -> None:
    assert named(ResponseRequest, {"input": "x", **body}) == header


@pytest.mark.parametrize(
    ("body", "header"),
    [
        ({"reasoning_effort": "high", "verbosity": "low"}, "reasoning_effort,verbosity"),
        ({"store": True, "prompt_cache_retention": "24h"}, "store,prompt_cache_retention"),
        (
            {"ignore_eos": True, "stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}}]}]},
            "cache_control",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", **MARK}]}]},
            "prompt_cache_breakpoint",
        ),
        ({"messages": [{"role": "user", "content": "x", "name": "ada"}]}, "messages.name"),
    ],
)
def test_a_completion_names_what_it_ignores(body: Any, header: str) -> None:
    assert set(named(ChatRequest, {**QUESTION, **body}).split(",")) == set(header.split(","))


def test_what_the_template_has_a_switch_for_is_not_ignored() -> None:
    wishes = {**QUESTION, "reasoning_effort": "none", "verbosity": "low", "chat_template_kwargs": {"tone": "dry"}}
    assert named(ChatRequest, wishes, "enable_thinking", "verbosity", "tone") == ""
    assert named(ChatRequest, wishes, "reasoning_effort") == "verbosity,chat_template_kwargs.tone"


def test_notes_of_clients_in_what_they_were_sent_are_not_read() -> None:
    function = {"name": "f", "arguments": "{}", "parsed_arguments": {}}
    call = {"id": "c", "type": "function", "index": 0, "function": function}
    said = {
        "role": "assistant",
        "content": [{"type": "text", "text": "Hm.", "annotations": []}],
        "tool_calls": [call],
        "provider_specific_fields": {"refusal": None},
        "function_call": None,
        "thinking_blocks": [],
    }
    tool = {"role": "tool", "tool_call_id": "c", "content": "1"}
    request = parse(ChatRequest, orjson.dumps({"messages": [*QUESTION["messages"], said, tool]}))
    _, text, called, _ = request.turn(TENANT).input
    assert isinstance(text, Message) and text.text == "Hm."
    assert isinstance(called, FunctionCall) and called.arguments == "{}"


def test_items_of_earlier_answers_may_carry_more_than_we_sent() -> None:
    part = {"type": "output_text", "text": "Hm.", "annotations": [], "parsed": {"a": 1}, "custom": 1}
    items = [
        {"type": "message", "role": "assistant", "content": [part], "status": "completed", "provider": {"x": 1}},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "parsed_arguments": {}, "extra": 1},
        {
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "so", "x": 1}],
            "format": "y",
        },
    ]
    assert [type(item).__name__ for item in parse(ResponseRequest, orjson.dumps({"input": items})).input] == [
        "AnswerItem",
        "FunctionCallItem",
        "ReasoningItem",
    ]


@pytest.mark.parametrize(
    ("request_type", "body"),
    [
        (ResponseRequest, {"input": "x", "colour": None, "tools": [{**FUNCTION, "async": None}]}),
        (ResponseRequest, {"input": [{"role": "user", "content": "x", "colour": None}]}),
        (ChatRequest, {"messages": [{"role": "user", "content": "x", "tool_calls": None}], "colour": None}),
    ],
)
def test_a_null_asks_for_nothing_whatever_its_key(request_type: type[ResponseRequest | ChatRequest], body: Any) -> None:
    assert parse(request_type, orjson.dumps(body))


@pytest.mark.parametrize(
    ("request_type", "body", "param"),
    [
        (ResponseRequest, {"input": "x", "colour": "red"}, "colour"),
        (ResponseRequest, {"input": [{"role": "user", "content": "x", "colour": "red"}]}, "input[0].colour"),
        (ResponseRequest, {"tools": [{"type": "web_search"}, {**FUNCTION, "async": True}]}, "tools[1].async"),
        (ResponseRequest, {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        (ChatRequest, {"messages": [{"role": "user", "content": "x", "colour": "red"}]}, "messages[0].colour"),
    ],
)
def test_what_may_mean_something_is_refused_by_its_name(
    request_type: type[ResponseRequest | ChatRequest], body: Any, param: str
) -> None:
    assert refused(request_type, body).param == param


def test_a_text_that_goes_on_names_the_budgets_of_a_thought_that_it_has_not() -> None:
    assert named(CompletionRequest, {"prompt": "x", "reasoning_budget": 5}) == "reasoning_budget"
    assert named(CompletionRequest, {"prompt": "x", "thinking_token_budget": None}) == ""
    assert named(ChatRequest, {**QUESTION, "reasoning_budget": 5}) == ""
