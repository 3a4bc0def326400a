"""Responses that are made without their caller: queued, begun by any worker once, and followed from anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from agents.definition import USUAL
from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import (
    MODEL,
    StallingModel,
    answering,
    events_of,
    get,
    post,
    replay,
    services_with,
    stalling,
)
from tests.worker.harness import SECRET, Client, serving
from tests.worker.reader import Reader
from tests.worker.sharing import colleagues, response_id_of, signed_in
from worker.auth.keys import Keys
from worker.auth.principal import Principal
from worker.config import Config
from worker.runs import manager, queue_store
from worker.runs.manager import RUNS, Runs
from worker.runs.queue_store import QueueStore
from worker.runs.run import Run
from worker.runs.running_store import OwnedResponse
from worker.wire.response import Dialect
from worker.wire.response_request import ResponseRequest

URL = "/v1/responses"
BODY = {"input": "tell me", "background": True}
LAST_PIECE = b'"t."'
NOBODY_TAKES = Config(background=0)
AT_ONCE = ["response.created", "response.queued"]


@pytest.fixture(autouse=True)
async def empty_queue(owner_dsn: str) -> AsyncIterator[None]:
    """Workers of other tests would take what is left."""
    yield
    connection = await asyncpg.connect(owner_dsn)
    await connection.execute("delete from responses where status = 'queued'")
    await connection.close()


async def ended(client: Client, id: str) -> dict[str, Any]:
    await replay(client, id)
    return dict(await get(client, f"{URL}/{id}"))


async def test_an_answer_is_promised_at_once_and_made_without_its_caller(database: Database) -> None:
    async with answering(database, "Hello there, friend.") as client:
        promised = await post(client, URL, BODY)
        assert (promised["status"], promised["background"], promised["output"]) == ("queued", True, [])
        told = await replay(client, promised["id"])
        response = await get(client, f"{URL}/{promised['id']}")
        assert Reader.read(told).final == response
        assert await replay(client, promised["id"], "&starting_after=3") == told[4:]
    assert [event["type"] for event in told[:3]] == [*AT_ONCE, "response.in_progress"]
    assert [event["response"]["status"] for event in told[:3]] == ["queued", "queued", "in_progress"]
    assert response["output"][0]["content"][0]["text"] == "Hello there, friend."


async def test_a_streamed_one_goes_on_when_its_caller_leaves(database: Database) -> None:
    model = stalling()
    async with answering(database, model=model) as client:
        async with client.post(URL, json={**BODY, "stream": True}) as answer:
            beginning = await answer.content.readuntil(LAST_PIECE)
        answer.close()
        id = response_id_of(beginning)
        assert (await get(client, f"{URL}/{id}"))["status"] == "in_progress"
        model.running[0].released.set()
        assert (await ended(client, id))["status"] == "completed"


async def test_one_whose_beginning_could_not_be_stored_at_once_is_told_while_it_is_made(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is stored that it cannot be begun again, nothing of it is told."""
    model, settle, failures = stalling(), QueueStore.settle, [ConnectionResetError()]

    async def settle_at_the_second_attempt(store: QueueStore, taken: OwnedResponse) -> None:
        if failures:
            raise failures.pop()
        await settle(store, taken)

    monkeypatch.setattr(QueueStore, "settle", settle_at_the_second_attempt)
    async with (
        answering(database, model=model) as client,
        client.post(URL, json={**BODY, "stream": True}) as answer,
    ):
        begun = await answer.content.readuntil(LAST_PIECE)  # the model still waits
        model.running[0].released.set()
        told = events_of((begun + await answer.read()).decode())
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert told[-1]["type"] == "response.completed"


async def test_it_is_followed_at_any_worker_while_it_is_made(database: Database) -> None:
    model = stalling()
    async with colleagues(database, model) as workers:
        id = (await post(workers[0], URL, BODY))["id"]
        readers = [asyncio.create_task(replay(client, id)) for client in workers]
        await model.started.wait()
        model.running[0].released.set()
        first, second = await asyncio.gather(*readers)
    assert first == second
    assert len(model.running) == 1  # made once


