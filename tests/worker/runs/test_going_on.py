"""An answer whose worker is lost goes on at another one: told once, in order, without a gap, by one worker alone."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from aiohttp import ClientPayloadError, ClientResponse

from agents.message import new_id
from agents.store import ResponseRecord, ResponseStore
from inference.generation import ANY_TERMS, Delta, Sampling, Terms
from migrations.pool import DATABASE_AWAY, Database
from tests.agents.turns import user
from tests.scripted import ScriptedGeneration, ScriptedModel
from tests.worker.answering import MODEL, events_of, get, post, replay, services_with
from tests.worker.harness import Client, serving
from tests.worker.reader import Event, Reader
from tests.worker.sharing import response_id_of, signed_in
from worker.config import Config
from worker.lifecycle.drain import drain
from worker.runs import manager
from worker.runs.run import Run
from worker.runs.running_store import OwnedResponse, RunningStore
from worker.services import Services

URL = "/v1/responses"
TEXT = "An answer in many pieces, of which some are told here and the others there."
STALLS_AT = 5  # pieces
PIECE = b'" ans"'  # the second one
CALL = '<tool_call>\n{"name": "double", "arguments": {"number": 2}}\n</tool_call>'
GOES_ON = {"X-Firsttoken-On-Disconnect": "continue"}
NOBODY_TAKES = Config(background=0)
NUMBERS = ["background", "streamed"]


class PausingGeneration(ScriptedGeneration):
    """Stands still after some pieces."""

    pauses = True

    async def __aiter__(self) -> AsyncIterator[Delta]:
        self.released = asyncio.Event()
        async for delta in super().__aiter__():
            yield delta
            if self.pauses and len(self.ids) == STALLS_AT:
                await self.released.wait()


@dataclass
class PausingModel(ScriptedModel):
    pauses: bool = True
    running: list[PausingGeneration] = field(default_factory=list)

    def generate(self, prompt: Sequence[int], sampling: Sampling, terms: Terms = ANY_TERMS) -> ScriptedGeneration:
        reply = self._reply
        self.prompts.append("".join(map(chr, prompt)))
        self.running.append(PausingGeneration(reply, len(prompt), sampling, self.piece_chars, written=terms.written))
        self.running[-1].pauses = self.pauses
        return self.running[-1]


@dataclass
class Two:
    """A worker that will be lost and its heir, with a client of each, and the models of both."""

    lost: Services
    maker: Client
    client: Client
    models: tuple[PausingModel, PausingModel]

    async def begin(self, kind: str, **body: Any) -> tuple[str, bytes, ClientResponse]:
        """The response that the first worker makes, and what it has told of it so far."""
        headers = {} if kind == "background" else GOES_ON
        asked = {"input": "tell me", "stream": True, "background": kind == "background", **body}
        answer = await self.maker.post(URL, json=asked, headers=headers)
        told = await answer.content.readuntil(PIECE)
        told += await answer.content.readuntil(b"\n\n")
        return response_id_of(told), told, answer

    async def stalled(self) -> None:
        """Until the first worker's answer stands still."""
        while not self.models[0].running or len(self.models[0].running[0].ids) < STALLS_AT:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.01)

    async def lose(self) -> None:
        """All that other workers see of a worker's death."""
        await self.lost.presence.close()


@pytest.fixture
async def two(database: Database, owner_dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Two]:
    async with pair(database, monkeypatch, TEXT) as workers:
        yield workers
    connection = await asyncpg.connect(owner_dsn)
    await connection.execute("delete from responses where status in ('queued', 'in_progress')")
    await connection.close()


@asynccontextmanager
async def pair(database: Database, monkeypatch: pytest.MonkeyPatch, *replies: str) -> AsyncIterator[Two]:
    monkeypatch.setattr(manager, "PASS_EVERY_S", 0.05)
    models = PausingModel([*replies], name=MODEL), PausingModel([*replies], name=MODEL, pauses=False)
    lost, heir = services_with(database, models[0]), services_with(database, models[1], NOBODY_TAKES)
    async with signed_in(database, lost) as maker, serving(heir) as client:
        client.session.headers["Authorization"] = maker.session.headers["Authorization"]
        yield Two(lost, maker, client, models)


def events_in(told: bytes) -> list[Event]:
    return events_of(told.decode() + "data: [DONE]\n\n")


def numbers(events: Sequence[Event]) -> list[int]:
    return [event["sequence_number"] for event in events]


