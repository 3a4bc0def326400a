"""Events on their way to Postgres: tried again while it is away, never for what it refuses for good."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

import asyncpg
import orjson
import pytest

from agents.message import new_id
from agents.store import ResponseRecord
from migrations.pool import DATABASE_AWAY, Database
from tests.agents.turns import user
from tests.worker.answering import answering, events_of, stream
from worker.lifecycle.supervisor import Supervisor
from worker.runs import event_log
from worker.runs.continuation import GAP, UNSTORED_EVENTS_MAX, Batch, ResponseEnd
from worker.runs.event_log import EventLog, Journal
from worker.runs.running_store import RunningStore
from worker.wire.events import data_of, encode

WORKER = 21  # no session holds its lock


@pytest.fixture
async def two(running: RunningStore, tenant_id: UUID, owner_dsn: str) -> AsyncIterator[tuple[str, str]]:
    """Two responses that the worker makes."""
    ids = new_id("resp"), new_id("resp")
    for id in ids:
        record = ResponseRecord(
            id, "in_progress", {"output": []}, datetime.now(UTC), None, (user("x"),), (), None, None
        )
        await running.begin(tenant_id, record, WORKER)
    yield ids
    connection = await asyncpg.connect(owner_dsn)
    await connection.execute("delete from responses where id = any($1)", list(ids))
    await connection.close()


def frame(number: int, text: str = "x") -> bytes:
    return encode({"type": "response.output_text.delta", "delta": text, "sequence_number": number})


class Told:
    """A response whose events are noted as they are told."""

    def __init__(self, log: EventLog, tenant_id: UUID, id: str) -> None:
        self._log = log
        self.journal = Journal(tenant_id, id, [])

    def tell(self, *frames: bytes, last: bool = False) -> None:
        self.journal.frames += frames
        self.journal.last = last
        self._log.note(self.journal)


async def numbers(running: RunningStore, tenant_id: UUID, id: str) -> tuple[list[int], bool]:
    chapter = await running.read(tenant_id, id, -1)
    return [event["sequence_number"] for event in chapter.events], chapter.sealed


async def test_events_that_postgres_refuses_keep_no_others_from_being_stored(
    running: RunningStore, tenant_id: UUID, two: tuple[str, str]
) -> None:
    refused, good = two
    log = EventLog(running, WORKER)
    one, another = Told(log, tenant_id, refused), Told(log, tenant_id, good)
    one.tell(frame(0, "\0"), last=True)  # jsonb has no such character
    another.tell(frame(0), frame(1))
    assert await log.flush()
    assert await numbers(running, tenant_id, good) == ([0, 1], False)
    assert await numbers(running, tenant_id, refused) == (
        [0, 1, 1 + UNSTORED_EVENTS_MAX],
        True,
    )  # ended as one that broke
    another.tell(frame(2), last=True)
    assert await log.flush()
    assert await numbers(running, tenant_id, good) == ([0, 1, 2], True)


async def test_nobody_waits_for_events_that_postgres_refuses(
    running: RunningStore, tenant_id: UUID, two: tuple[str, str]
) -> None:
    """Of a response that another worker may resume, nothing is told or run before that."""
    log, stored = EventLog(running, WORKER), list[int]()
    told = Told(log, tenant_id, two[0])
    told.journal.on_stored = lambda: stored.append(told.journal.stored)
    told.tell(frame(0, "\0"))
    assert await log.flush()
    assert stored == [1]


class Breaking(RunningStore):
    """Raises what a connection does that breaks, as often as it was told to."""

    def __init__(self, database: Database, *errors: Exception) -> None:
        super().__init__(database)
        self._errors = list(errors)
        self.appended: list[list[str]] = []  # the responses of each statement

    async def append_all(
        self, by_tenant: Mapping[UUID, Sequence[Batch]], worker: int, followed: Collection[str] = ()
    ) -> bool:
        if self._errors:
            raise self._errors.pop(0)
        self.appended.append([batch.response_id for batches in by_tenant.values() for batch in batches])
        return await super().append_all(by_tenant, worker, followed)


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.InternalClientError("cannot switch to state 15"),
        asyncpg.DiskFullError("no space left"),
        asyncpg.AdminShutdownError("terminating connection"),
        ConnectionResetError(),
        TimeoutError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_events_wait_for_a_database_that_is_away(
    database: Database, running: RunningStore, tenant_id: UUID, two: tuple[str, str], error: Exception
) -> None:
    log = EventLog(Breaking(database, error), WORKER)
    told = Told(log, tenant_id, two[0])
    told.tell(frame(0))
    assert not await log.flush()
    told.tell(frame(1), last=True)
    assert await log.flush()
    assert await numbers(running, tenant_id, two[0]) == ([0, 1], True)


async def test_a_backlog_is_stored_in_portions(
    database: Database,
    running: RunningStore,
    tenant_id: UUID,
    two: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Postgres holds several copies of a statement in memory."""
    monkeypatch.setattr(event_log, "AT_ONCE_BYTES_MAX", len(frame(0)))
    store = Breaking(database)
    log = EventLog(store, WORKER)
    for id in two:
        Told(log, tenant_id, id).tell(frame(0), frame(1))
    assert await log.flush()
    assert store.appended == [[two[0]], [two[1]]]
    assert [await numbers(running, tenant_id, id) for id in two] == [([0, 1], False)] * 2


def ended(told: Told) -> None:
    """With an end in place of one that may have been stored."""
    id = told.journal.response_id
    end = ResponseRecord(id, "failed", {"output": []}, datetime.now(UTC), None, (user("x"),), (), None, None)
    told.journal.end = ResponseEnd(end, kept=False)
    told.tell(frame(0), last=True)


