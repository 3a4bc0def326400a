"""A request that is repeated with its Idempotency-Key never starts a second generation, unless the platform failed the
first one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

import aiohttp
import orjson
import pytest

from agents.errors import STOPPED
from inference.errors import InferenceError
from inference.generation import ANY_TERMS, Delta, Sampling, Terms
from migrations.pool import Database
from tests.scripted import ScriptedGeneration, ScriptedModel
from tests.worker.answering import MODEL, StallingModel, answering, events_of, get, post, services_with, stalling
from tests.worker.harness import Client
from tests.worker.sharing import colleagues, response_id_of, signed_in
from worker.routes import responses
from worker.runs import manager
from worker.runs.idempotency import Claim
from worker.runs.run import Run

URL, CHAT = "/v1/responses", "/v1/chat/completions"
BODY = {"input": "tell me"}
UNSTORED: list[tuple[str, dict[str, Any]]] = [
    (URL, {**BODY, "store": False}),
    (CHAT, {"messages": [{"role": "user", "content": "x"}]}),
]
LAST_PIECE = b'"t."'
CONVERSATIONS = "/v1/conversations"
SAID = [{"type": "message", "role": "user", "content": "Hello."}]


class FailingGeneration(ScriptedGeneration):
    async def __aiter__(self) -> AsyncIterator[Delta]:
        async for delta in super().__aiter__():
            yield delta
            raise InferenceError("scripted failure")


class Failing(ScriptedModel):
    def generate(self, prompt: Sequence[int], sampling: Sampling, terms: Terms = ANY_TERMS) -> ScriptedGeneration:
        return FailingGeneration("Hm, no.", len(prompt), sampling, self.piece_chars)


def key() -> dict[str, str]:
    return {"Idempotency-Key": f"key-{uuid4()}"}


def key_of(client: Client) -> str:
    return client.session.headers["Authorization"].partition(" ")[2]


async def ask(
    client: Client, headers: dict[str, str], body: dict[str, Any], status: int = 200, path: str = URL
) -> dict[str, Any]:
    async with client.post(path, json=body, headers=headers) as answer:
        content: dict[str, Any] = await answer.json()
        assert answer.status == status, content
    return content


async def test_the_second_request_gets_the_first_ones_answer(database: Database) -> None:
    async with answering(database, "First.", "Second.") as client:
        headers = key()
        first = await ask(client, headers, BODY)
        assert await ask(client, headers, BODY) == first
        async with client.post(URL, data=b'{ "input": "tell me" }', headers=headers) as same:
            assert await same.json() == first
        assert (await ask(client, key(), BODY))["id"] != first["id"]


async def test_the_time_that_a_key_takes_is_part_of_the_trace(database: Database) -> None:
    body = {**BODY, "stream": True, "include": ["firsttoken:trace"]}
    async with answering(database, "First.") as client, client.post(URL, json=body, headers=key()) as answer:
        [told] = [event for event in events_of(await answer.text()) if event["type"] == "firsttoken:trace"]
    spans = [span for span in told["trace"]["spans"] if span["lane"] == "main" and span["parent"] is None]
    assert [span["name"] for span in sorted(spans, key=lambda span: span["start_ms"])][:4] == [
        "edge",
        "auth",
        "edge",
        "edge",
    ]


async def test_a_stream_is_told_again_from_its_beginning(database: Database) -> None:
    async with answering(database, "First.", "Second.") as client:
        headers, told = key(), []
        for _ in range(2):
            async with client.post(URL, json={**BODY, "stream": True}, headers=headers) as answer:
                told.append(events_of(await answer.text()))
    assert told[0] == told[1]


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("elsewhere", [True, False])
async def test_a_repetition_waits_for_the_answer_in_the_making(
    database: Database, streamed: bool, elsewhere: bool
) -> None:
    model, headers, body = stalling(), key(), {**BODY, "stream": streamed}

    async def read(client: Client) -> str:
        async with client.post(URL, json=body, headers=headers) as answer:
            assert answer.status == 200
            return await answer.text()

    async with colleagues(database, model) as (maker, other):
        first = asyncio.create_task(read(maker))
        await model.started.wait()
        second = asyncio.create_task(read(other if elsewhere else maker))
        await asyncio.sleep(0.1)  # long enough for a second generation to start, if it did
        model.running[0].released.set()
        texts = await asyncio.gather(first, second)
    assert len(model.running) == 1
    if streamed:
        assert events_of(texts[0]) == events_of(texts[1])
    else:
        assert orjson.loads(texts[0]) == orjson.loads(texts[1])


async def test_an_answer_waits_for_a_caller_whose_connection_broke(database: Database) -> None:
    model, headers = stalling(), key()
    async with answering(database, model=model) as client:
        async with client.post(URL, json={**BODY, "stream": True}, headers=headers) as answer:
            id = response_id_of(await answer.content.readuntil(LAST_PIECE))
        answer.close()
        model.running[0].released.set()
        async with client.post(URL, json={**BODY, "stream": True}, headers=headers) as answer:
            told = events_of(await answer.text())
    assert (told[0]["response"]["id"], told[-1]["type"]) == (id, "response.completed")


async def test_an_answer_waits_for_a_caller_who_left_just_when_it_was_accepted(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, headers, start, accept = stalling(), key(), Run.start, Run.open
    handlers: list[asyncio.Task[None]] = []

    async def start_for_a_caller(run: Run, held: ExitStack) -> None:
        task = asyncio.create_task(start(run, held))
        handlers.append(task)
        await task

    async def accept_and_lose_the_caller(run: Run) -> None:
        await accept(run)
        handlers[0].cancel()

    async with answering(database, model=model) as client:
        monkeypatch.setattr(Run, "start", start_for_a_caller)
        monkeypatch.setattr(Run, "open", accept_and_lose_the_caller)
        with pytest.raises(aiohttp.ClientConnectionError):
            await client.post(URL, json=BODY, headers=headers)
        model.running[0].released.set()
        assert (await ask(client, headers, BODY))["status"] == "completed"
    assert len(model.running) == 1


@asynccontextmanager
async def stopped_worker(
    database: Database, model: StallingModel, headers: dict[str, str], body: dict[str, Any], *replies: str
) -> AsyncIterator[tuple[Client, str]]:
    """Another worker, with these replies, and the id of the response that stopped with the first one."""
    async with answering(database, model=ScriptedModel(replies, name=MODEL)) as other:
        async with signed_in(database, services_with(database, model)) as maker:
            other.session.headers["Authorization"] = maker.session.headers["Authorization"]
            if "conversation" in body:
                body["conversation"] = (await post(maker, CONVERSATIONS, {"items": SAID}))["id"]
            async with maker.post(URL, json={**body, "stream": True}, headers=headers) as answer:
                id = response_id_of(await answer.content.readuntil(LAST_PIECE))
        yield other, id


async def test_what_the_platform_failed_is_begun_again_once(database: Database) -> None:
    headers, body = key(), {**BODY, "stream": True}

    async def repeat(client: Client) -> dict[str, Any]:
        async with client.post(URL, json=body, headers=headers) as answer:
            assert answer.status == 200
            return dict(events_of(await answer.text())[-1]["response"])

    async with stopped_worker(database, stalling(), headers, body, "Whole.", "Never.") as (other, id):
        failed = await get(other, f"{URL}/{id}")
        ends = await asyncio.gather(*(repeat(other) for _ in range(3)))
    assert (failed["status"], failed["error"]["message"]) == ("failed", STOPPED)
    assert failed["output"][0]["content"][0]["text"] == "Half an answer, and the rest."  # it was not cancelled
    assert [(end["status"], end["output"][0]["content"][0]["text"]) for end in ends] == [("completed", "Whole.")] * 3
    assert len({end["id"] for end in ends}) == 1 and ends[0]["id"] != id


async def test_what_may_have_called_a_tool_that_must_not_run_twice_stays_failed(database: Database) -> None:
    headers, body = key(), {**BODY, "tools": [{"type": "firsttoken:double"}]}
    async with (
        stopped_worker(database, stalling(), headers, body, "Never.") as (other, id),
        other.post(URL, json={**body, "stream": True}, headers=headers) as answer,
    ):
        end = events_of(await answer.text())[-1]["response"]
    assert (end["id"], end["status"], end["error"]["message"]) == (id, "failed", STOPPED)


@pytest.mark.parametrize("goes_on", [False, True])
async def test_what_is_begun_again_in_a_conversation_is_another_version_of_what_failed(
    database: Database, goes_on: bool
) -> None:
    """Where it has gone on, what failed is part of it."""
    headers, body = key(), {**BODY, "conversation": ""}
    async with stopped_worker(database, stalling(), headers, body, "Whole.") as (other, id):
        items = f"{CONVERSATIONS}/{body['conversation']}/items"
        if goes_on:
            await post(other, items, {"items": [{"type": "message", "role": "user", "content": "and?"}]})
        async with other.post(URL, json={**body, "stream": True}, headers=headers) as answer:
            end = events_of(await answer.text())[-1]["response"]
        texts = [item["content"][0]["text"] for item in (await get(other, f"{items}?order=asc"))["data"]]
        versions = await get(other, f"{items}?order=asc&include[]=firsttoken:versions")
    if goes_on:
        assert (end["id"], texts) == (id, ["Hello.", "tell me", "Half an answer, and the rest.", "and?"])
    else:
        assert (end["status"], texts) == ("completed", ["Hello.", "tell me", "Whole."])
        assert len(versions["data"][1]["firsttoken_versions"]) == 2


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_repetition_waits_until_it_is_known_what_becomes_of_a_lost_workers_answer(
    database: Database, monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    monkeypatch.setattr(manager, "PASS_EVERY_S", 0.05)
    headers, body, model = key(), {**BODY, "stream": streamed}, stalling()
    services = services_with(database, model)

    async def read(client: Client) -> dict[str, Any]:
        async with client.post(URL, json=body, headers=headers) as answer:
            assert answer.status == 200
            text = await answer.text()
        return dict(events_of(text)[-1]["response"] if streamed else orjson.loads(text))

    async with signed_in(database, services) as lost, answering(database, "Whole.") as heir:
        heir.session.headers["Authorization"] = lost.session.headers["Authorization"]
        first = asyncio.create_task(read(lost))
        async with asyncio.timeout(60):
            while not await services.running.abandoned(services.presence.worker, of_others=False):  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # nobody tells when it is stored that it has begun
        await services.presence.close()  # to all others it is dead
        end = await read(heir)
        model.running[0].released.set()
        await asyncio.wait([first])
    assert (end["status"], end["output"][0]["content"][0]["text"]) == ("completed", "Whole.")


async def test_an_answer_in_the_background_is_queued_once(database: Database) -> None:
    async with answering(database, "First.", "Second.") as client:
        headers, body = key(), {**BODY, "background": True}
        first = await ask(client, headers, body)
        await (await client.get(f"{URL}/{first['id']}?stream=true")).read()
        assert await ask(client, headers, body) == await get(client, f"{URL}/{first['id']}")


async def test_another_request_with_the_same_key_is_refused(database: Database) -> None:
    async with answering(database, "First.") as client:
        headers = key()
        await ask(client, headers, BODY)
        error = (await ask(client, headers, {"input": "something else"}, 422))["error"]
    assert (error["param"], error["code"]) == ("Idempotency-Key", "idempotency_key_reused")


async def test_every_tenant_has_keys_of_its_own(database: Database) -> None:
    headers = key()
    async with answering(database, "Mine.") as client, answering(database, "Theirs.") as stranger:
        await ask(client, headers, BODY)
        assert (await ask(stranger, headers, BODY))["output"][0]["content"][0]["text"] == "Theirs."


async def test_what_was_refused_is_not_remembered(database: Database) -> None:
    async with answering(database, "First.") as client:
        for path, good, bad in (
            (URL, BODY, {**BODY, "conversation": "conv_0"}),
            (CHAT, UNSTORED[1][1], {**UNSTORED[1][1], "messages": [{"role": "user", "content": "x" * 200_000}]}),
        ):
            headers = key()
            async with client.post(path, json=bad, headers=headers) as refused:
                assert refused.status in (400, 404)
            await ask(client, headers, good, path=path)


@pytest.mark.parametrize(("path", "body"), UNSTORED)
async def test_an_answer_that_is_not_stored_is_made_once_and_not_told_again(
    database: Database, path: str, body: dict[str, Any]
) -> None:
    model, headers = stalling(), key()
    async with answering(database, model=model) as client:
        first = asyncio.create_task(ask(client, headers, body, path=path))
        await model.started.wait()
        assert (await ask(client, headers, body, 409, path))["error"]["code"] == "idempotency_key_in_use"
        model.running[0].released.set()
        await first
        assert (await ask(client, headers, body, 409, path))["error"]["code"] == "idempotency_key_used"
    assert len(model.running) == 1


@pytest.mark.parametrize(("path", "body"), UNSTORED)
async def test_an_answer_that_reached_nobody_may_be_asked_for_again(
    database: Database, path: str, body: dict[str, Any]
) -> None:
    model, headers = stalling(), key()
    async with answering(database, model=model) as client:
        async with client.post(path, json={**body, "stream": True}, headers=headers) as answer:
            await answer.content.readuntil(b"t.")
        answer.close()
        await model.running[0].stopped.wait()
        model.replies, status = ["Again."], 409
        while status == 409:  # released after the connection is gone, so nobody is told when
            async with client.post(path, json={**body, "stream": True}, headers=headers) as answer:
                status = answer.status
            answer.close()
    assert status == 200


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(("path", "body"), UNSTORED)
async def test_an_answer_that_is_not_stored_and_that_the_platform_failed_may_be_asked_for_again(
    database: Database, path: str, body: dict[str, Any], streamed: bool
) -> None:
    headers, asked = key(), {**body, "stream": streamed}
    acts = {**body, "tools": [{"type": "firsttoken:double"}]}
    async with answering(database, model=Failing(["Never."], name=MODEL)) as client:
        for _ in range(2):
            async with client.post(path, json=asked, headers=headers) as answer:
                assert (answer.status, "scripted failure" in await answer.text()) == (
                    200 if streamed or path == URL else 500,
                    True,
                )
        if path == URL:  # the other API names no tools of the server
            headers = key()
            async with client.post(path, json={**acts, "stream": streamed}, headers=headers) as answer:
                assert "scripted failure" in await answer.text()
            assert (await ask(client, headers, acts | {"stream": streamed}, 409))["error"][
                "code"
            ] == "idempotency_key_used"


async def test_a_key_of_a_worker_that_died_before_it_began_is_free(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "BEGIN_S", 0.1)
    services, headers = services_with(database, stalling()), key()
    async with signed_in(database, services) as client, answering(database, "x") as heir:
        heir.session.headers["Authorization"] = client.session.headers["Authorization"]
        grant = await services.authenticator.keys.authenticate(key_of(client))
        assert grant is not None
        claim = Claim(grant.tenant_id, headers["Idempotency-Key"], uuid4())
        await services.idempotency_keys.claim(claim, b"", "resp_0")
        await ask(heir, headers, BODY, 422)
        await services.presence.close()
        await ask(heir, headers, BODY)


@pytest.mark.parametrize("value", ["", "x" * 256, "schlüssel"])
async def test_a_key_that_is_none_is_refused(database: Database, value: str) -> None:
    async with answering(database, "x") as client:
        for path, body in ((URL, BODY), UNSTORED[1]):
            error = (await ask(client, {"Idempotency-Key": value}, body, 400, path))["error"]
            assert error["param"] == "Idempotency-Key"
