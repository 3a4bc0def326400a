"""What was told is what is told again, and nothing is made twice: with answers of the database lost at every point, and
with workers and servers that are killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import asyncpg
import pytest

from migrations.embedded import EmbeddedPostgres
from migrations.embedded.placement import placement_of
from migrations.embedded.postmaster import PidFile
from migrations.pool import Database
from migrations.runner import migrate
from tests.proxy import Proxy, proxied
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, StallingModel, answering, events_of, get, post, replay, services_with, stream
from tests.worker.harness import Client
from tests.worker.reader import Event, Reader
from tests.worker.sharing import response_id_of, signed_in
from worker.routes import responses
from worker.runs import idempotency, manager, run
from worker.runs.broadcast import Broadcast
from worker.runs.continuation import GAP, NOT_STORED, UNSTORED_EVENTS_MAX, WORKER_STOPPED
from worker.runs.idempotency import Claim, IdempotencyKeys
from worker.telemetry.telemetry import Telemetry

URL = "/v1/responses"
BODY = {"input": "tell me"}
LAST_PIECE = b'"t."'
NEVER_S = 1000.0
IS_CLAIMED = "select exists (select from idempotency_keys where claim = $1)"


@dataclass
class Lossy:
    """A worker behind a proxy, its client and its model; `rows` asks the database about the client's responses."""

    proxy: Proxy
    client: Client
    model: ScriptedModel
    owner: asyncpg.Connection[asyncpg.Record]

    async def rows(self) -> list[tuple[str, str]]:
        """Id and status of every response that is stored."""
        found = await self.owner.fetch("select id, status from responses order by created_at")
        return [(row["id"], row["status"]) for row in found]

    async def is_settled(self) -> bool:
        """Whether nothing is in anybody's hands."""
        held = "select exists (select from responses where worker is not null or status = 'in_progress')"
        return not await self.owner.fetchval(held)


@asynccontextmanager
async def behind(postgres: EmbeddedPostgres, owner_dsn: str, model: ScriptedModel) -> AsyncIterator[Lossy]:
    owner = await asyncpg.connect(owner_dsn)
    await owner.execute("delete from responses")  # of other tests
    async with proxied(postgres.app_dsn) as proxy:
        database = await Database.connect(proxy.dsn)
        async with signed_in(database, services_with(database, model)) as client:
            await get(client, "/v1/conversations")  # who asks is known now
            yield Lossy(proxy, client, model, owner)
        await database.close()
    await owner.close()


def scripted() -> ScriptedModel:
    return ScriptedModel(["First.", "Second.", "Third."], name=MODEL)


def key() -> dict[str, str]:
    return {"Idempotency-Key": f"key-{uuid4()}"}


async def until(fact: Callable[[], Awaitable[bool]]) -> None:
    while not await fact():  # noqa: ASYNC110  # nobody tells of it; the test's own time limit ends this
        await asyncio.sleep(0.01)


async def has_ended(client: Client, id: str) -> bool:
    return bool((await get(client, f"{URL}/{id}"))["status"] != "in_progress")


async def is_there(client: Client, id: str) -> bool:
    async with client.get(f"{URL}/{id}") as answer:
        return answer.status == 200


async def is_ready(client: Client) -> bool:
    async with client.get("/readyz") as answer:
        return answer.status == 200


