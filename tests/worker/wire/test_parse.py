"""Whatever a request holds, the caller learns which field is wrong, and why."""

from __future__ import annotations

import threading
import time
from typing import Any
from uuid import uuid4

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError, field_validator

from worker.errors import ApiError
from worker.routes.conversations import ConversationCreate, ItemsCreate
from worker.wire import limits
from worker.wire.chat_request import ChatRequest
from worker.wire.function_tools import FunctionToolParam
from worker.wire.items import ItemReference, MessageItem
from worker.wire.messages_request import MessagesRequest
from worker.wire.response import ResponseFrame
from worker.wire.response_request import CreateMessage, ResponseRequest
from worker.wire.strict import SHORT_BYTES_MAX, Strict, parse, parsed
from worker.wire.text_inputs import EmbeddingsRequest

FUNCTION = {"type": "function", "name": "f"}
ADDED_TOOLS: Any = {"type": "additional_tools", "role": "developer", "tools": []}
ODD = {"type": "object", "properties": {"a": {"type": "array", "contains": {}}}}
NESTED = {"type": "and", "filters": [{"type": "in", "key": "a", "value": 1}]}


def filtered(filters: Any) -> dict[str, Any]:
    return {"type": "file_search", "vector_store_ids": ["docs"], "filters": filters}


def refused(model: type[Strict], body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(model, body if isinstance(body, bytes) else orjson.dumps(body))
    assert caught.value.status == 400
    assert str(caught.value.param) in caught.value.message or caught.value.param is None or "NUL" in str(caught.value)
    return caught.value


def test_many_small_messages_are_taken_and_many_wrong_ones_cost_one_error() -> None:
    said = {"role": "user", "content": [{"type": "input_text", "text": "hello"}]}
    assert len(parse(ResponseRequest, orjson.dumps({"input": [said] * limits.ITEMS_MAX})).input) == limits.ITEMS_MAX
    assert refused(ResponseRequest, {"input": [said] * (limits.ITEMS_MAX + 1)}).code == "array_above_max_length"
    with pytest.raises(ValidationError) as wrong:
        ResponseRequest.model_validate({"input": [{"role": "user", "content": 7}] * limits.ITEMS_MAX})
    assert wrong.value.error_count() == 1
    assert refused(ResponseRequest, {f"k{n}": 1 for n in range(limits.KEYS_MAX + 1)}).param is None


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"input": 5}, "input", "invalid_type"),
        ({"colour": "red"}, "colour", "unknown_parameter"),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing_required_parameter"),
        ({"input": [{"role": "king", "content": "x"}]}, "input[0].role", "invalid_value"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text", None),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]", None),
        ({"input": [{"type": "computer_call"}]}, "input[0]", "unsupported_parameter"),
        ({"input": ["hello"]}, "input[0]", "unsupported_parameter"),
        ({"input": [{"type": "configuration_update", "tools": []}]}, "input[0].tools", "unknown_parameter"),
        ({"input": [{**ADDED_TOOLS, "tool_choice": "auto"}]}, "input[0].tool_choice", "unknown_parameter"),
        ({"temperature": "1"}, "temperature", "invalid_type"),
        ({"temperature": True}, "temperature", "invalid_type"),
        ({"temperature": 2.5}, "temperature", "above_max_value"),
        ({"max_output_tokens": 0}, "max_output_tokens", "below_min_value"),
        ({"max_output_tokens": 0.5}, "max_output_tokens", "invalid_type"),
        ({"stream": 1}, "stream", "invalid_type"),
        ({"top_logprobs": 21}, "top_logprobs", "above_max_value"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools", "invalid_value"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "invalid_value"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].name", "missing_required_parameter"),
        ({"tools": [{**FUNCTION, "parameters": {"type": "array"}}]}, "tools[0].parameters", "invalid_value"),
        ({"tools": [{**FUNCTION, "strict": True, "parameters": ODD}]}, "tools[0].strict", "invalid_value"),
        (
            {"text": {"format": {"type": "json_schema", "name": "f", "strict": True, "schema": ODD}}},
            "text.format.schema",
            "invalid_value",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "f"}}},
            "text.format.schema",
            "missing_required_parameter",
        ),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name", "missing_required_parameter"),
        ({"tools": [{"type": "computer"}]}, "tools[0]", "unsupported_parameter"),
        ({"tools": [{"type": "mcp", "server_label": "f"}]}, "tools[0].server_url", "missing_required_parameter"),
        ({"tools": [{"type": "file_search", "vector_store_ids": []}]}, "tools[0].vector_store_ids", None),
        ({"tools": [filtered({"type": "like"})]}, "tools[0].filters", "invalid_value"),
        ({"tools": [filtered({"type": "eq", "key": "a"})]}, "tools[0].filters.value", "missing_required_parameter"),
        ({"tools": [filtered(NESTED)]}, "tools[0].filters.filters[0]", "invalid_value"),
        ({"tool_choice": "sometimes"}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "function"}}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice", "invalid_value"),
        ({"conversation": "c", "previous_response_id": "r"}, "previous_response_id", "invalid_value"),
        ({"conversation": {"id": "not an id"}}, "conversation.id", "invalid_value"),
        ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
        ({"metadata": {f"k{i}": "" for i in range(17)}}, "metadata", "array_above_max_length"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a", "string_above_max_length"),
        ({"metadata": {"max_steps": "2.5"}}, "metadata", "invalid_value"),
        ({"metadata": {"max_cost": "nan"}}, "metadata", "invalid_value"),
        ({"metadata": {"max_seconds": "0"}}, "metadata", "invalid_value"),
        ({"include": ["everything"]}, "include[0]", "unsupported_parameter"),
    ],
)
def test_a_response_request_is_refused_by_the_name_of_its_field(body: Any, param: str, code: str | None) -> None:
    error = refused(ResponseRequest, body)
    assert error.param == param
    assert code in (None, error.code)


