"""Responses in progress: their events, the worker that owns them, and their end.

The events of a response are its numbered wire events, stored in batches. Followers are notified of new events by
NOTIFY: the payload is `news` and the response's id.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import orjson
from asyncpg import NoDataFoundError

from agents.errors import NotFound, TurnOver
from agents.payload import from_payload, to_payload
from agents.store.conversations import append_items
from agents.store.responses import ResponseRecord
from migrations.pool import Act, Connection, Database
from worker.database import BATCH_MAX, GroupCommit
from worker.runs.continuation import (
    Batch,
    InterruptedResponse,
    ResponseEnd,
    batch_rows,
    beginning_row,
    closing_events,
    completed_items,
    ended_body,
    ending_row,
    events_after,
    rebuilt_items,
)
from worker.runs.steering_store import KEPT, SUCCESSOR, SaidMeanwhile, Successor, take_successor
from worker.wire import events as wire
from worker.wire.events import WireEvent

if TYPE_CHECKING:
    import asyncpg

CHANNEL = "firsttoken_responses"
NEWS = "news"
QUEUED = "queued"  # the payload by which workers are notified of a queued response
APPEND = "append_response_events"  # raises where the worker does not own one of the responses
# Of events in one statement, of which Postgres holds several copies in memory: more than all streams of a worker send
# in a moment.
AT_ONCE_BYTES_MAX = 4 * 2**20
ENDING_BYTES_MAX = AT_ONCE_BYTES_MAX // BATCH_MAX  # of one that is stored together with others


class Row(NamedTuple):
    """The beginning or the end of a response, in JSON."""

    json: bytes
    worker: int


@dataclass(frozen=True, slots=True)
class EventPage:
    """The stored events after a sequence number, as they can be sent. `body` is the present response; if `sealed`, no
    more events will come. `expired`: the events were deleted.
    """

    events: tuple[WireEvent, ...]
    body: dict[str, Any]
    sealed: bool
    expired: bool


class OwnedResponse(NamedTuple):
    """A response that a worker owns. Every change checks that it still does: another worker may have taken it over."""

    tenant_id: UUID
    response_id: str
    worker: int


class NoCapacity(Exception):
    """A response can be resumed, but has to wait for capacity."""


class RunningStore:
    """Every method sees only the rows of `tenant_id`; methods without a tenant are housekeeping for all.

    Methods with a `worker` change only responses that it owns: a worker that was considered dead comes too late,
    whatever it has generated.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._beginnings = GroupCommit(partial(self._store_all, "begin_responses", durable=False))
        self._endings = GroupCommit(partial(self._store_all, "end_responses", durable=True))

    async def begin(self, tenant_id: UUID, record: ResponseRecord, worker: int) -> None:
        """Store a response that this worker begins, before any event is sent. Idempotent.

        The commit does not wait for the disk, because the first token would; the commits of events and of the end do,
        and flush this row too. If Postgres crashes in between, the row is lost and stored again. Raises NotFound when
        another worker owns the response, or it has ended.
        """
        try:
            await self._beginnings.put(tenant_id, Row(orjson.dumps(beginning_row(record)), worker))
        except NoDataFoundError:
            raise NotFound("response", record.id) from None

    async def _store_all(self, act: str, tenant_id: UUID, rows: Sequence[Row], *, durable: bool) -> None:
        """In one round trip. Raises NoDataFoundError where the worker does not own one of the responses, or one needs
        more than this."""
        payload = b"[%b]" % b",".join([row.json for row in rows])
        await self._database.carry_out([Act(act, tenant_id, payload, rows[0].worker)], durable=durable)

    async def withdraw(self, tenant_id: UUID, response_id: str, worker: int) -> None:
        """Remove a response of which no event was sent, once it is stored or cannot be any more. Not one that goes on
        with what was said to another: its client knows it."""
        await self._beginnings.settled(tenant_id)
        async with self._database.tenant(tenant_id) as connection:
            await connection.execute(
                """delete from responses r where tenant_id = $1 and id = $2 and worker = $3 and completed_at is null
                   and not exists (select from response_events e where e.tenant_id = $1 and e.response_id = r.id)
                   and not exists (select from responses b where b.tenant_id = $1 and b.body->>$4 = r.id
                                   and (b.id = r.previous_response_id or b.conversation_id = r.conversation_id))""",
                tenant_id,
                response_id,
                worker,
                SUCCESSOR,
            )

    async def append_all(
        self, by_tenant: Mapping[UUID, Sequence[Batch]], worker: int, followed: Collection[str] = ()
    ) -> bool:
        """Append events of responses that this worker owns, in one transaction and one round trip. False, without any
        change, where it does not own one any more: a response may have been deleted, or taken over by another worker.

        Followers at other workers are notified of responses that are `followed`, and of every end.
        """
        acts = [
            Act(APPEND, tenant_id, batch_rows(batches, followed), worker)
            for tenant_id, batches in sorted(by_tenant.items())
        ]
        try:
            await self._database.carry_out(acts)
        except NoDataFoundError:
            return False
        return True

    async def append(self, tenant_id: UUID, batch: Batch, worker: int, *, followed: bool = False) -> bool:
        """Like `append_all` for one response, which may have another end than the one that was stored before."""
        announced = [batch.response_id] if followed else []
        if batch.end is None:
            return await self.append_all({tenant_id: [batch]}, worker, announced)
        try:
            async with self._database.tenant(tenant_id) as connection:
                await _end_otherwise(connection, tenant_id, batch, batch.end)
                await _append(connection, tenant_id, batch, worker, announced)
        except NoDataFoundError:
            return False
        return True

    async def read(self, tenant_id: UUID, response_id: str, after: int) -> EventPage:
        """The events after this number. Raises NotFound."""
        async with self._database.tenant(tenant_id) as connection:
            row = await connection.fetchrow(  # read first: if it is sealed now, the next query reads all its events
                """select body, worker is null and status <> 'queued' as sealed,
                          not exists (select from response_events where tenant_id = $1 and response_id = $2) as silent
                   from responses where tenant_id = $1 and id = $2""",
                tenant_id,
                response_id,
            )
            if row is None:
                raise NotFound("response", response_id)
            events = await _events(connection, tenant_id, response_id, after)
        sendable, sealed = events_after(events, after, sealed=row["sealed"]), row["sealed"]
        return EventPage(sendable, row["body"], sealed, sealed and row["silent"] and not sendable)

    async def is_in_hand(self, tenant_id: UUID, response_id: str) -> bool:
        """Whether it is there, and not in the hands of a worker that is lost: another one will resume it or end it."""
        async with self._database.tenant(tenant_id) as connection:
            found = await connection.fetchval(
                """select completed_at is not null or worker is null or worker_lives(worker)
                   from responses where tenant_id = $1 and id = $2""",
                tenant_id,
                response_id,
            )
        return bool(found)

    async def finish(self, tenant_id: UUID, record: ResponseRecord, worker: int, events: Batch) -> Successor | None:
        """Store the end of a response with all its events and, when it belongs to a conversation, append its items
        there, in one transaction. Idempotent. Returns what goes on with what was said to it meanwhile.

        Raises NotFound when the response or the conversation was deleted, or this worker does not own it any more, and
        SaidMeanwhile when its body does not name what goes on.
        """
        if record.conversation_id is None:
            row = Row(ending_row(record, events), worker)
            if len(row.json) <= ENDING_BYTES_MAX:
                with suppress(NoDataFoundError):  # it was deleted, or something was said to it
                    await self._endings.put(tenant_id, row)
                    return None
        async with self._database.tenant(tenant_id) as connection:
            ended = await _store_end(connection, tenant_id, record, worker)
            if ended is None:
                raise NotFound("response", record.id)
            if SUCCESSOR in ended["body"] and SUCCESSOR not in record.body:
                raise SaidMeanwhile(ended["body"][SUCCESSOR])
            await _append(connection, tenant_id, events, worker, ())
            if record.remembered and ended["ended_before"] is None:
                await _insert_turns(connection, tenant_id, record)
            if record.conversation_id is not None and ended["ended_before"] is None:
                items = (*record.input, *record.output)
                await append_items(connection, tenant_id, record.conversation_id, items, record.id)
            return await take_successor(connection, tenant_id, ended["body"], worker)

    async def generated_turns(self, tenant_id: UUID, digests: Sequence[bytes]) -> list[tuple[bytes, tuple[int, ...]]]:
        """The exact tokens of these turns, as far as they are stored."""
        async with self._database.tenant(tenant_id) as connection:
            rows = await connection.fetch(
                "select digest, tokens from generated_turns where tenant_id = $1 and digest = any($2::bytea[])",
                tenant_id,
                list(digests),
            )
        return [(row["digest"], tuple(array("I", row["tokens"]))) for row in rows]

    async def be_janitor(self, asker: int) -> bool:
        """Whether this worker is the janitor, which recovers the responses of lost workers."""
        async with self._database.anonymous() as connection:
            return bool(await connection.fetchval("select be_janitor($1)", asker))

    async def abandoned(self, asker: int, *, of_others: bool) -> list[OwnedResponse]:
        """The responses that are owned by this worker, which knows the ones that it runs. `of_others`: also those of
        lost workers."""
        rows = await self._database.fetch(
            "select tenant_id, id, worker from abandoned_responses($1, $2)", asker, of_others
        )
        return [OwnedResponse(*row) for row in rows]

    async def adopt(self, taken: OwnedResponse, worker: int, *, has_room: bool) -> InterruptedResponse | None:
        """Take over an unfinished response of a lost worker, to resume it. None: it has ended, or another worker has
        taken it over.

        Raises CannotResume, and NoCapacity where it could be resumed but for that; both change nothing.
        """
        tenant_id, response_id, _ = taken
        async with self._database.tenant(tenant_id) as connection:
            makers = await connection.fetchval(
                """update responses set worker = $4, makers = makers + 1
                   where tenant_id = $1 and id = $2 and worker = $3 and completed_at is null returning makers - 1""",
                *(*taken, worker),
            )
            if makers is None:
                return None
            rows = await connection.fetch(
                """select payload from response_events where tenant_id = $1 and response_id = $2
                   order by sequence_number""",
                tenant_id,
                response_id,
            )
            interrupted = InterruptedResponse.read([row["payload"] for row in rows], makers)
            if not has_room:
                raise NoCapacity
            return interrupted

    async def end_silent(self, silent_s: float) -> None:
        """Terminate the connections of workers that own responses and have been silent for so long: they hang, and
        their responses are released by this."""
        await self._database.fetch("select end_silent_workers($1)", timedelta(seconds=silent_s))

    async def give_up(self, taken: OwnedResponse, error: Mapping[str, Any]) -> None:
        """End a response that no worker runs any more, and its successor: as failed, unless it had ended and only its
        events were missing.

        Its output stays in the conversation, and a terminal event is stored. Idempotent.
        """
        tenant_id, response_id, _ = taken
        async with self._database.tenant(tenant_id) as connection:
            row = await connection.fetchrow(
                """update responses set worker = null
                   where tenant_id = $1 and id = $2 and worker = $3
                   returning input, body, completed_at, (select c.id from conversations c
                              where c.tenant_id = $1 and c.id = responses.conversation_id) as conversation_id""",
                *taken,
            )
            if row is not None and row["completed_at"] is None:
                stored = events_after(await _events(connection, tenant_id, response_id, -1), -1, sealed=True)
                said = completed_items(rebuilt_items(stored))
                output = [to_payload(item) for item in said]
                ended = {**row["body"], "status": "failed", "error": dict(error), "output": output}
                await connection.execute(
                    """update responses set status = 'failed', completed_at = now(), body = $3
                       where tenant_id = $1 and id = $2""",
                    tenant_id,
                    response_id,
                    ended,
                )
                events = closing_events(row["body"], ended, stored)
                await add_events(connection, tenant_id, response_id, events)
                if row["conversation_id"] is not None:
                    items = (*map(from_payload, row["input"]), *said)
                    await append_items(connection, tenant_id, row["conversation_id"], items, response_id)
                await _fail_successor(connection, tenant_id, ended)
            await notify_readers(connection, response_id)

    async def forget(self, days: float) -> None:
        """Delete the events of responses that ended longer ago; the responses themselves are kept."""
        await self._database.fetch("select forget_response_events($1)", timedelta(days=days))


