"""Stopping an answer from elsewhere, reading what it was asked, and counting before asking."""

from __future__ import annotations

import pytest

from migrations.pool import Database
from tests.worker.answering import MODEL, StallingModel, answering, events_of, get, post
from tests.worker.sharing import colleagues, response_id_of

URL = "/v1/responses"
STREAM = {"input": "tell me", "stream": True}


def stalling() -> StallingModel:
    return StallingModel(["Half an answer, "], name=MODEL)


async def test_an_answer_is_stopped_from_another_tab(database: Database) -> None:
    model = stalling()
    async with answering(database, model=model) as client, client.post(URL, json=STREAM) as answer:
        beginning = await answer.content.readuntil(b"er,")
        id = response_id_of(beginning)
        stopped = await post(client, f"{URL}/{id}/cancel", {})
        events = events_of((beginning + await answer.read()).decode())
        assert await get(client, f"{URL}/{id}") == stopped
    assert model.running[0].stopped.is_set()
    assert stopped["status"] == "cancelled"
    assert stopped["output"][0]["content"][0]["text"].startswith("Half an answer,")
    assert not events[-1]["type"].startswith("response.completed")


async def test_an_answer_is_stopped_at_the_worker_that_makes_it(database: Database) -> None:
    model = stalling()
    async with colleagues(database, model) as (maker, other), maker.post(URL, json=STREAM) as answer:
        id = response_id_of(await answer.content.readuntil(b"er,"))
        stopped = await post(other, f"{URL}/{id}/cancel", {})
        await answer.read()
    assert (stopped["id"], stopped["status"]) == (id, "cancelled")
    assert model.running[0].stopped.is_set()


async def test_an_answer_that_nobody_keeps_is_stopped_as_well(database: Database) -> None:
    async with (
        answering(database, model=stalling()) as client,
        client.post(URL, json={**STREAM, "store": False}) as answer,
    ):
        id = response_id_of(await answer.content.readuntil(b"er,"))
        assert (await post(client, f"{URL}/{id}/cancel", {}))["status"] == "cancelled"


async def test_what_has_ended_stays_as_it_is(database: Database) -> None:
    async with answering(database, "Hello.") as client:
        response = await post(client, URL, {"input": "hello"})
        assert await post(client, f"{URL}/{response['id']}/cancel", {}) == response


async def test_deleting_an_answer_stops_it(database: Database) -> None:
    model = stalling()
    async with colleagues(database, model) as (maker, other), maker.post(URL, json=STREAM) as answer:
        id = response_id_of(await answer.content.readuntil(b"er,"))
        async with other.delete(f"{URL}/{id}") as deleted:
            assert deleted.status == 200
        assert model.running[0].stopped.is_set()
        await answer.read()
        await get(maker, f"{URL}/{id}", 404)


@pytest.mark.parametrize("cancelled", [True, False])
async def test_an_answer_whose_conversation_is_deleted_ends_without_a_word_in_the_log(
    database: Database, caplog: pytest.LogCaptureFixture, cancelled: bool
) -> None:
    model = stalling()
    async with answering(database, model=model) as client:
        conversation = (await post(client, "/v1/conversations", {}))["id"]
        async with client.post(URL, json={**STREAM, "conversation": conversation}) as answer:
            id = response_id_of(await answer.content.readuntil(b"er,"))
            await client.delete(f"/v1/conversations/{conversation}")
            if cancelled:
                await post(client, f"{URL}/{id}/cancel", {})
            else:
                model.running[0].released.set()
            await answer.read()
        response = await get(client, f"{URL}/{id}")
    assert response["status"] == ("cancelled" if cancelled else "failed")
    assert not caplog.records


async def test_a_stranger_stops_nothing(database: Database) -> None:
    model = stalling()
    async with (
        answering(database, model=model) as client,
        answering(database, "x") as stranger,
        client.post(URL, json=STREAM) as answer,
    ):
        id = response_id_of(await answer.content.readuntil(b"er,"))
        await post(stranger, f"{URL}/{id}/cancel", {}, 404)
        await get(stranger, f"{URL}/{id}/input_items", 404)
        assert not model.running[0].stopped.is_set()


async def test_the_items_of_a_request_are_read_in_pages(database: Database) -> None:
    items = [{"role": "user", "content": f"message {number}"} for number in range(5)]
    async with answering(database, "Hello.") as client:
        id = (await post(client, URL, {"input": items}))["id"]
        seen: list[str] = []
        after, more = "", True
        while more:
            page = await get(client, f"{URL}/{id}/input_items?order=asc&limit=2{after}")
            seen += [item["content"][0]["text"] for item in page["data"]]
            after, more = f"&after={page['last_id']}", page["has_more"]
        newest = (await get(client, f"{URL}/{id}/input_items?limit=1"))["data"]
        error = (await get(client, f"{URL}/{id}/input_items?after=msg_0", 400))["error"]
    assert seen == [f"message {number}" for number in range(5)]
    assert newest[0]["content"][0]["text"] == "message 4"
    assert error["param"] == "after"


async def test_tokens_are_counted_as_the_model_would_read_them(database: Database) -> None:
    async with answering(database, "Hello.") as client:
        body = {"input": "how long am I", "instructions": "Count.", "tools": [{"type": "firsttoken:double"}]}
        counted = await post(client, f"{URL}/input_tokens", body)
        used = (await post(client, URL, body))["usage"]["input_tokens"]
    assert counted == {"object": "response.input_tokens", "input_tokens": used}


@pytest.mark.parametrize("path", [f"{URL}/input_tokens", "/v1/conversations", "/v1/conversations/warm"])
async def test_every_route_names_what_it_ignores(database: Database, path: str) -> None:
    part = {"type": "input_text", "text": "Hello", "cache_control": {"type": "ephemeral"}}
    key = "items" if path == "/v1/conversations" else "input"
    said = {key: [{"role": "user", "content": [part]}]}
    async with answering(database, "Hello.") as client, client.post(path, json=said) as answer:
        assert answer.ok, await answer.text()
        assert answer.headers["X-Firsttoken-Ignored"] == "cache_control"


@pytest.mark.parametrize("path", ["resp_0/cancel", "resp_0/input_items"])
async def test_what_does_not_exist_is_a_404(database: Database, path: str) -> None:
    async with (
        answering(database, "Hello.") as client,
        client.request("POST" if path.endswith("cancel") else "GET", f"{URL}/{path}") as answer,
    ):
        assert answer.status == 404