PAGE = {"type": "document", "source": {"type": "url", "url": "https://x.example/a.pdf"}}


def asked(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}]}


@pytest.mark.parametrize(
    ("model", "body", "told"),
    [
        (ResponseRequest, {"max_tokens": 5}, "'max_output_tokens'"),
        (ResponseRequest, {"response_format": {"type": "json_object"}}, "'text.format'"),
        (ResponseRequest, {"messages": []}, "'input'"),
        (ChatRequest, {**asked(), "max_output_tokens": 5}, "'max_completion_tokens'"),
        (ChatRequest, {**asked(), "functions": []}, "'tools'"),
        (ChatRequest, {**asked(), "function_call": "auto"}, "'tool_choice'"),
        (ChatRequest, {"messages": [{"role": "assistant", "function_call": {}}]}, "'tool_calls'"),
        (
            ResponseRequest,
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "x"}]}]},
            "base64",
        ),
        (MessagesRequest, asked(PAGE), "base64"),
        (MessagesRequest, {**asked(), "tools": [{"type": "bash_20250124", "name": "bash"}]}, "input_schema"),
    ],
)
def test_what_is_refused_is_told_with_what_to_send_instead(model: type[Strict], body: Any, told: str) -> None:
    assert told in refused(model, body).message


@pytest.mark.parametrize("number", ["1" + "0" * 30, "-1" + "0" * 30])
def test_a_number_beyond_64_bits_is_not_told_to_be_none(number: str) -> None:
    error = refused(ResponseRequest, f'{{"input": "x", "max_output_tokens": {number}}}'.encode())
    assert (error.param, error.code) == ("max_output_tokens", "invalid_value")
    assert "64 bits" in error.message


