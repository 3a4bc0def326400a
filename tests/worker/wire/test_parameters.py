"""Every parameter of POST /v1/responses: what it does to the turn and what the response says of it, or its refusal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import orjson
import pytest

from agents.events import TurnFinished, Usage
from agents.turn import Compacting
from tests.compliance.specification import made
from tests.worker.reader import check_response
from worker.errors import ApiError
from worker.wire.items import CompactionTrigger, ItemReference
from worker.wire.response import ResponseFrame
from worker.wire.response_request import ResponseRequest
from worker.wire.strict import parse

TENANT = UUID(int=7)
FUNCTION: dict[str, Any] = {"type": "function", "name": "f", "description": "F", "parameters": {"type": "object"}}
SHOWN = {**FUNCTION, "strict": False}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}}
FORMAT: dict[str, Any] = {"type": "json_schema", "name": "answer", "schema": SCHEMA}


@dataclass(frozen=True)
class Row:
    """`turn` are parts of the turn (dots go deeper), `says` are keys of the response. `also`: what must stand beside.

    A row that says nothing and changes nothing is honoured by leaving everything as it is.
    """

    name: str
    value: Any
    turn: dict[str, Any] = field(default_factory=dict)
    says: dict[str, Any] = field(default_factory=dict)
    also: dict[str, Any] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        return {"input": "x", **self.also, self.name: self.value}


@dataclass(frozen=True)
class Refusal:
    name: str
    value: Any
    code: str
    param: str = ""
    also: dict[str, Any] = field(default_factory=dict)


HONOURED = [
    Row("model", "demo-chat", says={"model": "demo-chat"}),
    Row("input", "hello"),
    Row("input", [{"role": "user", "content": "hello"}]),
    Row("instructions", "Be brief.", {"instructions": "Be brief."}, {"instructions": "Be brief."}),
    Row("previous_response_id", "resp_1", says={"previous_response_id": "resp_1"}),
    Row("conversation", "conv_1", says={"conversation": {"id": "conv_1"}}),
    Row("conversation", {"id": "conv_1"}, says={"conversation": {"id": "conv_1"}}),
    Row("store", False, says={"store": False}),
    Row("metadata", {"topic": "a"}, says={"metadata": {"topic": "a"}}),
    Row("metadata", {"deterministic": "true"}, {"sampling.deterministic": True}),
    Row("include", ["message.output_text.logprobs"], {"sampling.top_logprobs": 0}),
    Row("include", ["file_search_call.results", "reasoning.encrypted_content", "firsttoken:trace"]),
    Row("tools", [FUNCTION], says={"tools": [SHOWN]}),
    Row("tools", [{"type": "firsttoken:calculator"}], {"server_tools": ("calculator",)}),
    Row("tool_choice", "none", {"tool_choice": "none"}, {"tool_choice": "none"}),
    Row("tool_choice", "required", {"tool_choice": "required"}, {"tool_choice": "required"}, {"tools": [FUNCTION]}),
    Row(
        "tool_choice",
        {"type": "function", "name": "f"},
        {"tool_choice": "f"},
        {"tool_choice": {"type": "function", "name": "f"}},
        {"tools": [FUNCTION]},
    ),
    Row(
        "tool_choice",
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        {"tool_choice": "auto", "allowed_tools": {"f"}},
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}},
        {"tools": [FUNCTION, {**FUNCTION, "name": "g"}]},
    ),
    Row("parallel_tool_calls", False, {"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
    Row("max_tool_calls", 3, {"caps.calls": 3}, {"max_tool_calls": 3}),
    Row("max_output_tokens", 40, {"caps.tokens": 40, "sampling.max_tokens": 40}, {"max_output_tokens": 40}),
    Row("temperature", 0.5, {"sampling.temperature": 0.5}, {"temperature": 0.5}),
    Row("top_p", 0.5, {"sampling.top_p": 0.5}, {"top_p": 0.5}),
    Row("presence_penalty", 1.5, {"sampling.presence_penalty": 1.5}, {"presence_penalty": 1.5}),
    Row("frequency_penalty", -1, {"sampling.frequency_penalty": -1.0}, {"frequency_penalty": -1.0}),
    Row("top_k", 20, {"sampling.top_k": 20}),
    Row("top_k", -1, {"sampling.top_k": 0}),
    Row("min_p", 0.1, {"sampling.min_p": 0.1}),
    Row("repetition_penalty", 1.1, {"sampling.repeat_penalty": 1.1}),
    Row("chat_template_kwargs", {"enable_thinking": False}, {"switches.variables": {"enable_thinking": False}}),
    Row("chat_template_kwargs", {"enable_thinking": None}, {"switches.variables": {}}),
    Row("ignore_eos", True, {"sampling.ignore_eos": True}),
    Row("reasoning_budget", 0, {"caps.thought_tokens": 0}),
    Row("reasoning_budget", -1, {"caps.thought_tokens": None}),
    Row("thinking_token_budget", 7, {"caps.thought_tokens": 7}, also={"reasoning_budget": 9}),
    Row("reasoning", {"max_tokens": 5}, {"caps.thought_tokens": 5}, also={"reasoning_budget": 9}),
    Row("client_metadata", {"x-codex-installation-id": "7"}),
    Row("access_programs", {"cyber": "standard"}),
    Row("top_logprobs", 4, {"sampling.top_logprobs": 4}, {"top_logprobs": 4}),
    Row("text", {"format": {"type": "text"}}, {"answer_format": None}, {"text": {"format": {"type": "text"}}}),
    Row("text", {"format": {"type": "json_object"}}, {"answer_format.schema": {"type": "object"}}),
    Row(
        "text",
        {"format": FORMAT},
        {"answer_format.schema": SCHEMA},
        {"text": {"format": {**FORMAT, "description": None, "strict": False}}},
    ),
    Row("reasoning", {"effort": None}, says={"reasoning": {"effort": None, "summary": None}}),
    Row("reasoning", {"effort": "low"}, {"switches.effort": "low"}, {"reasoning": {"effort": "low", "summary": None}}),
    Row("reasoning", {"summary": "auto"}, says={"reasoning": {"effort": None, "summary": None}}),
    Row("text", {"verbosity": "low"}, {"switches.verbosity": "low"}),
    Row("tools", [{"type": "web_search"}, FUNCTION], says={"tools": [SHOWN]}),
    Row("context_management", [{"type": "compaction"}], {"compacting": Compacting()}),
    Row(
        "context_management",
        [{"type": "compaction", "compact_threshold": 500}],
        {"compacting.above_tokens": 500},
    ),
    Row("truncation", "auto", {"truncates": True}, {"truncation": "auto"}),
    Row("truncation", "disabled", {"truncates": False}, {"truncation": "disabled"}),
    Row("service_tier", "auto", says={"service_tier": "default"}),
    Row("service_tier", "flex", says={"service_tier": "flex"}),
    Row("service_tier", "priority", says={"service_tier": "priority"}),
    Row("service_tier", "fast", says={"service_tier": "priority"}),
    Row("service_tier", "ultrafast", says={"service_tier": "priority"}),
    Row("service_tier", "scale", says={"service_tier": "default"}),
    Row("prompt_cache_options", {}, says={"prompt_cache_options": {"mode": "implicit", "ttl": "30m"}}),
    Row("prompt_cache_options", {"prewarm": True}, {"only_reads": True}),
    Row(
        "prompt_cache_options",
        {"mode": "explicit", "ttl": "12h"},
        says={"prompt_cache_options": {"mode": "explicit", "ttl": "12h"}},
    ),
    Row("prompt_cache_key", "k", says={"prompt_cache_key": "k"}),
    Row("prompt_cache_retention", "in_memory"),
    Row("prompt_cache_retention", "24h"),
    Row("safety_identifier", "s", says={"safety_identifier": "s"}),
    Row("user", "u", says={"user": "u"}),
    Row("background_options", {"completion_window": "soonest", "continuation_id": "a"}),
    Row("background_options", {"completion_window": "2h"}, also={"background": True}),
    Row("background", False, says={"background": False}),
    Row("stream", True),
    Row("stream_options", {"include_obfuscation": False}),
    Row("stream_options", {"include_obfuscation": True}),
]
BEYOND = "above_max_value"
BELOW = "below_min_value"
LONG = "string_above_max_length"
UNSUPPORTED = "unsupported_parameter"
REFUSED = [
    Refusal("model", "", "string_below_min_length"),
    Refusal("input", 5, "invalid_type"),
    Refusal("instructions", ["x"], "invalid_type"),
    Refusal("previous_response_id", "r", "invalid_value", also={"conversation": "c"}),
    Refusal("conversation", {"id": "a b"}, "invalid_value", "conversation.id"),
    Refusal("store", "yes", "invalid_type"),
    Refusal("metadata", {"k" * 65: "v"}, LONG, f"metadata.{'k' * 64}…"),
    Refusal("include", ["everything"], UNSUPPORTED, "include[0]"),
    Refusal("tools", [{"type": "web_search"}, {"type": "computer"}], UNSUPPORTED, "tools[1]"),
    Refusal("tool_choice", {"type": "function", "name": "g"}, "invalid_value"),
    Refusal("parallel_tool_calls", 1, "invalid_type"),
    Refusal("max_tool_calls", 0, BELOW),
    Refusal("max_output_tokens", 0, BELOW),
    Refusal("temperature", 2.1, BEYOND),
    Refusal("top_p", 1.1, BEYOND),
    Refusal("presence_penalty", 2.1, BEYOND),
    Refusal("frequency_penalty", -2.1, BELOW),
    Refusal("top_logprobs", 21, BEYOND),
    Refusal("text", {"verbosity": "loud"}, "invalid_value", "text.verbosity"),
    Refusal("reasoning", {"effort": "most"}, "invalid_value", "reasoning.effort"),
    Refusal("reasoning_budget", -2, BELOW),
    Refusal("thinking_token_budget", 1.5, "invalid_type"),
    Refusal("reasoning", {"max_tokens": -1}, BELOW, "reasoning.max_tokens"),
    Refusal("reasoning", {"summary": "long"}, "invalid_value", "reasoning.summary"),
    Refusal("top_k", -2, BELOW),
    Refusal("min_p", 1.1, BEYOND),
    Refusal("repetition_penalty", 0, "invalid_value"),
    Refusal("chat_template_kwargs", {"a": {}}, "invalid_type", "chat_template_kwargs.a"),
    Refusal("chat_template_kwargs", {"a b": 1}, "invalid_value", "chat_template_kwargs.a b"),
    Refusal("chat_template_kwargs", {f"a{i}": 1 for i in range(17)}, "array_above_max_length"),
    Refusal("truncation", "always", "invalid_value"),
    Refusal("service_tier", "gold", "invalid_value"),
    Refusal("service_tier", ["fast"], "invalid_value"),
    Refusal("prompt_cache_key", "k" * 65, LONG),
    Refusal("prompt_cache_retention", "for ever", "invalid_value"),
    Refusal("prompt_cache_options", {"mode": "none"}, "invalid_value", "prompt_cache_options.mode"),
    Refusal("prompt_cache_options", {"prewarm": 1}, "invalid_type", "prompt_cache_options.prewarm"),
    Refusal("prompt_cache_options", {"ttl": "1h"}, "invalid_value", "prompt_cache_options.ttl"),
    Refusal("prompt_cache_options", {"size": 1}, "unknown_parameter", "prompt_cache_options.size"),
    Refusal("safety_identifier", "s" * 65, LONG),
    Refusal("user", "u" * 257, LONG),
    Refusal("background", "yes", "invalid_type"),
    Refusal("background_options", {"completion_window": "8h"}, "invalid_value"),
    Refusal(
        "background_options",
        {"completion_window": "1h"},
        "invalid_value",
        "background_options.completion_window",
        {"background": True},
    ),
    Refusal("store", False, "invalid_value", also={"background": True}),
    Refusal("stream", "yes", "invalid_type"),
    Refusal("stream_options", {"include_obfuscation": 1}, "invalid_type", "stream_options.include_obfuscation"),
    Refusal("context_management", [{"type": "forget"}], "invalid_value", "context_management[0].type"),
    Refusal(
        "context_management",
        [{"type": "compaction", "compact_threshold": 0}],
        BELOW,
        "context_management[0].compact_threshold",
    ),
    Refusal("moderation", {}, UNSUPPORTED),
    Refusal("prompt", {"id": "p"}, UNSUPPORTED),
    Refusal("image", {}, UNSUPPORTED),
]


def test_the_tables_know_every_parameter() -> None:
    known = {row.name for row in HONOURED} | {row.name for row in REFUSED}
    assert known == set(ResponseRequest.model_fields)


@pytest.mark.parametrize("row", HONOURED, ids=lambda row: row.name)
def test_a_parameter_is_honoured(row: Row) -> None:
    request = parse(ResponseRequest, orjson.dumps(row.body))
    turn = request.turn(
        TENANT,
        tuple(entry.item() for entry in request.input if not isinstance(entry, ItemReference | CompactionTrigger)),
        (),
    )
    for path, expected in row.turn.items():
        value: Any = turn
        for step in path.split("."):
            value = getattr(value, step)
        assert value == expected, path
    frame = ResponseFrame(request, request.model or "m")
    snapshots = [frame.started(), *(frame.finished(TurnFinished(s, (), Usage(1, 0, 1)), []) for s in STATUSES)]
    for snapshot in snapshots:
        check_response(snapshot)
        assert {key: snapshot[key] for key in row.says} == row.says
        if all(tool["type"] == "function" for tool in snapshot["tools"]):  # others are our own and OpenAI's
            made(snapshot)


STATUSES: Any = ("completed", "incomplete", "failed", "cancelled")


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.name)
def test_a_parameter_is_refused_by_its_name(row: Refusal) -> None:
    with pytest.raises(ApiError) as refused:
        parse(ResponseRequest, orjson.dumps({"input": "x", **row.also, row.name: row.value}))
    assert (refused.value.status, refused.value.param, refused.value.code) == (400, row.param or row.name, row.code)