async def test_it_continues_its_conversation_as_that_stands_when_it_is_begun(database: Database) -> None:
    async with answering(database, "First.", "Second.") as client:
        conversation = (await post(client, "/v1/conversations", {}))["id"]
        body = {**BODY, "conversation": conversation}
        ids = [(await post(client, URL, body))["id"]]
        assert (await ended(client, ids[0]))["status"] == "completed"
        ids.append((await post(client, URL, {**body, "input": "and?", "metadata": {"k": "v"}}))["id"])
        assert (await ended(client, ids[1]))["metadata"] == {"k": "v"}
        items = (await get(client, f"/v1/conversations/{conversation}/items?order=asc"))["data"]
        asked = (await get(client, f"{URL}/{ids[1]}/input_items"))["data"]
    assert [item["content"][0]["text"] for item in items] == ["tell me", "First.", "and?", "Second."]
    assert asked == [items[2]]


async def test_what_waits_is_read_cancelled_and_deleted(database: Database) -> None:
    async with answering(database, "Never said.", config=NOBODY_TAKES) as client:
        ids = [(await post(client, URL, BODY))["id"] for _ in range(2)]
        assert (await get(client, f"{URL}/{ids[0]}"))["status"] == "queued"
        assert (await post(client, f"{URL}/{ids[0]}/cancel", {}))["status"] == "cancelled"
        assert [event["type"] for event in await replay(client, ids[0])] == AT_ONCE
        assert (await post(client, f"{URL}/{ids[0]}/cancel", {}))["status"] == "cancelled"
        async with client.delete(f"{URL}/{ids[1]}") as deleted:
            assert deleted.status == 200
        await get(client, f"{URL}/{ids[1]}", 404)


async def test_what_runs_is_cancelled_from_another_worker(database: Database) -> None:
    model = stalling()
    async with answering(database, model=model, config=NOBODY_TAKES) as asker:
        id = (await post(asker, URL, BODY))["id"]
        async with serving(services_with(database, model)):
            await model.started.wait()
            stopped = await post(asker, f"{URL}/{id}/cancel", {})
        assert await get(asker, f"{URL}/{id}") == stopped
    assert stopped["status"] == "cancelled"
    assert model.running[0].stopped.is_set()


async def test_what_is_cancelled_just_when_it_is_taken_is_not_begun_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, stopped = Run.start, list[str]()

    async def start_and_stop(run: Run, held: ExitStack) -> None:
        if not stopped:
            stopped.append(run.id)
            asyncio.get_running_loop().call_soon(run.cancel)  # before the first line of its task
        await start(run, held)

    monkeypatch.setattr(manager, "PASS_EVERY_S", 0.02)
    monkeypatch.setattr(Run, "start", start_and_stop)
    model = ScriptedModel(["Never said."], name=MODEL)
    async with answering(database, model=model) as client:
        id = (await post(client, URL, BODY))["id"]
        assert [event["type"] for event in await replay(client, id)] == AT_ONCE
        assert (await get(client, f"{URL}/{id}"))["status"] == "cancelled"
        assert (await get(client, f"/ops/api/traces/{id}"))["status"] == "cancelled"
    assert not model.prompts and stopped == [id]


async def test_what_is_begun_just_when_its_worker_stops_is_left_to_another_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, opening = Run.open, asyncio.Event()

    async def stand_still(run: Run) -> None:
        opening.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(manager, "PASS_EVERY_S", 0.02)
    monkeypatch.setattr(Run, "open", stand_still)
    async with answering(database, "Hello there, friend.") as client:
        id = (await post(client, URL, BODY))["id"]
        await opening.wait()
        await client.app[RUNS].backlog.close()
        assert (await get(client, f"{URL}/{id}"))["status"] == "queued"
        monkeypatch.setattr(Run, "open", accept)
        async with serving(services_with(database, ScriptedModel(["Hello again."], name=MODEL))):
            await client.app[RUNS].close()
            assert (await ended(client, id))["output"][0]["content"][0]["text"] == "Hello again."


