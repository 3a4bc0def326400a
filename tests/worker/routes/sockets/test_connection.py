"""What a WebSocket holds out: leaving, waiting, hostile messages, foreign pages, a worker that is being stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from struct import pack
from typing import Any
from uuid import uuid4

import orjson
import pytest
from aiohttp import ClientWebSocketResponse, WSCloseCode, WSMsgType, WSServerHandshakeError

from agents.message import Item, Message
from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, StallingModel, answering, get, post, services_with
from tests.worker.edge.sockets import Raw, head, raw
from tests.worker.harness import SECRET, Client, serving
from tests.worker.loop_blocks import blocks
from tests.worker.reader import Reader
from worker.auth import authenticator
from worker.auth.keys import Keys
from worker.config import Config
from worker.routes.sockets import connection as connections
from worker.routes.sockets.connection import LANES_MAX, RESPONSES_MAX, memory
from worker.routes.sockets.lane import WAITING_MAX
from worker.services import DRAINING
from worker.wire import limits

URL = "/v1/responses"


async def send(socket: ClientWebSocketResponse, **body: Any) -> None:
    await socket.send_str(orjson.dumps({"type": "response.create", "input": "hello", **body}).decode())


async def receive(socket: ClientWebSocketResponse) -> dict[str, Any]:
    message = await socket.receive(timeout=60)
    assert message.type is WSMsgType.TEXT, message
    event: dict[str, Any] = orjson.loads(message.data)
    return event


async def answer(socket: ClientWebSocketResponse) -> Reader:
    reader = Reader()
    while reader.final is None:
        reader.feed(await receive(socket))
    return reader


async def refusal(socket: ClientWebSocketResponse, **body: Any) -> dict[str, Any]:
    await send(socket, **body)
    event = await receive(socket)
    assert event["type"] == "error", event
    error: dict[str, Any] = event["error"]
    return error


@pytest.fixture
async def client(database: Database) -> AsyncIterator[Client]:
    async with answering(database, "Hello there, friend.") as client:
        yield client


@pytest.fixture
async def socket(client: Client) -> AsyncIterator[ClientWebSocketResponse]:
    async with client.ws_connect(URL) as socket:
        yield socket


@asynccontextmanager
async def stalled(database: Database) -> AsyncIterator[tuple[Client, StallingModel, ClientWebSocketResponse]]:
    """A connection whose answer has begun and stands still."""
    model = StallingModel(["Hi."], name=MODEL)  # one piece
    async with answering(database, model=model) as client, client.ws_connect(URL) as socket:
        await send(socket)
        while (await receive(socket))["type"] != "response.output_text.delta":
            pass
        yield client, model, socket


async def test_what_is_told_is_stored_like_any_response(client: Client, socket: ClientWebSocketResponse) -> None:
    await send(socket, metadata={"a": "b"})
    final = (await answer(socket)).final
    assert final is not None
    assert await get(client, f"{URL}/{final['id']}") == final


async def test_a_response_continues_one_that_only_the_connection_remembers(database: Database) -> None:
    model = ScriptedModel(["My name is Ada.", "Ada, as I said."], name=MODEL)
    async with answering(database, model=model) as client, client.ws_connect(URL) as socket:
        await send(socket, input="who are you", store=False)
        first = (await answer(socket)).final
        assert first is not None
        for _ in range(2):  # twice from the same one
            await send(socket, input="again?", store=False, previous_response_id=first["id"])
            await answer(socket)
        await post(client, URL, {"input": "x", "previous_response_id": first["id"]}, 404)
    assert "<user>who are you\n<assistant>My name is Ada.\n<user>again?" in model.prompts[1]
    assert model.prompts[2] == model.prompts[1]


async def test_a_response_continues_one_that_is_stored(client: Client, socket: ClientWebSocketResponse) -> None:
    stored = await post(client, URL, {"input": "hello"})
    await send(socket, previous_response_id=stored["id"], store=False)
    final = (await answer(socket)).final
    assert final is not None and final["previous_response_id"] == stored["id"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"stream": False}, "stream"),
        ({"background": True}, "background"),
        ({"generate": "no"}, "generate"),
        ({"stream_id": ""}, "stream_id"),
        ({"stream_id": "a" * 65}, "stream_id"),
        ({"type": "response.inject"}, "type"),
        ({"colour": "red"}, "colour"),
        ({"model": "gpt-9"}, "model"),
        ({"previous_response_id": "resp_0"}, "previous_response_id"),
        ({"input": []}, "input"),
    ],
)
async def test_what_is_wrong_is_named_and_the_connection_goes_on(
    socket: ClientWebSocketResponse, body: dict[str, Any], param: str
) -> None:
    assert (await refusal(socket, **body))["param"] == param
    await send(socket)
    assert (await answer(socket)).texts == {0: "Hello there, friend."}


@pytest.mark.parametrize("asked", [{"generate": False}, {"prompt_cache_options": {"prewarm": True}}])
@pytest.mark.parametrize("stored", [False, True])
async def test_a_prompt_is_read_without_an_answer_and_continued(
    database: Database, asked: dict[str, Any], stored: bool
) -> None:
    model = ScriptedModel(["Good day."], name=MODEL)
    async with answering(database, model=model) as client, client.ws_connect(URL) as socket:
        await send(socket, input="who are you", instructions="Be terse.", store=stored, **asked)
        read = (await answer(socket)).final
        assert read is not None and (read["status"], read["output"]) == ("completed", [])
        assert read["usage"]["input_tokens"] > 0 and read["usage"]["output_tokens"] == 0
        last = {"previous_response_id": read["id"], "instructions": "Be terse.", "store": stored}
        await send(socket, input="and where", **last)
        final = await answer(socket)
        assert final.texts == {0: "Good day."}
    first, second = model.prompts
    assert second.startswith(first.removesuffix("<assistant>")) and "<user>who are you\n<user>and where" in second


async def test_without_a_question_what_precedes_it_is_read(database: Database) -> None:
    model = ScriptedModel(["Good day."], name=MODEL)
    async with answering(database, model=model) as client, client.ws_connect(URL) as socket:
        await send(socket, input=[], instructions="Be terse.", generate=False)
        read = (await answer(socket)).final
        assert read is not None and read["status"] == "completed"
        await send(socket, input="hello", instructions="Be terse.", previous_response_id=read["id"])
        await answer(socket)
    first, second = model.prompts
    assert first and "?" not in first and second.startswith(first)


@pytest.mark.parametrize("obfuscated", [False, True])
async def test_a_client_may_say_that_it_wants_a_stream(socket: ClientWebSocketResponse, obfuscated: bool) -> None:
    await send(socket, stream=True, stream_options={"include_obfuscation": obfuscated}, background=False)
    assert (await answer(socket)).texts == {0: "Hello there, friend."}


@pytest.mark.parametrize("data", ["", "{", "[]", '"x"', "\0"])
async def test_what_is_no_json_object_is_refused(socket: ClientWebSocketResponse, data: str) -> None:
    await socket.send_str(data)
    event = await receive(socket)
    assert (event["status"], event["type"]) == (400, "error")
    await socket.send_bytes(b"\xff\xfe")
    assert (await receive(socket))["error"]["code"] == "invalid_json"


async def test_a_message_that_is_too_large_ends_the_connection(database: Database) -> None:
    async with (
        answering(database, "x", config=Config(body_bytes=2048)) as client,
        client.ws_connect(URL) as socket,
    ):
        await send(socket, input="x" * 4096)
        assert (await socket.receive(timeout=60)).data == WSCloseCode.MESSAGE_TOO_BIG


async def test_leaving_stops_the_generation(database: Database) -> None:
    async with stalled(database) as (_, model, socket):
        await socket.close()
        async with asyncio.timeout(60):
            await model.running[0].stopped.wait()


async def test_requests_wait_for_each_other_and_only_so_many(database: Database) -> None:
    async with stalled(database) as (_, model, socket):
        for _ in range(WAITING_MAX):
            await send(socket)
        assert (await refusal(socket))["code"] == "rate_limit_exceeded"
        model.running[0].released.set()
        while (await receive(socket))["type"] != "response.completed":
            pass
        assert (await receive(socket))["type"] == "response.created"
        assert len(model.running) == 2


async def until(socket: ClientWebSocketResponse, kind: str) -> dict[str, Any]:
    while (event := await receive(socket))["type"] != kind:
        pass
    return event


async def test_streams_of_one_connection_are_answered_at_once_and_each_in_its_order(database: Database) -> None:
    async with stalled(database) as (_, model, socket):
        for name in ("a", "b", "a"):
            await send(socket, stream_id=name)
        begun = [(await until(socket, "response.created"))["stream_id"] for _ in range(2)]
        assert sorted(begun) == ["a", "b"] and len(model.running) == 3, "the first and two more, but not the last"
        model.running[1 + begun.index("a")].released.set()
        assert (await until(socket, "response.completed"))["stream_id"] == "a"
        assert (await until(socket, "response.created"))["stream_id"] == "a"
        model.running[0].released.set()
        assert "stream_id" not in await until(socket, "response.completed")


async def test_a_stream_goes_on_from_what_is_being_continued_in_another(database: Database) -> None:
    async with stalled(database) as (_, model, socket):
        model.running[0].released.set()
        await until(socket, "response.completed")
        await send(socket, store=False)
        while len(model.running) < 2:
            await receive(socket)
        model.running[1].released.set()
        first = (await until(socket, "response.completed"))["response"]["id"]
        for name in ("a", "b"):
            await send(socket, stream_id=name, store=False, previous_response_id=first)
        names = {(await until(socket, "response.created"))["stream_id"] for _ in range(2)}
    assert names == {"a", "b"}


async def test_a_connection_answers_so_many_streams_and_forgets_idle_ones(database: Database) -> None:
    async with stalled(database) as (_, model, socket):
        for number in range(LANES_MAX):
            await send(socket, stream_id=f"{number}")
        for _ in range(LANES_MAX):
            await until(socket, "response.created")
        await send(socket, stream_id="more")
        refused = await until(socket, "error")
        assert (refused["stream_id"], refused["error"]["code"]) == ("more", "rate_limit_exceeded")
        for each in model.running:
            each.released.set()
        for _ in range(1 + LANES_MAX):
            await until(socket, "response.completed")
        await send(socket, stream_id="more")
        assert (await until(socket, "response.created"))["stream_id"] == "more"


async def test_a_worker_that_is_stopped_finishes_the_answers_of_all_streams(database: Database) -> None:
    async with stalled(database) as (client, model, socket):
        await send(socket, stream_id="a")
        await until(socket, "response.created")
        assert client.app is not None
        client.app[DRAINING].set()
        for each in model.running:
            each.released.set()
        finals = [await until(socket, "response.completed") for _ in range(2)]
        assert {final.get("stream_id") for final in finals} == {None, "a"}
        assert (await socket.receive(timeout=60)).data == WSCloseCode.GOING_AWAY


async def test_a_response_that_is_cancelled_elsewhere_ends_with_an_error(database: Database) -> None:
    model = StallingModel(["Hello."], name=MODEL)
    async with answering(database, model=model) as client, client.ws_connect(URL) as socket:
        await send(socket)
        id = (await receive(socket))["response"]["id"]
        async with client.post(f"{URL}/{id}/cancel") as cancelled:
            assert (await cancelled.json())["status"] == "cancelled"
        while (event := await receive(socket))["type"] != "error":
            pass
        assert event["error"]["code"] == "response_cancelled"


async def test_a_worker_that_is_stopped_finishes_the_answer_and_says_goodbye(database: Database) -> None:
    async with stalled(database) as (client, model, socket), client.ws_connect(URL) as idle:
        assert client.app is not None
        client.app[DRAINING].set()
        assert (await idle.receive(timeout=60)).data == WSCloseCode.GOING_AWAY
        model.running[0].released.set()
        while (message := await socket.receive(timeout=60)).type is WSMsgType.TEXT:
            last = orjson.loads(message.data)
        assert last["type"] == "response.completed"
        assert message.data == WSCloseCode.GOING_AWAY
        with pytest.raises(WSServerHandshakeError) as refused:
            await client.ws_connect(URL)
        assert refused.value.status == 503


async def test_an_idle_connection_is_closed(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE_S", 0.01)
    async with client.ws_connect(URL) as socket:
        assert (await socket.receive(timeout=60)).data == WSCloseCode.OK


async def test_a_tenant_has_so_many_connections(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "TENANT_OPEN_MAX", 1)
    async with client.ws_connect(URL):
        with pytest.raises(WSServerHandshakeError) as refused:
            await client.ws_connect(URL)
        assert refused.value.status == 429


async def test_headers_of_the_connection_count_for_its_requests(client: Client) -> None:
    async with client.ws_connect(URL, headers={"X-Firsttoken-Deterministic": "true"}) as socket:
        await send(socket)
        final = (await answer(socket)).final
    assert final is not None and final["metadata"] == {"deterministic": "true"}


async def test_without_a_key_there_is_no_connection(client: Client) -> None:
    with pytest.raises(WSServerHandshakeError) as refused:
        await client.ws_connect(URL, headers={"Authorization": "Bearer ft_wrong"})
    assert refused.value.status == 401


async def test_a_plain_get_is_told_what_to_do(client: Client) -> None:
    async with client.get(URL) as answer:
        assert answer.status == 426


async def test_a_browser_connects_from_our_own_page_only(database: Database) -> None:
    keys = Keys(database, SECRET)
    services = services_with(database, ScriptedModel(["Hello."], name=MODEL))
    async with serving(services) as client:
        tenant = await keys.tenant(f"test-{uuid4()}")
        async with client.get(f"/?token={await keys.create_link(tenant)}") as signed_in:
            assert signed_in.status in (200, 303)
        host = client.make_url("/").authority
        async with client.ws_connect(URL, headers={"Origin": f"http://{host}"}) as socket:
            await send(socket)
            await answer(socket)
        for headers in ({"Origin": "http://evil.example"}, {}):
            with pytest.raises(WSServerHandshakeError) as refused:
                await client.ws_connect(URL, headers=headers)
            assert refused.value.status == 403


async def test_a_revoked_key_closes_its_connections(database: Database) -> None:
    keys = Keys(database, SECRET)
    services = services_with(database, ScriptedModel(["Hello."], name=MODEL))
    async with serving(services) as client:
        tenant = await keys.tenant(f"test-{uuid4()}")
        id, key = await keys.create(tenant, "test")
        async with client.ws_connect(URL, headers={"Authorization": f"Bearer {key}"}) as socket:
            await keys.revoke(tenant, id)
            await services.authenticator.recheck()
            assert (await socket.receive(timeout=60)).data == WSCloseCode.POLICY_VIOLATION


async def test_a_request_by_a_key_that_does_not_count_any_more_closes_its_connection(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authenticator, "CACHE_S", 0.0)  # before the worker has found out by itself
    keys = Keys(database, SECRET)
    async with serving(services_with(database, ScriptedModel(["Hello."], name=MODEL))) as client:
        tenant = await keys.tenant(f"test-{uuid4()}")
        id, key = await keys.create(tenant, "test")
        async with client.ws_connect(URL, headers={"Authorization": f"Bearer {key}"}) as socket:
            await keys.revoke(tenant, id)
            await send(socket)
            assert (await refusal(socket))["code"] == "invalid_api_key"
            assert (await socket.receive(timeout=60)).data == WSCloseCode.POLICY_VIOLATION


def said(text: str) -> tuple[Item, ...]:
    return (Message("user", text),)


def test_a_connection_remembers_so_many_responses() -> None:
    kept = memory()
    for number in range(RESPONSES_MAX + 1):
        kept.put(f"resp_{number}", said("x"))
    assert kept.pop("resp_0") is None
    assert kept.pop("resp_1") is not None
    assert kept.pop("resp_1") is None, "what is taken is gone"


def test_a_connection_remembers_so_much_text() -> None:
    kept = memory()
    kept.put("resp_1", said("x" * (limits.TEXT_CHARS_MAX // 2)))
    kept.put("resp_2", said("x" * limits.TEXT_CHARS_MAX))
    assert kept.pop("resp_1") is None and kept.pop("resp_2") is not None
    kept.put("resp_3", said("x" * (limits.TEXT_CHARS_MAX + 1)))
    assert kept.pop("resp_3") is None


HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}
PING = b"\x89\x80\0\0\0\0"
FIRST, MORE, LAST = 0x01, 0x00, 0x80  # fragments of a message of text


def fragment(kind: int, data: bytes) -> bytes:
    """Masked with zeros, as clients mask."""
    return pack("!BBH", kind, 0x80 | 126, len(data)) + bytes(4) + data


@asynccontextmanager
async def frames(client: Client) -> AsyncIterator[Raw]:
    """A WebSocket on which a test writes frames."""
    async with raw(client) as connection:
        await connection.send(head("GET", URL, client, **HANDSHAKE))
        assert (await connection.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        yield connection


async def test_a_flood_of_pings_is_answered_between_other_work(client: Client) -> None:
    count = 40_000  # a quarter of a megabyte, as much as is read at once
    async with frames(client) as flooding, blocks() as held:
        await flooding.send(PING * count)
        await asyncio.wait_for(flooding.reader.readexactly(2 * count), 30)
    assert held.longest_ms < 150  # 380 when all that was read is passed on at once


async def test_a_large_message_in_many_fragments_is_answered(client: Client) -> None:
    message = orjson.dumps({"type": "response.create", "input": "hello", "metadata": {"a": "b"}})
    message += b" " * (4096 * 256 - len(message))
    parts = [message[at : at + 256] for at in range(0, len(message), 256)]
    async with frames(client) as connection, blocks() as held:
        await connection.send(fragment(FIRST, parts[0]) + b"".join(fragment(MORE, part) for part in parts[1:]))
        await connection.send(fragment(LAST, b" "))
        told = await asyncio.wait_for(connection.reader.readuntil(b"response.completed"), 30)
    assert b"Hello" in told and held.longest_ms < 150


async def test_fragments_without_an_end_come_to_an_end(database: Database) -> None:
    async with answering(database, "x", config=Config(body_bytes=20_000)) as client, frames(client) as endless:
        await endless.send(b"\x01\x81\0\0\0\0a" + b"\x00\x81\0\0\0\0a" * 30_000)
        assert (await endless.rest())[:1] == b"\x88"  # the close frame of a message that is too large
