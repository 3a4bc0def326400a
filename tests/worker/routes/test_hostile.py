"""Anything at all as a body: an answer or a refusal in the contract's shape, never a 500."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from migrations.pool import Database
from tests.worker.answering import MODEL, answering
from tests.worker.edge.sockets import raw
from tests.worker.harness import Client

# Bodies are near the truth on purpose: most of what is random would be refused at the first field.
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        ["", "auto", "function", "user", "input_text", "message", "docs", "firsttoken:double", "\0", "😀"]
    )
    | st.text(st.characters(codec="utf-8"), max_size=12)
)
KEYS = st.sampled_from(
    ["type", "role", "content", "text", "name", "id", "call_id", "arguments", "output", "items", "metadata", "function",
     "parameters", "tool_calls", "tool_call_id", "vector_store_ids", "properties"]
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=10
)
ITEMS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["message", "function_call", "function_call_output", "file_search_call"]) | SCALARS,
        "role": st.sampled_from(["user", "assistant", "system", "developer", "tool"]) | SCALARS,
        "content": st.text(st.characters(codec="utf-8"), max_size=12) | VALUES,
        "call_id": st.sampled_from(["c1", "c2"]),
        "tool_call_id": st.sampled_from(["c1", "c2"]),
        "name": st.sampled_from(["double", "f"]),
        "arguments": st.sampled_from(["{}", "{", "", '{"number": 1}', "null"]),
        "output": VALUES,
        "id": SCALARS,
    },
)
RESPONSE = st.fixed_dictionaries(
    {"input": st.text(st.characters(codec="utf-8"), max_size=12) | st.lists(ITEMS, max_size=4) | VALUES},
    optional={
        "instructions": SCALARS,
        "tools": st.lists(VALUES | st.just({"type": "firsttoken:double"}), max_size=3),
        "tool_choice": VALUES,
        "temperature": SCALARS,
        "top_p": st.floats(0, 1),
        "max_output_tokens": st.integers(1, 9),
        "metadata": VALUES,
        "conversation": SCALARS,
        "previous_response_id": SCALARS,
        "include": VALUES,
        "text": VALUES,
        "stream": st.booleans(),
        "store": st.booleans(),
    },
)
CHAT = st.fixed_dictionaries(
    {"messages": st.lists(ITEMS, max_size=4) | VALUES},
    optional={
        "tools": st.lists(VALUES, max_size=3),
        "tool_choice": VALUES,
        "stop": VALUES,
        "seed": SCALARS,
        "logit_bias": st.dictionaries(st.integers(0, 9_999_999).map(str) | st.text(max_size=3), SCALARS, max_size=3),
        "stream_options": VALUES,
        "stream": st.booleans(),
    },
)
BLOCKS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["text", "image", "document", "search_result", "thinking", "tool_use", "tool_result"])
        | SCALARS
    },
    optional={
        "text": st.text(st.characters(codec="utf-8"), max_size=12) | VALUES,
        "thinking": SCALARS,
        "title": SCALARS,
        "source": st.fixed_dictionaries(
            {"type": st.sampled_from(["base64", "text", "url", "file", "content"])},
            optional={"data": SCALARS, "media_type": st.just("image/png") | SCALARS, "url": SCALARS, "content": VALUES},
        )
        | VALUES,
        "id": st.sampled_from(["c1", "c2"]),
        "tool_use_id": st.sampled_from(["c1", "c2"]),
        "name": st.sampled_from(["double", "f"]),
        "input": VALUES,
        "content": VALUES,
    },
)
MESSAGES = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 9),
        "messages": st.lists(
            st.fixed_dictionaries(
                {
                    "role": st.sampled_from(["user", "assistant"]),
                    "content": st.text(st.characters(codec="utf-8"), max_size=12) | st.lists(BLOCKS, max_size=3),
                }
            ),
            max_size=3,
        )
        | VALUES,
    },
    optional={
        "system": VALUES | st.lists(BLOCKS, max_size=2),
        "tools": st.lists(VALUES, max_size=3),
        "tool_choice": VALUES,
        "thinking": VALUES,
        "metadata": VALUES,
        "stop_sequences": VALUES,
        "output_config": VALUES,
        "stream": st.booleans(),
    },
)
COMPLETION = st.fixed_dictionaries(
    {"prompt": st.text(st.characters(codec="utf-8"), max_size=12) | st.lists(st.integers(0, 300), max_size=3) | VALUES},
    optional={
        "n": st.integers(0, 3),
        "suffix": SCALARS,
        "echo": st.booleans(),
        "logprobs": st.integers(-1, 3),
        "best_of": SCALARS,
        "stop": VALUES,
        "stream": st.booleans(),
    },
)
TOKENS = st.fixed_dictionaries(
    {},
    optional={
        "content": SCALARS,
        "prompt": SCALARS,
        "messages": st.lists(ITEMS, max_size=2) | VALUES,
        "tokens": st.lists(st.integers(-1, 300), max_size=3) | VALUES,
        "with_pieces": SCALARS,
        "add_special": SCALARS,
    },
)
LAST = ("error", "response.completed", "response.incomplete")
EXAMPLES = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
async def client(database: Database) -> AsyncIterator[Client]:
    async with answering(database, "\0 odd \ud800 text <tool_call> [1] </tool_call>") as client:
        yield client


async def never_fails(client: Client, path: str, body: bytes) -> None:
    async with client.post(path, data=body, headers={"Content-Type": "application/json"}) as answer:
        content = await answer.read()
        assert answer.status in (200, 400, 404), content
        if answer.status >= 400:
            error = orjson.loads(content)["error"]
            assert error["message"]
            assert error["type"] in ("invalid_request_error", "not_found_error")
        elif answer.content_type == "text/event-stream":
            assert content.endswith((b"data: [DONE]\n\n", b'data: {"type":"message_stop"}\n\n'))
            assert b'"status":"failed"' not in content


@EXAMPLES
@given(body=RESPONSE)
async def test_responses(client: Client, body: Any) -> None:
    await never_fails(client, "/v1/responses", orjson.dumps(body))


@EXAMPLES
@given(bodies=st.lists(st.one_of(RESPONSE, VALUES), min_size=1, max_size=3))
async def test_messages_on_a_websocket(client: Client, bodies: list[Any]) -> None:
    """Each one is answered, by an error or to its end, and the connection stays."""
    async with client.ws_connect("/v1/responses") as socket:
        for body in bodies:
            message = {"type": "response.create", **body} if isinstance(body, dict) else body
            await socket.send_str(orjson.dumps(message).decode())
            while (event := orjson.loads((await socket.receive(timeout=60)).data))["type"] not in LAST:
                assert event["type"].startswith("response.")


@EXAMPLES
@given(body=CHAT)
async def test_chat_completions(client: Client, body: Any) -> None:
    await never_fails(client, "/v1/chat/completions", orjson.dumps(body))


@EXAMPLES
@given(body=MESSAGES)
async def test_messages(client: Client, body: Any) -> None:
    await never_fails(client, "/v1/messages", orjson.dumps(body))


@EXAMPLES
@given(body=COMPLETION)
async def test_completions(client: Client, body: Any) -> None:
    await never_fails(client, "/v1/completions", orjson.dumps(body))


@EXAMPLES
@given(body=TOKENS)
async def test_tokens(client: Client, body: Any) -> None:
    for path in ("/tokenize", "/detokenize"):
        await never_fails(client, path, orjson.dumps(body))


@EXAMPLES
@given(body=VALUES | st.fixed_dictionaries({}, optional={"items": st.lists(ITEMS, max_size=4), "metadata": VALUES}))
async def test_conversations(client: Client, body: Any) -> None:
    await never_fails(client, "/v1/conversations", orjson.dumps(body))


@EXAMPLES
@given(body=st.binary(max_size=64))
async def test_bytes_that_are_no_json(client: Client, body: bytes) -> None:
    await never_fails(client, "/v1/responses", body)


@pytest.mark.parametrize("limit", ["0", "101", "0000019999999", "0" * 20 + "5", "9" * 5000, "\u0665", "-1", "1.0"])
async def test_a_limit_that_is_none(client: Client, limit: str) -> None:
    async with client.get("/v1/conversations", params={"limit": limit}) as answer:
        assert answer.status == 400
        error = (await answer.json())["error"]
        assert (error["param"], error["message"]) == ("limit", "Invalid 'limit': it must be a number from 1 to 100.")


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions", "/v1/messages"])
async def test_a_body_that_nests_without_end_and_an_idempotency_key(client: Client, path: str) -> None:
    body = b'{"metadata": ' + b'{"a":' * 400 + b"1" + b"}" * 401
    async with client.post(path, data=body, headers={"Idempotency-Key": "k"}) as answer:
        assert answer.status == 400
        assert "levels" in (await answer.json())["error"]["message"]


@pytest.mark.parametrize("name", ["Authorization", "Cookie", "Idempotency-Key", "Traceparent", "X-Request-Id", "Host"])
async def test_headers_that_are_not_utf8(client: Client, name: str) -> None:
    async with raw(client) as odd:
        credential = client.session.headers["Authorization"].encode()
        lines = [b"Host: x", b"Content-Length: 14", b"Authorization: " + credential]
        lines = [line for line in lines if not line.startswith(name.encode())]
        odd_line = name.encode() + (b": Bearer \xff\xfe" if name == "Authorization" else b": \xff\xfe")
        await odd.send(b"\r\n".join([b"POST /v1/responses HTTP/1.1", *lines, odd_line, b"", b'{"input": "x"}']))
        assert (await odd.answer())[0] < 500


async def test_a_model_that_writes_what_no_database_holds_is_stored_all_the_same(client: Client) -> None:
    async with client.post("/v1/responses", json={"input": "x", "model": MODEL}) as answer:
        response = await answer.json()
    async with client.get(f"/v1/responses/{response['id']}") as stored:
        assert await stored.json() == response
