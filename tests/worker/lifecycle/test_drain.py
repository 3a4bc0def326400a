"""A worker that stops: it takes nothing new, lets answers finish, and ends the rest with a word to its client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import orjson
import pytest
from aiohttp import ClientResponse, WSCloseCode, WSMsgType, web

from migrations.pool import Database
from tests.worker.answering import StallingModel, answering, events_of, get, post
from tests.worker.harness import Client
from tests.worker.reader import Reader
from worker.lifecycle.drain import drain
from worker.runs.running_store import OwnedResponse
from worker.services import CHECKERS, SERVICES

STREAMED = {"input": "hello", "stream": True}
CHAT = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
SOON_S = 30.0  # before the time to drain is over, which is 60 s where something might wait for it


class Stopping:
    """A worker whose answers stand still after their first words, and what stops it."""

    def __init__(self, client: Client, model: StallingModel) -> None:
        assert client.app is not None
        self.client = client
        self.model = model
        self.app: web.Application = client.app
        self.hurried = asyncio.Event()
        self.now_s = 0.0
        self.app[CHECKERS]._clock = lambda: self.now_s

    def begin(self, drain_s: float) -> asyncio.Task[None]:
        return asyncio.create_task(drain(self.app, drain_s, self.hurried))

    async def stop(self, drain_s: float = 0.0) -> None:
        await asyncio.wait_for(self.begin(drain_s), SOON_S)

    @asynccontextmanager
    async def speaking(
        self, path: str, body: dict[str, Any], said: bytes = b'"delta":'
    ) -> AsyncIterator[ClientResponse]:
        """An answer whose first words are there."""
        async with self.client.post(path, json=body) as answer:
            while said not in await answer.content.readline():
                pass
            yield answer

    async def stored(self, id: str) -> dict[str, Any]:
        """A response, as another worker tells it."""
        async with self.client.get("/v1/models") as models:
            assert models.status == 503  # this one does not
        return (await self.app[SERVICES].responses.get(await self.tenant_id(), id)).body

    async def forget(self, id: str) -> None:
        """A response of the queue, which a worker of another test would make otherwise."""
        services, tenant_id = self.app[SERVICES], await self.tenant_id()
        if not await services.queue.cancel(tenant_id, id):
            await services.queue.fail(
                OwnedResponse(tenant_id, id, services.presence.worker), {"message": "It is over."}
            )
        assert (await self.stored(id))["status"] in ("cancelled", "failed")

    async def tenant_id(self) -> UUID:
        principal = await self.app[SERVICES].authenticator.identify(self.client.session.headers, {}, "GET", TRACE)
        assert principal is not None
        return principal.tenant_id


TRACE: Any = None  # of a key that is known already


@pytest.fixture
async def stopping(database: Database) -> AsyncIterator[Stopping]:
    model = StallingModel(["Hello there."], name="scripted")
    async with answering(database, model=model) as client:
        yield Stopping(client, model)


async def test_newcomers_are_told_to_go_elsewhere(stopping: Stopping) -> None:
    async with stopping.speaking("/v1/responses", STREAMED):
        draining = stopping.begin(60)
        await asyncio.sleep(0)
        async with stopping.client.post("/v1/responses", json={"input": "hello"}) as refused:
            assert (refused.status, refused.headers["Retry-After"], refused.headers["Connection"]) == (
                503,
                "1",
                "close",
            )
            error = (await refused.json())["error"]
            assert error["type"] == "server_error" and "accepts no new requests" in error["message"]
        ready = await get(stopping.client, "/readyz", 503)
        assert ready["parts"]["worker"] == "draining"
        await get(stopping.client, "/healthz")
        assert not draining.done()
        stopping.hurried.set()
        await draining


async def test_answers_finish_first(stopping: Stopping) -> None:
    async with stopping.speaking("/v1/responses", STREAMED) as answer:
        draining = stopping.begin(60)
        stopping.model.running[0].released.set()
        rest = await answer.text()
        await asyncio.wait_for(draining, SOON_S)
    assert "event: response.completed" in rest and rest.endswith("data: [DONE]\n\n")


async def test_a_worker_without_requests_stops_at_once(stopping: Stopping) -> None:
    await asyncio.wait_for(stopping.begin(60), SOON_S)


async def look(stopping: Stopping, count: int, status: int = 200) -> None:
    """As a balancer does, at regular times of a clock that only this moves."""
    for _ in range(count):
        await get(stopping.client, "/readyz", status)
        stopping.now_s += 2


async def test_a_worker_stays_until_its_balancer_has_seen_that_it_stops(stopping: Stopping) -> None:
    await look(stopping, 4)
    draining = stopping.begin(60)
    await asyncio.sleep(0)
    await look(stopping, 2, 503)
    await get(stopping.client, "/v1/models", 503)
    assert not draining.done()
    await look(stopping, 1, 503)
    await asyncio.wait_for(draining, SOON_S)


async def test_a_worker_in_a_hurry_waits_for_no_balancer(stopping: Stopping) -> None:
    await look(stopping, 4)
    draining = stopping.begin(60)
    stopping.hurried.set()
    await asyncio.wait_for(draining, SOON_S)


async def test_a_worker_waits_a_few_seconds_for_a_balancer_that_does_not_look_again(
    stopping: Stopping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.lifecycle.drain.AWARE_S", 0.3)
    await look(stopping, 4)
    draining = stopping.begin(60)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(draining), 0.2)
    await asyncio.wait_for(draining, SOON_S)


@pytest.mark.parametrize("hurry", [False, True])
async def test_a_response_that_does_not_finish_in_time_ends_as_failed(stopping: Stopping, hurry: bool) -> None:
    async with stopping.client.post("/v1/responses", json=STREAMED) as answer:
        await stopping.model.started.wait()
        if hurry:
            stopping.hurried.set()
        await stopping.stop(60 if hurry else 0.1)
        events = events_of(await answer.text())
    final = Reader.read(events).final
    assert final is not None
    assert (final["status"], final["error"]["code"]) == ("failed", "server_error")
    assert "stopped" in final["error"]["message"]
    assert await stopping.stored(final["id"]) == final


async def test_what_was_said_is_kept(stopping: Stopping) -> None:
    async with stopping.speaking("/v1/responses", STREAMED) as answer:
        await stopping.stop()
        rest = await answer.text()
    assert rest.endswith("data: [DONE]\n\n")
    last = orjson.loads(rest.split("data: ")[-2].split("\n")[0])
    [message] = (await stopping.stored(last["response"]["id"]))["output"]
    assert (message["status"], message["content"][0]["text"]) == ("incomplete", "Hello there.")


async def test_a_whole_answer_that_does_not_finish_in_time_is_refused(stopping: Stopping) -> None:
    for path, body in (("/v1/responses", {"input": "x"}), ("/v1/chat/completions", {**CHAT, "stream": False})):
        asked = asyncio.create_task(_status(stopping.client, path, body))
        await stopping.model.started.wait()
        stopping.model.started.clear()
        if path == "/v1/responses":
            first = asked
    await stopping.stop()
    assert (await asked)[0] == 503
    status, response = await first
    assert (status, response["status"]) == (200, "failed")


async def _status(client: Client, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    async with client.post(path, json=body) as answer:
        return answer.status, await answer.json()


async def test_a_completion_that_does_not_finish_in_time_ends_with_an_error(stopping: Stopping) -> None:
    async with stopping.speaking("/v1/chat/completions", {**CHAT, "n": 2}) as answer:
        await stopping.stop()
        rest = await answer.text()
    blocks = rest.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    errors = [orjson.loads(block.removeprefix("data: "))["error"] for block in blocks if '"error"' in block]
    assert [error["code"] for error in errors] == ["server_error"] * 2


async def test_a_websocket_is_told_the_end_and_closed(stopping: Stopping) -> None:
    async with stopping.client.ws_connect("/v1/responses") as socket:
        await socket.send_json({"type": "response.create", "input": "hello"})
        await stopping.model.started.wait()
        draining = stopping.begin(0.1)
        while (message := await socket.receive(timeout=60)).type is WSMsgType.TEXT:
            last = orjson.loads(message.data)
        assert last["type"] == "response.failed"
        assert message.data == WSCloseCode.GOING_AWAY
        await asyncio.wait_for(draining, SOON_S)


async def test_a_response_of_the_queue_that_was_not_told_is_left_for_another_worker(stopping: Stopping) -> None:
    stopping.model.replies = [""]
    queued = await post(stopping.client, "/v1/responses", {"input": "hello", "background": True})
    await stopping.model.started.wait()
    await stopping.stop()
    assert (await stopping.stored(queued["id"]))["status"] in ("queued", "in_progress")
    await stopping.forget(queued["id"])


async def test_a_request_that_has_not_arrived_does_not_keep_the_worker(stopping: Stopping) -> None:
    async def half() -> AsyncIterator[bytes]:
        yield b'{"input": '
        await asyncio.sleep(60)

    sending = asyncio.create_task(_status_of(stopping.client, half()))
    await asyncio.sleep(0.1)
    await stopping.stop(0.1)
    assert await sending == 503


async def _status_of(client: Client, data: AsyncIterator[bytes]) -> int:
    async with client.post("/v1/responses", data=data) as answer:
        return answer.status