@pytest.mark.parametrize("after", [0, 1, 2, 3], ids=["claim", "begin", "finish", "event log"])
async def test_a_lost_answer_to_a_commit_is_noticed_by_nobody(
    postgres: EmbeddedPostgres, owner_dsn: str, after: int
) -> None:
    async with behind(postgres, owner_dsn, scripted()) as lossy:
        conversation = (await post(lossy.client, "/v1/conversations", {}))["id"]
        headers, body = key(), {**BODY, "stream": True, "conversation": conversation}
        lossy.proxy.after, lossy.proxy.commits_lost = after, 1
        told = []
        for _ in range(2):
            async with lossy.client.post(URL, json=body, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
                told.append(events_of(await answer.text()))
        await until(lossy.is_settled)
        assert lossy.proxy.commits_lost == 0
        assert told[0] == told[1] == await replay(lossy.client, told[0][-1]["response"]["id"])
        items = (await get(lossy.client, f"/v1/conversations/{conversation}/items?order=asc"))["data"]
        assert [item["content"][0]["text"] for item in items] == ["tell me", "First."]
        assert [status for _, status in await lossy.rows()] == ["completed"]
        assert len(lossy.model.prompts) == 1


@pytest.mark.parametrize(("body", "after"), [({**BODY, "store": False}, 0), (BODY, 0), (BODY, 1)])
async def test_a_request_that_is_refused_in_doubt_leaves_nothing(
    postgres: EmbeddedPostgres,
    owner_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    body: dict[str, Any],
    after: int,
) -> None:
    """Every COMMIT is carried out and none is answered, from the claim of the key on or from the beginning on."""
    async with behind(postgres, owner_dsn, scripted()) as lossy:
        headers = key()
        lossy.proxy.after, lossy.proxy.commits_lost = after, 10**6
        with monkeypatch.context() as hurried:
            hurried.setattr(idempotency, "CLAIM_S", 0.2)
            hurried.setattr(run, "BEGIN_S", 0.2)
            async with lossy.client.post(URL, json=body, headers=headers) as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        lossy.proxy.commits_lost = 0
        assert await lossy.rows() == []
        async with lossy.client.post(URL, json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()


@pytest.mark.parametrize("after", [0, 1], ids=["claim", "begin"])
async def test_a_client_that_vanishes_while_its_request_is_stored_may_ask_again(
    postgres: EmbeddedPostgres, owner_dsn: str, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(manager, "PASS_EVERY_S", 0.05)
    monkeypatch.setattr(responses, "BEGIN_S", 0.2)  # a repetition that is too early waits no longer for its 409
    async with behind(postgres, owner_dsn, scripted()) as lossy:
        headers = key()
        lossy.proxy.holds, lossy.proxy.after = True, after
        asking = asyncio.create_task(lossy.client.post(URL, json=BODY, headers=headers))
        await lossy.proxy.held.wait()
        asking.cancel()
        await asyncio.wait([asking])
        await asyncio.sleep(0.1)  # for the worker to notice
        lossy.proxy.go_on()
        status = 409
        while status == 409:
            async with lossy.client.post(URL, json=BODY, headers=headers) as answer:
                status = answer.status
        assert status == 200
        await until(lossy.is_settled)
        assert len({id for id, _ in await lossy.rows()}) == 1


async def test_a_key_that_is_claimed_after_its_client_has_left_is_given_back(
    postgres: EmbeddedPostgres, database: Database, owner_dsn: str, tenant_id: UUID
) -> None:
    """The COMMIT of a claim reaches the database when its request is over, and so does the settling of it."""
    owner = await asyncpg.connect(owner_dsn)
    waits = "select exists (select from pg_stat_activity where wait_event_type = 'Lock' and query ~ 'idempotency_keys')"
    under_way = "select exists (select from pg_locks where locktype = 'relation' and mode = 'RowExclusiveLock')"
    async with proxied(postgres.app_dsn) as proxy:
        slow = await Database.connect(proxy.dsn)
        keys, claim = IdempotencyKeys(database, 1), Claim(tenant_id, "key", uuid4())
        proxy.keeps = True
        claiming = asyncio.create_task(IdempotencyKeys(slow, 1).claim(claim, b"", "resp_1"))
        await proxy.kept.wait()
        claiming.cancel()
        await asyncio.wait([claiming])
        settling = asyncio.create_task(keys.try_to_settle(claim, answered=False))
        while not settling.done() and not await owner.fetchval(waits):
            pass
        proxy.let_go()
        assert await settling
        while await owner.fetchval(under_way):  # without waiting for it, the claim comes now
            pass
        assert not await owner.fetchval(IS_CLAIMED, claim.id)
        slow._pool.terminate()
    await owner.close()


async def test_a_key_whose_response_is_taken_back_meanwhile_is_given_back(
    database: Database, owner_dsn: str, tenant_id: UUID
) -> None:
    """Between two looks at it: it is there for the first one, so the key stays, and gone for the second."""
    owner = await asyncpg.connect(owner_dsn)
    await owner.execute(
        """insert into responses (tenant_id, id, status, created_at, input, body, worker)
           values ($1, 'resp_1', 'in_progress', now(), '[]', '{}', 1)""",
        tenant_id,
    )
    claim = Claim(tenant_id, "key", uuid4())
    assert await IdempotencyKeys(database, 1).claim(claim, b"", "resp_1") is None

    class Between:
        """The database, where a response is taken back behind the statement that gives keys back."""

        @asynccontextmanager
        async def tenant(self, tenant_id: UUID) -> AsyncIterator[Between]:
            async with database.tenant(tenant_id) as self.connection:
                yield self

        async def execute(self, query: str, *args: object) -> None:
            await self.connection.execute(query, *args)
            if query.startswith("delete from idempotency_keys"):
                await owner.execute("delete from responses where tenant_id = $1", tenant_id)

        async def fetchval(self, query: str, *args: object) -> object:
            return await self.connection.fetchval(query, *args)

    keys = IdempotencyKeys(cast(Database, Between()), 1)
    while not await keys.try_to_settle(claim, answered=False):
        pass
    assert not await owner.fetchval(IS_CLAIMED, claim.id)
    await owner.close()


def noting(order: list[str], act: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*given: Any) -> Any:
        order.append(act.__name__)
        return act(*given)

    return noted


async def test_an_end_that_was_told_as_failed_stands_as_failed(
    postgres: EmbeddedPostgres, owner_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its COMMIT was carried out, and nobody could know. Whoever has read its end finds its trace."""
    monkeypatch.setattr(run, "END_S", 0.2)
    order = list[str]()
    monkeypatch.setattr(Telemetry, "record", noting(order, Telemetry.record))
    monkeypatch.setattr(Broadcast, "flush", noting(order, Broadcast.flush))
    async with behind(postgres, owner_dsn, scripted()) as lossy:
        conversation = (await post(lossy.client, "/v1/conversations", {}))["id"]
        lossy.proxy.after, lossy.proxy.commits_lost = 1, 10**6
        async with lossy.client.post(URL, json={**BODY, "conversation": conversation, "stream": True}) as answer:
            await answer.content.readuntil(b"response.failed")
            lossy.proxy.commits_lost = 0
            id = (await lossy.rows())[0][0]
            await answer.read()
        told = await replay(lossy.client, id)
        await until(lossy.is_settled)
        assert told[-1]["type"] == "response.failed"
        assert told[-1]["response"] == await get(lossy.client, f"{URL}/{id}")
        assert GAP not in told[-1]
        assert [status for _, status in await lossy.rows()] == ["failed"]
        assert (await get(lossy.client, f"/v1/conversations/{conversation}/items"))["data"] == []
    assert order == ["record", "flush"]


@pytest.mark.parametrize("told_before", [False, True], ids=["with its end", "with its first events"])
async def test_a_beginning_that_a_crash_took_along_is_stored_again(
    database: Database, owner_dsn: str, told_before: bool
) -> None:
    """All that a crash leaves of it: the row is gone."""
    model = StallingModel(["Half an answer, and the rest."], name=MODEL)
    owner = await asyncpg.connect(owner_dsn)
    taken_along = "delete from responses where worker is not null and status = 'in_progress' returning id"
    async with answering(database, model=model) as client:
        asking = asyncio.create_task(post(client, URL, BODY))
        await model.started.wait()
        while (id := await owner.fetchval(taken_along)) is None:
            pass
        if told_before:
            await until(lambda: is_there(client, id))
        model.running[0].released.set()
        made = await asking
        assert (made["id"], made["status"]) == (id, "completed")
        assert await get(client, f"{URL}/{id}") == made
        assert Reader.read(await replay(client, id)).final == made
    await owner.close()


@asynccontextmanager
async def killed(
    database: Database, monkeypatch: pytest.MonkeyPatch, *, gather_s: float
) -> AsyncIterator[tuple[Client, str, list[Event]]]:
    """A client of another worker, and the id and the events of an answer whose worker was killed while it was told."""
    monkeypatch.setattr(manager, "PASS_EVERY_S", 0.05)
    monkeypatch.setattr("worker.database.GATHER_S", gather_s)
    model = StallingModel(["Half an answer, and the rest."], name=MODEL)
    lost, heir = services_with(database, model), services_with(database, model)
    async with signed_in(database, heir) as client, signed_in(database, lost) as maker:
        maker.session.headers["Authorization"] = client.session.headers["Authorization"]
        async with maker.post(URL, json={**BODY, "stream": True}) as answer:
            beginning = await answer.content.readuntil(LAST_PIECE)
            await answer.content.readuntil(b"\n\n")
            id = response_id_of(beginning)
            told = events_of(beginning.decode().rpartition("event: ")[0] + "data: [DONE]\n\n")
            await lost.presence.close()  # all that other workers see of a worker's death
            await until(lambda: has_ended(client, id))
            yield client, id, told


async def test_an_answer_that_is_killed_before_anything_of_it_is_stored_has_an_end(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with killed(database, monkeypatch, gather_s=NEVER_S) as (client, id, told):
        again = await replay(client, id)
        assert again[:2] == told[:2]
        assert [event["type"] for event in again[2:]] == ["response.failed"]
        assert again[-1][GAP] == {"after": 1, "reason": WORKER_STOPPED}
        last = told[-1]["sequence_number"]
        assert last > 2
        assert await replay(client, id, f"&starting_after={last}") == again[2:]


async def test_a_reader_of_a_killed_answer_gets_what_is_kept_and_then_its_end(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with killed(database, monkeypatch, gather_s=0.0) as (client, id, told):
        again = await replay(client, id)
        kept = len(again) - 1
        assert again[:kept] == [*told, *again[len(told) : kept]][:kept]
        assert [event["sequence_number"] for event in again] == [*range(kept), kept - 1 + UNSTORED_EVENTS_MAX]
        assert (again[-1]["type"], again[-1][GAP]["after"]) == ("response.failed", kept - 1)
        assert again[-1]["response"] == await get(client, f"{URL}/{id}")


@pytest.mark.parametrize("include", [[], ["firsttoken:trace"]])
async def test_a_finished_answer_is_told_again_in_full_though_its_worker_was_killed(
    database: Database, monkeypatch: pytest.MonkeyPatch, include: list[str]
) -> None:
    """Right after its last event: that is stored before it is told, and so is everything before it."""
    monkeypatch.setattr("worker.database.GATHER_S", NEVER_S)
    monkeypatch.setattr(manager, "PASS_EVERY_S", 0.05)
    lost, heir = (services_with(database, scripted()) for _ in range(2))
    async with signed_in(database, heir) as client, signed_in(database, lost) as maker:
        maker.session.headers["Authorization"] = client.session.headers["Authorization"]
        told = await stream(maker, URL, {**BODY, "include": include})
        await lost.presence.close()
        again = await replay(client, told[-1]["response"]["id"])
    if include:  # the trace tells how long the commit took, so it is the one event that is stored after it was told
        assert told.pop(-2)["type"] == "firsttoken:trace"
        assert again[-1].pop(GAP) == {"after": told[-2]["sequence_number"], "reason": NOT_STORED}  # type: ignore[attr-defined]
    assert again == told


async def test_a_response_in_the_hands_of_a_worker_that_does_not_know_it_is_let_go(
    postgres: EmbeddedPostgres, owner_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken from the queue by a COMMIT whose answer was lost, or left by one that was refused."""
    monkeypatch.setattr(manager, "PASS_EVERY_S", 0.05)
    async with behind(postgres, owner_dsn, scripted()) as lossy:
        made = await post(lossy.client, URL, BODY)
        await until(lossy.is_settled)
        assert lossy.client.app is not None
        worker = lossy.client.app[manager.RUNS].services.presence.worker
        await lossy.owner.execute(
            """insert into responses (tenant_id, id, status, body, worker)
               select tenant_id, 'resp_unknown', 'in_progress', body, $1 from responses where id = $2""",
            worker,
            made["id"],
        )
        await until(lossy.is_settled)
        assert await lossy.rows() == [(made["id"], "completed")]


async def test_everything_resumes_after_the_server_was_killed(
    make_home: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_home()
    model = StallingModel(["Half an answer, and the rest."], name=MODEL)
    with EmbeddedPostgres(home) as server:
        await migrate(server.owner_dsn)
        database = await Database.connect(server.app_dsn)
        async with signed_in(database, services_with(database, model)) as client:
            async with client.post(URL, json={**BODY, "stream": True}) as answer:
                assert answer.status == 200  # it is stored, and can no longer be refused
                await model.started.wait()
                pid_file = PidFile.read(placement_of(home).data)
                assert pid_file is not None
                os.kill(pid_file.pid, signal.SIGKILL)
                while await is_ready(client):  # its other processes outlive the first one for a moment
                    pass
                await asyncio.to_thread(server.start)
                model.running[0].released.set()
                told = events_of(await answer.text())
            assert told[-1]["type"] == "response.completed"
            assert await replay(client, told[-1]["response"]["id"]) == told
            await until(lambda: is_ready(client))
            model.started.clear()
            again = asyncio.create_task(post(client, URL, BODY))
            await model.started.wait()
            model.running[-1].released.set()
            assert (await again)["status"] == "completed"
        await database.close()