async def test_what_was_cancelled_is_not_left_to_another_worker(database: Database) -> None:
    """Its worker is asked to stop in the same moment."""
    model = stalling()
    async with answering(database, model=model, config=Config(background=1)) as client:
        async with client.post(URL, json={**BODY, "stream": True}) as answer:
            id = response_id_of(await answer.content.readuntil(LAST_PIECE))
            [run] = client.app[RUNS]._runs.values()
            run.cancel()
            run.leave()
            await answer.read()
        assert (await get(client, f"{URL}/{id}"))["status"] == "cancelled"


async def test_a_caller_who_leaves_while_it_is_queued_leaves_one_that_is_queued(
    database: Database, tenant_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What becomes of the key of its request depends on that."""
    add, adding, goes_on = QueueStore.add, asyncio.Event(), asyncio.Event()

    async def add_slowly(store: QueueStore, *queued: Any, tell: bool) -> None:
        adding.set()
        await goes_on.wait()
        await add(store, *queued, tell=tell)

    monkeypatch.setattr(QueueStore, "add", add_slowly)
    services = services_with(database, stalling(), NOBODY_TAKES)
    asker, body = Principal(tenant_id, "key_1", frozenset(), "api_key"), ResponseRequest.model_validate(BODY)
    backlog = Runs(services, background=0).backlog
    asking = asyncio.create_task(backlog.enqueue(asker, body, Dialect.OPENAI, "resp_1"))
    await adding.wait()
    asking.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not asking.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (await services.responses.get(tenant_id, "resp_1")).body["status"] == "queued"


async def test_a_waiting_one_is_no_ground_for_another(database: Database) -> None:
    async with answering(database, "x", config=NOBODY_TAKES) as client:
        id = (await post(client, URL, BODY))["id"]
        error = (await post(client, URL, {"input": "and?", "previous_response_id": id}, 400))["error"]
    assert error["param"] == "previous_response_id"


async def test_a_tenant_queues_only_so_many(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_store, "TENANT_QUEUED_MAX", 2)
    async with (
        answering(database, "x", config=NOBODY_TAKES) as client,
        answering(database, "x", config=NOBODY_TAKES) as another,
    ):
        first = (await post(client, URL, BODY))["id"]
        await post(client, URL, BODY)
        error = (await post(client, URL, BODY, 429))["error"]
        await post(another, URL, BODY)
        await post(client, f"{URL}/{first}/cancel", {})
        await post(client, URL, BODY)
    assert error["code"] == "rate_limit_exceeded"


async def test_urgent_ones_are_begun_first(database: Database) -> None:
    model = ScriptedModel(["Done."], name=MODEL)
    async with answering(database, model=model, config=NOBODY_TAKES) as client:
        bodies = [{**BODY, "input": tier, "service_tier": tier} for tier in ("flex", "default", "priority")]
        ids = [(await post(client, URL, body))["id"] for body in bodies]
        async with serving(services_with(database, model, Config(background=1))):
            for id in ids:
                await ended(client, id)
    assert [prompt.split("\n")[-2] for prompt in model.prompts] == ["<user>priority", "<user>default", "<user>flex"]


async def test_what_a_surface_holds_to_the_lowest_class_is_begun_last(database: Database) -> None:
    model = ScriptedModel(["Done."], name=MODEL)
    services = replace(services_with(database, model, NOBODY_TAKES), surfaces=USUAL)
    async with signed_in(database, services) as client:
        ids = []
        for surface in ("batch", "voice"):
            body, headers = {**BODY, "input": surface}, {"X-Firsttoken-Surface": surface}
            async with client.post(URL, json=body, headers=headers) as answer:
                ids.append((await answer.json())["id"])
        async with serving(services_with(database, model, Config(background=1))):
            for id in ids:
                await ended(client, id)
    assert [prompt.split("\n")[-2] for prompt in model.prompts] == ["<user>voice", "<user>batch"]


async def test_a_key_that_was_revoked_meanwhile_gets_nothing(database: Database) -> None:
    keys, name = Keys(database, SECRET), f"test-{uuid4()}"
    model = stalling()
    async with serving(services_with(database, model, NOBODY_TAKES)) as client:
        tenant_id = await keys.tenant(name)
        (revoked, key), (_, valid) = [await keys.create(tenant_id, "test") for _ in range(2)]
        client.session.headers["Authorization"] = f"Bearer {key}"
        id = (await post(client, URL, BODY))["id"]
        await keys.revoke(tenant_id, revoked)
        client.session.headers["Authorization"] = f"Bearer {valid}"
        async with serving(services_with(database, model)):
            response = await ended(client, id)
    assert (response["status"], response["error"]["code"]) == ("failed", "invalid_api_key")
    assert model.running == []


async def test_what_refuses_a_turn_refuses_it_at_once_or_is_told_as_its_end(database: Database) -> None:
    async with answering(database, "x") as client:
        assert (await post(client, URL, {"background": True}, 400))["error"]["param"] == "input"
        assert (await post(client, URL, {**BODY, "store": False}, 400))["error"]["param"] == "store"
        await post(client, URL, {**BODY, "previous_response_id": "resp_0"}, 404)
        await post(client, URL, {**BODY, "conversation": "conv_0"}, 404)
        await post(client, URL, {**BODY, "model": "gpt-9"}, 404)
        long = (await post(client, URL, {**BODY, "input": "word " * 50_000}))["id"]
        told = await replay(client, long)
        response = await get(client, f"{URL}/{long}")
    assert response["error"]["code"] == "context_length_exceeded"
    assert told[-1]["type"] == "response.failed"
    assert told[-1]["response"] == response


async def test_another_worker_begins_what_a_dead_one_had_said_nothing_of(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "PASS_EVERY_S", 0.05)
    silent, model = StallingModel([""], name=MODEL), stalling()
    lost, heir = services_with(database, silent), services_with(database, model)
    async with signed_in(database, lost) as client:
        id = (await post(client, URL, BODY))["id"]
        await silent.started.wait()
        async with serving(heir) as other:
            other.session.headers["Authorization"] = client.session.headers["Authorization"]
            reading = asyncio.create_task(replay(other, id))
            await lost.presence.close()  # all that other workers see of a worker's death
            await model.started.wait()
            model.running[0].released.set()
            told = await reading
    assert Reader.read(told).texts == {0: "Half an answer, and the rest."}


async def test_what_a_dead_worker_had_begun_to_say_is_not_said_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "PASS_EVERY_S", 0.05)
    model, unused = stalling(), ScriptedModel(["Said again."], name=MODEL)
    lost, heir = services_with(database, model), services_with(database, unused)
    async with signed_in(database, lost) as client, client.post(URL, json={**BODY, "stream": True}) as answer:
        id = response_id_of(await answer.content.readuntil(LAST_PIECE))
        async with serving(heir) as other:
            other.session.headers["Authorization"] = client.session.headers["Authorization"]
            async with other.get(f"{URL}/{id}?stream=true") as reading:
                beginning = await reading.content.readuntil(LAST_PIECE)
                await lost.presence.close()  # all that other workers see of a worker's death
                told = events_of((beginning + await reading.read()).decode())
    assert told[-1]["type"] == "response.failed"
    assert told[-1]["response"]["output"][0]["content"][0]["text"] == "Half an answer, and the rest."
    assert unused.prompts == []


async def test_what_took_too_many_workers_along_is_given_up(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "PASS_EVERY_S", 0.05)
    monkeypatch.setattr(queue_store, "ATTEMPTS_MAX", 2)
    async with answering(database, "x", config=NOBODY_TAKES) as client:
        id = (await post(client, URL, BODY))["id"]
        for _ in range(2):
            silent = StallingModel([""], name=MODEL)
            services = services_with(database, silent)
            async with serving(services):
                await silent.started.wait()
        assert (await ended(client, id))["error"]["code"] == "server_error"


async def test_a_worker_that_is_told_to_stop_leaves_what_it_has_not_begun(database: Database) -> None:
    silent = StallingModel([""], name=MODEL)
    async with answering(database, "Said later.", config=NOBODY_TAKES) as client:
        id = (await post(client, URL, BODY))["id"]
        async with serving(services_with(database, silent)):
            await silent.started.wait()
        assert silent.running[0].stopped.is_set()
        assert (await get(client, f"{URL}/{id}"))["status"] != "cancelled"