async def end_unstarted(connection: Connection, tenant_id: UUID, response_id: str, end: Mapping[str, Any]) -> None:
    """End a response of which nothing was generated: as cancelled, without a terminal event, or as failed. Idempotent.
    What was said to it has failed then, and what was said to that."""
    while True:
        row = await connection.fetchrow(
            """update responses set status = $3, worker = null, completed_at = now(), body = body || $4::jsonb
               where tenant_id = $1 and id = $2 and completed_at is null
               returning body, (select coalesce(max(sequence_number) + 1, 0) from response_events
                                where tenant_id = $1 and response_id = $2) as number""",
            tenant_id,
            response_id,
            end["status"],
            end,
        )
        if row is None:
            return
        body, number = row["body"], row["number"]
        if end["status"] == "failed":
            events = [wire.response("failed", body)]
            if number == 0:
                events.insert(0, wire.response("created", {**body, "status": "queued", "error": None}))
            numbered = [{**event, "sequence_number": n} for n, event in enumerate(events, number)]
            await add_events(connection, tenant_id, response_id, numbered)
        await notify_readers(connection, response_id)
        if SUCCESSOR not in body:
            return
        response_id, end = body[SUCCESSOR], _end_of_successor(body)


def _end_of_successor(body: Mapping[str, Any]) -> dict[str, Any]:
    """Of the response with this body, which has ended and cannot be gone on with."""
    over = TurnOver(body["id"])
    return {"status": "failed", "error": body["error"] or {"code": over.code, "message": str(over)}}