@pytest.mark.parametrize("body", [{"metadata": 5}, {"reasoning": []}, {"text": "x"}])
def test_what_must_be_an_object_is_told_in_words_of_json(body: Any) -> None:
    assert "object" in refused(ResponseRequest, {"input": "x", **body}).message


@pytest.mark.parametrize("model", ["x" * 201, ""])
def test_a_name_that_no_model_has_is_not_said_again(model: str) -> None:
    error = refused(EmbeddingsRequest, {"input": "x", "model": model})
    assert error.param == "model" and len(error.message) < 100


MCP: dict[str, Any] = {"type": "mcp", "server_label": "far", "server_url": "https://tools.example/mcp"}


@pytest.mark.parametrize(
    ("broken", "param"),
    [
        ({"server_url": "http://user:hidden@a.example"}, "server_url"),
        ({"server_url": "file:///etc/hidden"}, "server_url"),
        ({"server_url": "http://a.example\r\nhidden: y"}, "server_url"),
        ({"server_url": f"https://a.example/{'hidden' * 400}"}, "server_url"),
        ({"server_url": None, "connector_id": "connector_gmail"}, "server_url"),
        ({"connector_id": "connector_gmail"}, "connector_id"),
        ({"server_label": "a b"}, "server_label"),
        ({"headers": {"Host": "hidden.example"}}, "headers"),
        ({"headers": {"Mcp-Session-Id": "hidden"}}, "headers"),
        ({"headers": {"x-key": "hidden\r\nb: c"}}, "headers.x-key"),
        ({"headers": {f"x-{n}": "hidden" for n in range(64)}}, "headers"),
        ({"authorization": "hidden\nb"}, "authorization"),
        ({"require_approval": "sometimes"}, "require_approval"),
        ({"require_approval": {"never": {}}}, "require_approval"),
        ({"allowed_tools": {}}, "allowed_tools"),
    ],
)
def test_an_mcp_server_is_refused_by_the_name_of_its_field(broken: Any, param: str) -> None:
    error = refused(ResponseRequest, {"input": "x", "tools": [{**MCP, **broken}]})
    assert error.param == f"tools[0].{param}"
    assert "hidden" not in error.message


FAR: dict[str, Any] = {"type": "url", "name": "far", "url": "https://tools.example/mcp"}


