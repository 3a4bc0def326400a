"""Clients that keep their connection: it ends where nothing else could end the answer, and only there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, answering, post
from tests.worker.edge.sockets import Raw, raw
from tests.worker.harness import Client

MESSAGES = [{"role": "user", "content": "hello"}]
APIS: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": "hello"},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hello"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 20},
}
apis = pytest.mark.parametrize("path", APIS)
versions = pytest.mark.parametrize("version", ["1.0", "1.1"])


@pytest.fixture
async def client(database: Database) -> AsyncIterator[Client]:
    async with answering(database, model=ScriptedModel(["Good morning."], name=MODEL)) as client:
        yield client


async def ask(connection: Raw, client: Client, path: str, body: Any = None, version: str = "1.0") -> None:
    """Ask for an answer on a connection that is to be kept."""
    content = json.dumps(body).encode() if body is not None else b""
    key = client.session.headers["Authorization"]
    lines = [f"{'POST' if content else 'GET'} {path} HTTP/{version}", "Host: x", f"Authorization: {key}"]
    lines += ["Connection: keep-alive", *([f"Content-Length: {len(content)}"] if content else [])]
    await connection.send("\r\n".join(lines).encode() + b"\r\n\r\n" + content)


@apis
async def test_without_chunks_a_stream_ends_with_its_connection(client: Client, path: str) -> None:
    async with raw(client) as connection:
        await ask(connection, client, path, {**APIS[path], "stream": True})
        head, _, body = (await connection.rest()).partition(b"\r\n\r\n")
    assert b"200 OK" in head and b"keep-alive" not in head and b"chunked" not in head
    assert body.rstrip().endswith((b"[DONE]", b'{"type":"message_stop"}'))


async def test_without_chunks_a_resumed_stream_ends_with_its_connection(client: Client) -> None:
    response = await post(client, "/v1/responses", APIS["/v1/responses"])
    async with raw(client) as connection:
        await ask(connection, client, f"/v1/responses/{response['id']}?stream=true")
        assert (await connection.rest()).endswith(b"data: [DONE]\n\n")


@apis
@versions
async def test_a_connection_outlives_answers_whose_length_is_known(client: Client, path: str, version: str) -> None:
    async with raw(client) as connection:
        for _ in range(2):
            await ask(connection, client, path, APIS[path], version)
            assert (await connection.answer())[0] == 200


@apis
async def test_with_chunks_a_connection_outlives_a_stream(client: Client, path: str) -> None:
    async with raw(client) as connection:
        await ask(connection, client, path, {**APIS[path], "stream": True}, "1.1")
        assert (await connection.reader.readuntil(b"\r\n0\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
        await ask(connection, client, path, APIS[path], "1.1")
        assert (await connection.answer())[0] == 200