async def _fail_successor(connection: Connection, tenant_id: UUID, body: Mapping[str, Any]) -> None:
    if SUCCESSOR in body:
        await end_unstarted(connection, tenant_id, body[SUCCESSOR], _end_of_successor(body))


async def notify_readers(connection: Connection, *response_ids: str) -> None:
    """To those who follow these responses, once the transaction is done."""
    await connection.execute(
        "select pg_notify($1, news) from unnest($2::text[]) as news", CHANNEL, [f"{NEWS} {id}" for id in response_ids]
    )


async def add_events(connection: Connection, tenant_id: UUID, response_id: str, events: Sequence[WireEvent]) -> None:
    """Keep numbered events, as one batch."""
    await connection.execute(
        """insert into response_events (tenant_id, response_id, sequence_number, payload) values ($1, $2, $3, $4)
           on conflict do nothing""",
        tenant_id,
        response_id,
        events[-1]["sequence_number"],
        {"events": list(events)},
    )


async def _append(
    connection: Connection, tenant_id: UUID, batch: Batch, worker: int, followed: Collection[str]
) -> None:
    """In the transaction of something else. Raises NoDataFoundError where the worker does not own the response."""
    rows = batch_rows([batch], followed).decode()
    await connection.execute(f"select {APPEND}($1, $2::text::jsonb, $3)", tenant_id, rows, worker)