async def test_another_end_is_stored_where_one_may_have_been(
    running: RunningStore, tenant_id: UUID, two: tuple[str, str]
) -> None:
    log, lost = EventLog(running, WORKER), list[str]()
    mine, deleted = two[0], new_id("resp")
    for id in (mine, deleted):
        told = Told(log, tenant_id, id)
        told.journal.on_lost = partial(lost.append, id)
        ended(told)
    assert await log.flush()
    assert await numbers(running, tenant_id, mine) == ([0], True)
    assert lost == [deleted]


async def test_another_end_changes_nothing_of_a_response_that_another_worker_owns(
    database: Database, running: RunningStore, tenant_id: UUID, two: tuple[str, str]
) -> None:
    log, lost = EventLog(running, WORKER + 1), list[str]()
    told = Told(log, tenant_id, two[0])
    told.journal.on_lost = partial(lost.append, two[0])
    ended(told)
    assert await log.flush()
    assert (lost, await numbers(running, tenant_id, two[0])) == ([two[0]], ([], False))
    async with database.tenant(tenant_id) as connection:
        status = await connection.fetchval("select status from responses where id = $1", two[0])
    assert status == "in_progress"


async def test_one_that_cannot_be_stored_yet_holds_up_no_other(
    database: Database, running: RunningStore, tenant_id: UUID, two: tuple[str, str]
) -> None:
    locked, free = two

    class Waiting(RunningStore):
        async def append(self, tenant_id: UUID, batch: Batch, worker: int, *, followed: bool = False) -> bool:
            if batch.response_id == locked:
                raise TimeoutError
            return await super().append(tenant_id, batch, worker, followed=followed)

    log = EventLog(Waiting(database), WORKER)
    for id in (locked, free):
        ended(Told(log, tenant_id, id))
    assert not await log.flush()
    assert not await log.flush()
    assert await numbers(running, tenant_id, free) == ([0], True)


@pytest.mark.parametrize("include", [[], ["firsttoken:trace"]], ids=["without", "with trace"])
async def test_what_was_stored_with_the_end_of_an_answer_is_not_written_again(
    database: Database, monkeypatch: pytest.MonkeyPatch, include: list[str]
) -> None:
    append_all, written, over = RunningStore.append_all, list[Batch](), asyncio.Event()

    async def noted(
        self: RunningStore, by_tenant: Mapping[UUID, Sequence[Batch]], worker: int, followed: Collection[str] = ()
    ) -> bool:
        done = await append_all(self, by_tenant, worker, followed)
        batches = [batch for of_tenant in by_tenant.values() for batch in of_tenant]
        written.extend(batches)
        if any(batch.last for batch in batches):
            over.set()
        return done

    monkeypatch.setattr(RunningStore, "append_all", noted)
    async with answering(database, "Hello there.") as client:
        told = await stream(client, "/v1/responses", {"input": "hello", "stream": True, "include": include})
        await over.wait()
        id = told[0]["response"]["id"]
        [last] = [batch for batch in written if batch.last]
        types = [orjson.loads(data_of(sent))["type"] for sent in last.frames]
        assert types == include  # the trace was complete only then
        async with client.get(f"/v1/responses/{id}?stream=true") as answer:
            assert events_of(await answer.text()) == told


def test_a_batch_that_is_stored_late_takes_back_nothing() -> None:
    journal = Journal(UUID(int=1), "resp_x", [frame(0), frame(1)])
    late, whole = journal.batch(), journal.batch([frame(2)])
    journal.keep(whole)
    journal.frames.append(frame(2))
    journal.keep(late)
    assert journal.batch().frames == []


async def test_what_waits_too_long_is_dropped_and_what_follows_is_marked(
    database: Database,
    running: RunningStore,
    tenant_id: UUID,
    two: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_log, "WAITING_MAX", 3)
    log = EventLog(Breaking(database, TimeoutError()), WORKER)
    going, over = (Told(log, tenant_id, id) for id in two)
    going.tell(frame(0), frame(1))
    over.tell(frame(0), frame(1), last=True)
    assert not await log.flush()
    going.tell(frame(2), last=True)
    assert await log.flush()
    for told, last in ((going, 2), (over, 1)):
        events = (await running.read(tenant_id, told.journal.response_id, -1)).events
        assert [(event["sequence_number"], event[GAP]["after"]) for event in events] == [(last, -1)]


async def test_the_writer_outlives_an_error_that_nobody_foresaw(
    database: Database, running: RunningStore, tenant_id: UUID, two: tuple[str, str]
) -> None:
    class Broken(EventLog):
        broke = False

        async def _store_waiting(self) -> bool:
            if not self.broke:
                self.broke = True
                raise RuntimeError("unforeseen")
            return await super()._store_waiting()

    log = Broken(running, WORKER)
    log.start(Supervisor())
    Told(log, tenant_id, two[0]).tell(frame(0), last=True)
    while not (await running.read(tenant_id, two[0], -1)).sealed:
        pass  # the test's own time limit ends this
    await log.close()
    assert log.broke


@pytest.mark.parametrize(
    "error", [asyncpg.UniqueViolationError, asyncpg.CheckViolationError, asyncpg.SyntaxOrAccessError]
)
def test_what_would_fail_again_is_not_taken_for_a_database_that_is_away(error: type[Exception]) -> None:
    assert not issubclass(error, DATABASE_AWAY)