@pytest.mark.parametrize("kind", NUMBERS)
async def test_it_goes_on_behind_what_was_told_and_ends_once(two: Two, kind: str) -> None:
    conversation = (await post(two.client, "/v1/conversations", {}))["id"]
    id, beginning, answer = await two.begin(kind, conversation=conversation)
    told = events_in(beginning)
    reading = asyncio.create_task(replay(two.client, id, f"&starting_after={told[-1]['sequence_number']}"))
    await two.lose()
    rest = await reading
    answer.close()
    assert numbers([*told, *rest]) == list(range(len(told) + len(rest)))
    assert Reader.read([*told, *rest]).texts == {0: TEXT}
    assert [event["type"] for event in rest].count("response.completed") == 1
    assert await replay(two.client, id) == [*told, *rest]
    response = await get(two.client, f"{URL}/{id}")
    assert response == rest[-1]["response"]
    assert response["usage"]["output_tokens"] == len(two.models[1].running[0].ids)
    items = (await get(two.client, f"/v1/conversations/{conversation}/items?order=asc"))["data"]
    assert [item["content"][0]["text"] for item in items] == ["tell me", TEXT]


async def cut_off(answer: ClientResponse) -> bytes:
    """What still came of a stream until its connection was lost."""
    told = b""
    with pytest.raises(ClientPayloadError):
        while piece := await answer.content.readany():
            told += piece
    return told


@pytest.mark.parametrize("kind", NUMBERS)
async def test_a_worker_that_stops_leaves_it_to_the_other_instead_of_ending_it(two: Two, kind: str) -> None:
    id, beginning, answer = await two.begin(kind)
    assert two.maker.app is not None
    await drain(two.maker.app, 0.1, asyncio.Event())
    told = events_in(beginning + await cut_off(answer))
    await two.lose()
    rest = await replay(two.client, id, f"&starting_after={told[-1]['sequence_number']}")
    assert numbers([*told, *rest]) == list(range(len(told) + len(rest)))
    assert Reader.read([*told, *rest]).texts == {0: TEXT}
    assert rest[-1]["type"] == "response.completed"


async def test_who_waits_for_a_whole_answer_that_is_left_to_another_worker_gets_it_at_the_next_try(two: Two) -> None:
    asked, headers = {"input": "tell me"}, {**GOES_ON, "Idempotency-Key": new_id("key")}
    asking = asyncio.create_task(two.maker.post(URL, json=asked, headers=headers).__aenter__())
    await two.stalled()
    assert two.maker.app is not None
    await drain(two.maker.app, 0.1, asyncio.Event())
    async with await asking as refused:
        assert refused.status == 503 and "stopped" in (await refused.json())["error"]["message"]
    await two.lose()
    async with two.client.post(URL, json=asked, headers=headers) as answer:
        response = await answer.json()
    assert response["output"][0]["content"][0]["text"] == TEXT


