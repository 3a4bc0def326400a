"""A stored answer can be read again and again, from any event and at any worker, also while it is being made."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from migrations.pool import Database
from tests.worker.answering import (
    answering,
    events_of,
    get,
    post,
    services_with,
    stalling,
    stream,
)
from tests.worker.harness import Client
from tests.worker.reader import Reader
from tests.worker.sharing import colleagues, response_id_of, signed_in
from worker.runs import manager
from worker.runs.disconnect import Disconnect, Readers

URL = "/v1/responses"
LAST_PIECE = b'"t."'
STREAM = {"input": "tell me", "stream": True}


async def read(client: Client, id: str, query: str = "") -> list[dict[str, Any]]:
    async with client.get(f"{URL}/{id}?stream=true{query}") as answer:
        text = await answer.text()
        assert answer.status == 200, text
    return [dict(event) for event in events_of(text)]


async def test_an_answer_that_is_over_is_told_again_from_any_event(database: Database) -> None:
    async with answering(database, "Hello there, friend.") as client:
        told = await stream(client, URL, {"input": "hello"})
        id = told[-1]["response"]["id"]
        assert await read(client, id) == told
        for number in (0, 3, len(told) - 2, len(told) - 1):
            assert await read(client, id, f"&starting_after={number}") == told[number + 1 :]


async def test_a_whole_answer_can_be_read_as_a_stream(database: Database) -> None:
    async with answering(database, "Hello there, friend.") as client:
        response = await post(client, URL, {"input": "hello"})
        reader = Reader.read(await read(client, response["id"]))
    assert reader.final == response


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_every_reader_gets_everything(database: Database, elsewhere: bool) -> None:
    """One from its beginning, one from where it lost the connection; at the worker that makes it and at another."""
    model = stalling()
    async with colleagues(database, model) as (maker, other), maker.post(URL, json=STREAM) as answer:
        beginning = await answer.content.readuntil(LAST_PIECE)
        id = response_id_of(beginning)
        client = other if elsewhere else maker
        readers = [asyncio.create_task(read(client, id, query)) for query in ("", "&starting_after=4")]
        async with client.get(f"{URL}/{id}?stream=true") as first:
            await first.content.readuntil(LAST_PIECE)  # live: the answer is not over yet
        assert not any(reader.done() for reader in readers)
        model.running[0].released.set()
        told = events_of((beginning + await answer.read()).decode())
        assert await asyncio.gather(*readers) == [told, told[5:]]
    assert Reader.read(told).texts == {0: "Half an answer, and the rest."}


async def test_an_answer_whose_worker_is_gone_ends_as_failed_for_every_reader(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "PASS_EVERY_S", 0.05)
    model = stalling()
    lost, heir = services_with(database, model), services_with(database, model)
    async with signed_in(database, heir) as client, signed_in(database, lost) as maker:
        maker.session.headers["Authorization"] = client.session.headers["Authorization"]
        conversation = (await post(client, "/v1/conversations", {}))["id"]
        async with maker.post(URL, json={**STREAM, "conversation": conversation}) as answer:
            id = response_id_of(await answer.content.readuntil(LAST_PIECE))
            async with client.get(f"{URL}/{id}?stream=true") as reading:
                beginning = await reading.content.readuntil(LAST_PIECE)
                await lost.presence.close()  # all that other workers see of a worker's death
                told = events_of((beginning + await reading.read()).decode())
        response = await get(client, f"{URL}/{id}")
        items = (await get(client, f"/v1/conversations/{conversation}/items?order=asc"))["data"]
        assert await read(client, id) == told
    assert told[-1]["type"] == "response.failed"
    assert told[-1]["response"] == response
    assert response["error"]["code"] == "server_error"
    assert [item["content"][0]["text"] for item in items] == ["tell me", "Half an answer, and the rest."]


async def test_an_answer_goes_on_without_readers_when_asked_to(database: Database) -> None:
    model = stalling()
    async with answering(database, model=model) as client:
        headers = {"X-Firsttoken-On-Disconnect": "continue"}
        async with client.post(URL, json=STREAM, headers=headers) as answer:
            id = response_id_of(await answer.content.readuntil(LAST_PIECE))
        answer.close()
        model.running[0].released.set()
        assert (await read(client, id))[-1]["type"] == "response.completed"


async def test_a_reader_who_comes_back_in_time_finds_the_answer_going_on(database: Database) -> None:
    model = stalling()
    async with answering(database, model=model) as client:
        assert client.app is not None
        async with client.post(URL, json=STREAM, headers={"x-firsttoken-on-disconnect": "60"}) as answer:
            id = response_id_of(await answer.content.readuntil(LAST_PIECE))
        answer.close()
        readers = client.app[manager.RUNS]._runs[id].readers
        async with client.get(f"{URL}/{id}?stream=true") as again:
            await again.content.readuntil(LAST_PIECE)
            readers.policy = Disconnect(0.05)
        again.close()
        await model.running[0].stopped.wait()  # it did not come back a second time


async def test_a_reader_who_comes_back_has_all_of_the_time_when_it_leaves_again() -> None:
    readers, loop = Readers(lambda: None), asyncio.get_running_loop()
    readers.policy = Disconnect(60.0)
    with readers.reading():
        pass
    before = readers._unread
    with readers.reading():
        assert before is not None and before.cancelled()
        left_at = loop.time()
    assert readers._unread is not None and readers._unread.when() >= left_at + 60
    readers.close()


@pytest.mark.parametrize("policy", ["later", "-1", "601", "inf", "", "0" * 20 + "5", "9" * 5000])
async def test_a_policy_that_does_not_exist_is_refused(database: Database, policy: str) -> None:
    async with (
        answering(database, "x") as client,
        client.post(URL, json={"input": "x"}, headers={"X-Firsttoken-On-Disconnect": policy}) as answer,
    ):
        assert answer.status == 400


async def test_events_are_kept_for_a_time_and_the_answer_for_longer(database: Database) -> None:
    async with answering(database, "Hello.") as client:
        id = (await stream(client, URL, {"input": "hello"}))[-1]["response"]["id"]
        await read(client, id)
        await services_with(database, stalling()).running.forget(0.0)
        error = (await get(client, f"{URL}/{id}?stream=true", 404))["error"]
        assert error["code"] == "events_expired"
        assert (await get(client, f"{URL}/{id}"))["status"] == "completed"


async def test_an_answer_in_the_making_is_no_ground_for_another(database: Database) -> None:
    async with answering(database, model=stalling()) as client, client.post(URL, json=STREAM) as answer:
        id = response_id_of(await answer.content.readuntil(LAST_PIECE))
        error = (await post(client, URL, {"input": "and?", "previous_response_id": id}, 400))["error"]
    assert error["param"] == "previous_response_id"


@pytest.mark.parametrize("number", ["x", "-1", "1.5", "9" * 30])
async def test_a_number_that_is_none_is_refused(database: Database, number: str) -> None:
    async with answering(database, "Hello.") as client:
        error = (await get(client, f"{URL}/resp_0?stream=true&starting_after={number}", 400))["error"]
        assert error["param"] == "starting_after"
        await get(client, f"{URL}/resp_0?stream=true", 404)
