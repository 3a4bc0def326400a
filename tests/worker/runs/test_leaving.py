"""A client that leaves: its generation ends at once, and what it saw is kept."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack

import pytest

from migrations.pool import Database
from tests.worker.answering import answering, get, post, stalling
from worker.config import Config
from worker.runs import event_stream
from worker.runs.run import Run

CHAT = {"messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(("path", "body"), [("/v1/responses", {"input": "x"}), ("/v1/chat/completions", CHAT)])
async def test_leaving_a_stream_cancels_the_generation(database: Database, path: str, body: dict[str, object]) -> None:
    model = stalling()
    async with answering(database, model=model) as client:
        async with client.post(path, json={**body, "stream": True}) as answer:
            await answer.content.readuntil(b"Hal")
            assert not model.running[0].stopped.is_set()
        answer.close()
        await model.running[0].stopped.wait()


@pytest.mark.parametrize(("path", "body"), [("/v1/responses", {"input": "x"}), ("/v1/chat/completions", CHAT)])
async def test_leaving_a_whole_answer_cancels_the_generation(
    database: Database, path: str, body: dict[str, object]
) -> None:
    model = stalling()
    async with answering(database, model=model) as client:
        waiting = asyncio.create_task(client.session.post(client.make_url(path), json=body))
        await model.started.wait()
        waiting.cancel()
        await model.running[0].stopped.wait()


async def test_a_person_who_stops_an_answer_goes_on_from_what_they_saw(database: Database) -> None:
    model = stalling()
    async with answering(database, model=model) as client:
        conversation = (await post(client, "/v1/conversations", {}))["id"]
        body = {"input": "tell me", "conversation": conversation, "stream": True}
        async with client.post("/v1/responses", json=body) as answer:
            await answer.content.readuntil(b"er,")
        answer.close()
        items: list[dict[str, object]] = []
        while len(items) < 2:  # kept after the connection is gone, so nobody is told when
            items = (await get(client, f"/v1/conversations/{conversation}/items?order=asc"))["data"]
    assert items[0]["role"] == "user"
    assert items[1]["status"] == "incomplete"
    assert "Half an answer," in str(items[1]["content"])


async def test_a_call_that_was_cut_off_is_not_kept(database: Database) -> None:
    model = stalling('Let me see.\n<tool_call>\n{"name": "double", "arguments": {"num')
    async with answering(database, model=model) as client:
        conversation = (await post(client, "/v1/conversations", {}))["id"]
        tools = [{"type": "firsttoken:double"}]
        body = {"input": "tell me", "conversation": conversation, "stream": True, "tools": tools}
        async with client.post("/v1/responses", json=body) as answer:
            await answer.content.readuntil(b"arguments.delta")
        answer.close()
        items: list[dict[str, object]] = []
        while len(items) < 2:
            items = (await get(client, f"/v1/conversations/{conversation}/items?order=asc"))["data"]
    assert [item["type"] for item in items] == ["message", "message"]


async def test_the_place_of_a_turn_that_was_left_is_free_again(database: Database) -> None:
    model = stalling()
    body = {"input": "x", "stream": True, "store": False}
    async with answering(database, model=model, config=Config(turns=2)) as client:
        async with client.post("/v1/responses", json=body) as answer:
            await answer.content.readuntil(b"Hal")
        answer.close()
        status = 429
        while status == 429:
            async with client.post("/v1/responses", json=body) as answer:
                status = answer.status
            answer.close()
        assert status == 200


async def test_the_place_of_a_turn_that_ends_in_the_moment_of_its_beginning_is_free_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its credential may end then, or the worker."""
    start, places = Run.start, list[ExitStack]()

    async def ended_at_once(run: Run, held: ExitStack) -> None:
        places.append(held)
        held.callback(places.clear)
        asyncio.get_running_loop().call_soon(run.cancel)  # before the first line of its task
        await start(run, held)

    monkeypatch.setattr(Run, "start", ended_at_once)
    async with answering(database, "Hello.") as client:
        error = (await post(client, "/v1/responses", {"input": "x"}, 409))["error"]
        assert error["code"] == "response_cancelled"
        [turn] = (await get(client, "/ops/api/traces"))["data"]
        assert turn["status"] == "cancelled"
    assert not places


async def test_an_idle_stream_shows_that_it_lives(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(event_stream, "BEATS_BETWEEN", 1)
    model = stalling()
    async with (
        answering(database, model=model) as client,
        client.post("/v1/responses", json={"input": "x", "stream": True}) as answer,
    ):
        await answer.content.readuntil(b"er,")
        await answer.content.readuntil(b"\n: ping\n\n")
        await answer.content.readuntil(b": ping\n\n")
        model.running[0].released.set()
        assert (await answer.read()).endswith(b"data: [DONE]\n\n")


async def test_a_client_that_does_not_read_is_let_go(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "STALL_S", 0.1)
    model = stalling("x" * 9_000_000)  # more than the kernel's buffers on both sides hold
    model.piece_chars = 60_000
    async with answering(database, model=model) as client:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((client.host, client.port))
        connection.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=connection)
        key = client.session.headers["Authorization"]
        body = b'{"input":"x","stream":true,"store":false}'
        head = f"POST /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await reader.readuntil(b"response.created")  # the last thing that is read
        await model.running[0].stopped.wait()
        writer.transport.abort()