async def test_it_goes_on_though_the_database_is_away_for_a_moment_just_then(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, read, failures, given_up = Run.open, ResponseStore.get, list[Exception](), list[str]()

    async def accept_and_lose_the_database(run: Run) -> None:
        await accept(run)
        failures.append(ConnectionResetError())

    async def read_again(store: ResponseStore, tenant_id: UUID, id: str) -> ResponseRecord:
        if failures:
            raise failures.pop()
        return await read(store, tenant_id, id)

    async def give_up(store: RunningStore, taken: OwnedResponse, error: Any) -> None:
        given_up.append(taken.response_id)

    id, _, answer = await two.begin("streamed")
    monkeypatch.setattr(Run, "open", accept_and_lose_the_database)
    monkeypatch.setattr(ResponseStore, "get", read_again)
    monkeypatch.setattr(RunningStore, "give_up", give_up)
    await two.lose()
    assert Reader.read(await replay(two.client, id)).texts == {0: TEXT}
    answer.close()
    assert not given_up and not failures


@pytest.mark.parametrize("kind", NUMBERS)
async def test_a_worker_that_was_only_slow_writes_nothing_beside_it_and_passes_on_what_the_other_tells(
    two: Two, kind: str
) -> None:
    id, beginning, answer = await two.begin(kind)
    await two.lose()
    whole = await replay(two.client, id)
    assert Reader.read(whole).texts == {0: TEXT}
    two.models[0].running[0].released.set()  # it goes on as if nothing had happened
    told = events_of((beginning + await answer.read()).decode())
    assert told == whole == await replay(two.client, id)


async def test_nothing_is_told_that_is_not_stored(two: Two) -> None:
    """So no client knows of an event that another worker would tell otherwise."""
    id, beginning, answer = await two.begin("streamed")
    stored = (await two.lost.running.read(await tenant_of(two, id), id, -1)).events
    assert list(stored[: len(events_in(beginning))]) == events_in(beginning)
    two.models[0].running[0].released.set()
    await answer.read()


async def tenant_of(two: Two, id: str) -> UUID:
    assert two.maker.app is not None
    return two.maker.app[manager.RUNS]._runs[id].turn.tenant_id


async def test_an_answer_whose_client_did_not_mean_to_come_back_fails_as_before(two: Two) -> None:
    async with two.maker.post(URL, json={"input": "tell me", "stream": True}) as answer:
        id = response_id_of(await answer.content.readuntil(PIECE))
        await two.lose()
        again = await replay(two.client, id)
    assert again[-1]["type"] == "response.failed"
    assert two.models[1].prompts == []


async def test_only_answers_that_go_on_wait_for_a_place(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "RESUMED_MAX", 0)
    goes_on, _, telling = await two.begin("background")
    async with two.maker.post(URL, json={"input": "tell me", "stream": True}) as answer:
        ends = response_id_of(await answer.content.readuntil(PIECE))
        await two.lose()
        assert (await replay(two.client, ends))[-1]["type"] == "response.failed"
    assert (await get(two.client, f"{URL}/{goes_on}"))["status"] == "in_progress"
    monkeypatch.setattr(manager, "RESUMED_MAX", 1)
    assert Reader.read(await replay(two.client, goes_on)).texts == {0: TEXT}
    telling.close()


@pytest.mark.parametrize("other", ["another answer", "another model"])
async def test_where_it_cannot_go_on_exactly_it_fails_with_its_half(two: Two, other: str) -> None:
    if other == "another answer":
        two.models[1].replies = [TEXT[:6]]
    else:
        assert two.client.app is not None
        model_registry = two.client.app[manager.RUNS].services.model_registry
        model_registry.candidates = {"another": model_registry.candidates[MODEL]}
    id, _, answer = await two.begin("background")
    await two.lose()
    again = await replay(two.client, id)
    answer.close()
    assert again[-1]["type"] == "response.failed"
    half = again[-1]["response"]["output"][0]["content"][0]["text"]
    assert TEXT.startswith(half) and len(half) >= len("An ans")


async def test_whose_conversation_is_deleted_fails_and_is_no_lost_one(two: Two) -> None:
    conversation = (await post(two.maker, "/v1/conversations", {}))["id"]
    id, told, answer = await two.begin("background", conversation=conversation)
    await two.maker.delete(f"/v1/conversations/{conversation}")
    await two.stalled()
    two.models[0].running[0].released.set()
    (*_, end) = events_of((told + await answer.read()).decode())
    assert end["type"] == "response.failed" and conversation in end["response"]["error"]["message"]
    assert await get(two.client, f"{URL}/{id}") == end["response"]
    answer.close()


async def test_where_its_conversation_is_deleted_it_does_not_go_on_and_nobody_is_alarmed(
    two: Two, caplog: pytest.LogCaptureFixture
) -> None:
    conversation = (await post(two.maker, "/v1/conversations", {}))["id"]
    id, _, answer = await two.begin("background", conversation=conversation)
    await two.maker.delete(f"/v1/conversations/{conversation}")
    await two.lose()
    assert (await replay(two.client, id))[-1]["type"] == "response.failed"
    answer.close()
    assert not [record for record in caplog.records if record.name == "firsttoken.runs" and record.exc_info]


@pytest.mark.parametrize(("progress", "end"), [(100, "failed"), (1, "completed")])
async def test_three_workers_at_most_are_lost_for_one_answer_unless_it_progressed_there(
    two: Two, monkeypatch: pytest.MonkeyPatch, progress: int, end: str
) -> None:
    monkeypatch.setattr("worker.runs.continuation.ATTEMPTS_MAX", 1)
    monkeypatch.setattr("worker.runs.continuation.PROGRESS_EVENTS", progress)
    id, _, answer = await two.begin("background")
    await two.lose()
    again = await replay(two.client, id)
    answer.close()
    assert again[-1]["type"] == f"response.{end}"


async def test_an_answer_with_a_tool_goes_on_between_its_steps(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(database, monkeypatch, CALL, TEXT) as two:
        two.models[1].replies = [TEXT]
        asking = asyncio.create_task(two.begin("background", tools=[{"type": "firsttoken:double"}]))
        await two.stalled()
        two.models[0].running[0].released.set()
        id, beginning, answer = await asking
        told = events_in(beginning)
        await two.lose()
        whole = await replay(two.client, id)
        answer.close()
    assert whole[: len(told)] == told
    assert numbers(whole) == list(range(len(whole)))
    assert len(whole[-1]["response"]["output"]) == 3
    assert whole[-1]["response"]["output"][-1]["content"][0]["text"] == TEXT


async def test_the_connection_of_a_worker_that_says_nothing_is_ended(
    running: RunningStore, tenant_id: UUID, owner_dsn: str
) -> None:
    """It stands still, and its lock with it: what it holds would be nobody's."""
    worker = secrets.randbits(62)
    stands_still, silent = [await asyncpg.connect(owner_dsn) for _ in range(2)]
    try:
        await stands_still.execute("select pg_advisory_lock($1)", worker)
        await silent.execute("select pg_advisory_lock($1)", worker + 1)  # holds no response
        record = ResponseRecord(new_id("resp"), "in_progress", {"output": []}, datetime.now(UTC), None, (user("x"),))
        await running.begin(tenant_id, record, worker)
        await running.end_silent(60.0)
        assert not stands_still.is_closed()
        await running.end_silent(0.0)
        with pytest.raises(DATABASE_AWAY):
            await stands_still.execute("select 1")
        assert await silent.fetchval("select 1")
        await running.withdraw(tenant_id, record.id, worker)
    finally:
        for connection in (stands_still, silent):
            connection.terminate()