async def test_the_tools_of_a_long_body_are_made_in_the_thread_that_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five thousand would hold up all streams for 60 ms."""
    tools = [{**FUNCTION, "name": f"f{n}", "description": "x" * 100, "defer_loading": True} for n in range(500)]
    body = await parsed(ResponseRequest, orjson.dumps({"input": "Hi", "tools": tools}))
    for made in ("of", "echo"):
        monkeypatch.delattr(FunctionToolParam, made)
    assert len(body.turn(uuid4(), (), ()).functions) == len(ResponseFrame(body, "m").started()["tools"]) == 500
    assert len(body.with_headers({"X-Firsttoken-Hints": "false"}, frozenset()).functions) == 500


TICKETS = {"type": "mcp", "server_label": "tickets", "server_url": "https://tickets.example/mcp"}


@pytest.mark.parametrize(
    ("model", "body", "told"),
    [
        (
            ResponseRequest,
            {"chat_template_kwargs": {"thinking": ["on"]}},
            "'chat_template_kwargs.thinking': Input should be a boolean, an integer, a number or a string, not a list.",
        ),
        (ResponseRequest, {"chat_template_kwargs": "on"}, "'chat_template_kwargs': Input should be an object, not a s"),
        (ResponseRequest, {"chat_template_kwargs": {"a": "x" * 513}}, "kwargs.a': String should have at most 512 char"),
        (ResponseRequest, {"chat_template_kwargs": {"a b": 1}}, "{0,63}$', not 'a b'."),
        (ResponseRequest, {"stream": "yes"}, "'stream': Input should be a boolean, not a string."),
        (ChatRequest, {"reasoning_effort": "huge"}, "'high', 'xhigh' or 'max', not 'huge'."),
        (ChatRequest, {"response_format": {"type": "yaml"}}, "json_object or json_schema. Its type is 'yaml'."),
        (
            ResponseRequest,
            {"tools": [TICKETS, FUNCTION], "tool_choice": {"type": "function", "name": "x__y"}},
            "'tool_choice': 'x__y' is not among the tools of this request: 'f', those of the MCP server 'tickets'.",
        ),
        (
            ResponseRequest,
            {"tools": [TICKETS], "tool_choice": {"type": "mcp", "server_label": "x"}},
            "the MCP server 'x' is not among the tools of this request: those of the MCP server 'tickets'.",
        ),
        (ResponseRequest, {"tool_choice": {"type": "function", "name": "f"}}, "tools of this request: it has none."),
        (
            ResponseRequest,
            {"tools": [{**FUNCTION, "name": f"f{n}"} for n in range(12)], "tool_choice": FUNCTION},
            "'f0', 'f1', 'f10', 'f11', 'f2', 'f3', 'f4', 'f5', 'f6', 'f7', 2 more.",
        ),
        (CreateMessage, {"type": "response.make"}, "'type': a message has the type 'response.create' or 'response.s"),
        (CreateMessage, {"type": 5}, "'type': Input should be a string, not an integer."),
    ],
)
def test_what_was_given_is_told_beside_what_is_taken(model: type[Strict], body: dict[str, Any], told: str) -> None:
    messages = {"messages": [{"role": "user", "content": "Hi"}]} if model is ChatRequest else {}
    assert told in refused(model, {**messages, **body}).message


def test_a_token_that_is_wrong_is_not_repeated() -> None:
    assert "secret" not in refused(ResponseRequest, {"tools": [{**TICKETS, "authorization": "secret\n"}]}).message


TOOLSET: dict[str, Any] = {"type": "mcp_toolset", "mcp_server_name": "far"}


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"mcp_servers": None}, "mcp_servers"),
        ({"mcp_servers": [FAR, FAR]}, "mcp_servers"),
        ({"mcp_servers": [{**FAR, "type": "stdio"}]}, "mcp_servers[0].type"),
        ({"mcp_servers": [{**FAR, "url": "ftp://hidden.example"}]}, "mcp_servers[0].url"),
        ({"mcp_servers": [{**FAR, "authorization_token": "hidden\n"}]}, "mcp_servers[0].authorization_token"),
        ({"tools": [{**TOOLSET, "mcp_server_name": "near"}]}, "mcp_servers"),
        ({"tools": [{**TOOLSET, "tools": [{"name": ""}]}]}, "tools[0].tools[0].name"),
        ({"tools": [TOOLSET, TOOLSET]}, "tools"),
    ],
)
def test_an_mcp_server_of_a_message_is_refused_by_the_name_of_its_field(changed: Any, param: str) -> None:
    asked = {"max_tokens": 5, "messages": [{"role": "user", "content": "x"}], "mcp_servers": [FAR], "tools": [TOOLSET]}
    error = refused(MessagesRequest, {**asked, **changed})
    assert error.param == param
    assert "hidden" not in error.message


def test_two_mcp_servers_have_two_labels() -> None:
    assert refused(ResponseRequest, {"input": "x", "tools": [MCP, MCP]}).param == "tools"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text": {"format": {"type": "grammar"}}}, "text.format"),
        ({"prompt": {"id": "p"}}, "prompt"),
    ],
)
def test_what_is_not_acted_on_is_refused_and_not_ignored(body: Any, param: str) -> None:
    error = refused(ResponseRequest, body)
    assert (error.param, error.code) == (param, "unsupported_parameter")


@pytest.mark.parametrize("kind", [{}, {"type": None}, {"type": "item_reference"}])
def test_a_reference_to_an_item_need_not_say_that_it_is_one(kind: dict[str, Any]) -> None:
    message = {"id": "msg_1", "role": "user", "content": "x"}
    reference, said = parse(ResponseRequest, orjson.dumps({"input": [{"id": "msg_1", **kind}, message]})).input
    assert isinstance(reference, ItemReference) and reference.id == "msg_1"
    assert isinstance(said, MessageItem)


def test_values_that_ask_for_nothing_pass() -> None:
    body = {
        "background": False,
        "truncation": "disabled",
        "text": {"format": {"type": "text"}, "verbosity": None},
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "auto",
        "top_logprobs": 0,
        "prompt": None,
        "include": ["reasoning.encrypted_content"],
        "stream_options": {"include_obfuscation": False},
        "user": "u",
    }
    assert parse(ResponseRequest, orjson.dumps(body)).input == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [{"role": "assistant"}]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": "x"}], "n": 9}, "n"),
        ({"messages": [{"role": "user", "content": "x"}], "top_logprobs": 2}, "top_logprobs"),
        ({"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": [{"role": "user", "content": "x"}], "logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"messages": [{"role": "user", "content": "x"}], "logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"messages": [{"role": "user", "content": "x"}], "stop": list("abcdefghijklmnopq")}, "stop"),
        ({"messages": [{"role": "user", "content": "x"}], "stop": [""]}, "stop[0]"),
        ({"messages": [{"role": "user", "content": "x"}], "functions": []}, "functions"),
        ({"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "grammar"}}, None),
        (
            {
                "messages": [{"role": "user", "content": "x"}],
                "response_format": {"type": "json_schema", "json_schema": {"name": "f", "strict": True, "schema": ODD}},
            },
            "response_format.json_schema.schema",
        ),
    ],
)
def test_a_chat_request_is_refused_by_the_name_of_its_field(body: Any, param: str | None) -> None:
    error = refused(ChatRequest, body)
    assert param in (None, error.param)


def test_a_schema_is_refused_with_the_place_that_stands_against_it() -> None:
    formats = {"text": {"format": {"type": "json_schema", "name": "f", "strict": True, "schema": ODD}}}
    assert "properties.a.contains" in refused(ResponseRequest, formats).message
    tools = {"tools": [{**FUNCTION, "strict": True, "parameters": ODD}]}
    assert "parameters.properties.a.contains" in refused(ResponseRequest, tools).message
    assert parse(ResponseRequest, orjson.dumps({"tools": [{**FUNCTION, "parameters": ODD}]})).tools
    loose = {"text": {"format": {"type": "json_schema", "name": "f", "schema": ODD}}}
    assert parse(ResponseRequest, orjson.dumps(loose)).format.answer("text.format")


def test_functions_may_be_described_as_python_names_them() -> None:
    point = {"type": "tuple", "items": {"type": "float"}, "default": {"type": "dict"}}
    given = {"at": point, "type": {"type": "str"}, "any": {"type": "any"}, "a": {"anyOf": [{"type": "int"}]}}
    tool = {**FUNCTION, "name": "math.sum", "parameters": {"type": "dict", "properties": given}}
    tools = parse(ResponseRequest, orjson.dumps({"tools": [{**tool, "strict": True}]})).tools
    point = {"type": "array", "items": {"type": "number"}, "default": {"type": "dict"}}
    held = {"at": point, "type": {"type": "string"}, "any": {}, "a": {"anyOf": [{"type": "integer"}]}}
    assert tools is not None and isinstance(read := tools[0], FunctionToolParam)
    assert (read.name, read.parameters) == ("math.sum", {"type": "object", "properties": held})


def test_a_conversation_takes_twenty_items_at_a_time() -> None:
    item = {"role": "user", "content": "x"}
    assert len(parse(ItemsCreate, orjson.dumps({"items": [item] * 20})).items) == 20
    assert refused(ItemsCreate, {"items": [item] * 21}).param == "items"
    assert refused(ItemsCreate, {"items": []}).param == "items"
    assert refused(ConversationCreate, {"items": [item] * 21}).param == "items"


@pytest.mark.parametrize("body", [b"{", b"[]", b'"x"', b"null", b"\xff", b'{"a":1e999}', b'{"input":"\\ud800"}'])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    assert refused(ResponseRequest, body).code == "invalid_json"


def test_json_nested_beyond_reason_is_refused() -> None:
    assert refused(ResponseRequest, b'{"input":' + b"[" * 100_000).code == "invalid_json"
    deep: dict[str, Any] = {}
    for _ in range(limits.SCHEMA_DEPTH_MAX):
        deep = {"properties": deep}
    assert refused(ResponseRequest, {"tools": [{**FUNCTION, "parameters": deep}]}).param == "tools[0].parameters"


@pytest.mark.parametrize(("lists", "deep"), [(limits.LEVELS_MAX - 1, False), (limits.LEVELS_MAX, True)])
def test_the_brackets_of_a_short_body_count_as_levels_from_the_limit_on(lists: int, deep: bool) -> None:
    body = b'{"metadata":%b1%b}' % (b"[" * lists, b"]" * lists)
    with pytest.raises(ApiError) as caught:
        parse(ResponseRequest, body)
    assert ("levels deep" in caught.value.message) is deep


@pytest.mark.parametrize(
    "body",
    [
        b'{"input":[' + b"0," * 1_000_000 + b"0]}",
        b'{"metadata":{' + b",".join(b'"%d":""' % n for n in range(200_000)) + b"}}",
        b'{"tools":[{"type":"function","name":"f","parameters":{"a":[' + b"{}," * 1_000_000 + b"0]}}]}",
    ],
)
def test_a_body_of_countless_values_is_refused_before_it_is_looked_at_closely(body: bytes) -> None:
    started = time.process_time()
    assert refused(ResponseRequest, body).code == "array_above_max_length"
    assert time.process_time() - started < 4  # read closely, the first of them takes eight


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "a\0b"}, "input"),
        ({"metadata": {"k\0": "v"}}, "metadata"),
        ({"tools": [{**FUNCTION, "parameters": {"properties": {"a": {"enum": ["\0"]}}}}]}, None),
    ],
)
def test_text_that_the_database_cannot_hold_is_refused_before_anything_is_generated(
    body: Any, param: str | None
) -> None:
    assert param in (None, refused(ResponseRequest, body).param)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(sorted(ResponseRequest.model_fields)), value=JSON)
def test_no_value_of_any_response_parameter_raises_anything_but_a_refusal(name: str, value: Any) -> None:
    try:
        request = parse(ResponseRequest, orjson.dumps({name: value}))
    except ApiError as error:
        assert error.status == 400
    else:
        assert request.choice.echo() is not None


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(sorted(ChatRequest.model_fields)), value=JSON)
def test_no_value_of_any_chat_parameter_raises_anything_but_a_refusal(name: str, value: Any) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], name: value}
    try:
        parse(ChatRequest, orjson.dumps(body))
    except ApiError as error:
        assert error.status == 400


class Watched(Strict):
    text: str

    @field_validator("text")
    @classmethod
    def _note(cls, text: str) -> str:
        threads.append(threading.get_ident())
        return text


threads: list[int] = []


async def test_a_long_body_is_parsed_beside_the_event_loop() -> None:
    threads.clear()
    assert (await parsed(Watched, orjson.dumps({"text": "short"}))).text == "short"
    await parsed(Watched, orjson.dumps({"text": "x" * SHORT_BYTES_MAX}))
    with pytest.raises(ApiError, match="colour"):
        await parsed(Watched, orjson.dumps({"text": "x" * SHORT_BYTES_MAX, "colour": "red"}))
    here = threading.get_ident()
    assert threads[0] == here and len(threads) == 3 and here not in threads[1:]