async def _insert_turns(connection: Connection, tenant_id: UUID, record: ResponseRecord) -> None:
    await connection.execute(
        """insert into generated_turns (tenant_id, digest, response_id, tokens)
           select $1, digest, $2, tokens from unnest($3::bytea[], $4::bytea[]) as new (digest, tokens)
           on conflict do nothing""",
        tenant_id,
        record.id,
        [digest for digest, _ in record.remembered],
        [array("I", tokens).tobytes() for _, tokens in record.remembered],
    )


async def _events(connection: Connection, tenant_id: UUID, response_id: str, after: int) -> list[WireEvent]:
    """Those of all batches that end after this number: batches may overlap, and begin before it."""
    rows = await connection.fetch(
        """select payload from response_events
           where tenant_id = $1 and response_id = $2 and sequence_number > $3 order by sequence_number""",
        tenant_id,
        response_id,
        after,
    )
    return [event for row in rows for event in row["payload"]["events"]]


async def _store_end(
    connection: Connection, tenant_id: UUID, record: ResponseRecord, worker: int
) -> asyncpg.Record | None:
    """None when it is not this worker's. `ended_before` is when it had ended, if it had."""
    return await connection.fetchrow(
        f"""update responses set status = $3, completed_at = $4, body = {KEPT} || $5
           where tenant_id = $1 and id = $2 and worker = $6
           returning body, (select before.completed_at from responses before
                      where before.tenant_id = $1 and before.id = $2) as ended_before""",
        tenant_id,
        record.id,
        record.status,
        record.completed_at,
        ended_body(record),
        worker,
    )


async def _end_otherwise(connection: Connection, tenant_id: UUID, batch: Batch, end: ResponseEnd) -> None:
    """What was told is what stands: another end may have been stored, by a COMMIT whose answer was lost."""
    record = end.record
    body = await connection.fetchval(
        f"""update responses set status = $3, completed_at = $4, body = {KEPT} || $5
            where tenant_id = $1 and id = $2 returning body""",
        tenant_id,
        record.id,
        record.status,
        record.completed_at,
        ended_body(record),
    )
    await connection.execute(
        "delete from response_events where tenant_id = $1 and response_id = $2 and sequence_number > $3",
        tenant_id,
        record.id,
        batch.number - len(batch.frames),
    )
    await connection.execute(
        "delete from queued_responses where tenant_id = $1 and response_id = $2", tenant_id, record.id
    )
    if body is not None:  # it was not deleted meanwhile
        await _fail_successor(connection, tenant_id, body)
    if record.conversation_id is None:
        return
    await connection.execute(
        "delete from items where tenant_id = $1 and conversation_id = $2 and response_id = $3",
        tenant_id,
        record.conversation_id,
        record.id,
    )
    if end.kept:
        with suppress(NotFound):  # the conversation was deleted meanwhile
            items = (*record.input, *record.output)
            await append_items(connection, tenant_id, record.conversation_id, items, record.id)
