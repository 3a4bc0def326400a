"""Responses that wait for a worker, and the way from there to a response in the making and back.

A row of the queue means that the response may be begun, also again when its worker died. `settle` removes it before
something of the answer is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from agents.errors import NotFound, TooManyQueued
from agents.payload import to_payload
from agents.store.responses import ResponseRecord
from migrations.pool import Database
from worker.runs.running_store import CHANNEL, OwnedResponse, add_events, notify_readers
from worker.wire import events as wire
from worker.wire.events import WireEvent

if TYPE_CHECKING:
    from migrations.pool import Connection

QUEUED = "queued"  # what workers are told when there is something to take
TENANT_QUEUED_MAX = 100  # an hour or so of answers; who has more to ask keeps it better on their side
ATTEMPTS_MAX = 3  # what took three workers along would take a fourth


@dataclass(frozen=True, slots=True)
class Job:
    """What is needed to begin a response: the body of its request without the input, and who asked in which dialect.

    Lower ranks are begun first.
    """

    request: Mapping[str, Any]
    caller: Mapping[str, str]
    rank: int


class QueueStore:
    """Every method sees the rows of `tenant_id` only, except `take`, which is for all."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(
        self, tenant_id: UUID, record: ResponseRecord, job: Job, events: Sequence[WireEvent], *, tell: bool = True
    ) -> None:
        """Store a response that somebody is to make, with the events told so far, and `tell` the workers. Once, however
        often. Raises TooManyQueued.

        Requests of the same moment may pass the limit together, by as many as there are connections.
        """
        async with self._database.tenant(tenant_id) as connection:
            if await connection.fetchval("select count(*) from queued_responses") >= TENANT_QUEUED_MAX:
                raise TooManyQueued(TENANT_QUEUED_MAX)
            added = await connection.fetchval(
                """insert into responses (tenant_id, id, conversation_id, previous_response_id, status, created_at,
                                          input, body)
                   values ($1, $2, $3, $4, 'queued', $5, $6, $7) on conflict do nothing returning true""",
                tenant_id,
                record.id,
                record.conversation_id,
                record.previous_response_id,
                record.created_at,
                [to_payload(item) for item in record.input],
                record.body,
            )
            if not added:
                return
            await add_events(connection, tenant_id, record.id, events)
            await connection.execute(
                """insert into queued_responses (tenant_id, response_id, class, request, caller)
                   values ($1, $2, $3, $4, $5)""",
                tenant_id,
                record.id,
                job.rank,
                job.request,
                job.caller,
            )
            if tell:
                await _tell_workers(connection)

    async def notify_workers(self) -> None:
        """Something may wait."""
        async with self._database.anonymous() as connection:
            await _tell_workers(connection)

    async def take(self, worker: int) -> OwnedResponse | None:
        """A response that this worker makes from now on; None when nothing waits."""
        async with self._database.anonymous() as connection:
            row = await connection.fetchrow("select tenant_id, id from take_queued_response($1)", worker)
        return OwnedResponse(row["tenant_id"], row["id"], worker) if row else None

    async def job(self, tenant_id: UUID, response_id: str) -> Job:
        """Raises NotFound."""
        async with self._database.tenant(tenant_id) as connection:
            row = await connection.fetchrow(
                "select request, caller, class from queued_responses where tenant_id = $1 and response_id = $2",
                tenant_id,
                response_id,
            )
        if row is None:
            raise NotFound("response", response_id)
        return Job(row["request"], row["caller"], row["class"])

    async def begin(self, taken: OwnedResponse, body: Mapping[str, Any]) -> None:
        """The answer is being made; nothing of it is told yet. Raises NotFound when it is in other hands, too."""
        async with self._database.tenant(taken.tenant_id) as connection:
            begun = await connection.fetchval(
                """update responses set status = 'in_progress', body = $3
                   where tenant_id = $1 and id = $2 and worker = $4 returning id""",
                taken.tenant_id,
                taken.response_id,
                body,
                taken.worker,
            )
        if begun is None:
            raise NotFound("response", taken.response_id)

    async def settle(self, taken: OwnedResponse) -> None:
        """Something of the answer will be told: it cannot be begun again. Raises NotFound when it is in other hands."""
        async with self._database.tenant(taken.tenant_id) as connection:
            if not await _hold(connection, taken):
                raise NotFound("response", taken.response_id)
            await _remove(connection, taken)

    async def put_back(self, taken: OwnedResponse, *, died: bool) -> bool:
        """Let another worker begin it; False when that is over: answered in part, or tried often enough. True without
        a change when it is in other hands already.

        `died`: its worker did not come back; a worker that had no place for it does not count as an attempt.
        """
        async with self._database.tenant(taken.tenant_id) as connection:
            if not await _hold(connection, taken):  # somebody has seen to it
                return True
            waits = await connection.fetchval(
                """update queued_responses set taken = false, attempts = attempts - $3
                   where tenant_id = $1 and response_id = $2 and attempts - $3 < $4 returning true""",
                taken.tenant_id,
                taken.response_id,
                0 if died else 1,
                ATTEMPTS_MAX,
            )
            if not waits:
                await _remove(connection, taken)
                return False
            await connection.execute(
                """update responses set status = 'queued', worker = null, body = body || '{"status": "queued"}'
                   where tenant_id = $1 and id = $2""",
                taken.tenant_id,
                taken.response_id,
            )
            await _tell_workers(connection)
        return True

    async def cancel(self, tenant_id: UUID, response_id: str) -> bool:
        """End a response that nobody has taken; whether it was one."""
        async with self._database.tenant(tenant_id) as connection:
            removed = await connection.fetchval(
                """delete from queued_responses where tenant_id = $1 and response_id = $2 and not taken
                   returning true""",
                tenant_id,
                response_id,
            )
            if removed:
                await _end(connection, tenant_id, response_id, {"status": "cancelled"})
        return bool(removed)

    async def fail(self, taken: OwnedResponse, error: Mapping[str, Any]) -> None:
        """End a response that could not be begun."""
        async with self._database.tenant(taken.tenant_id) as connection:
            if await _hold(connection, taken):
                await _remove(connection, taken)
                failed = {"status": "failed", "error": dict(error)}
                await _end(connection, taken.tenant_id, taken.response_id, failed)


async def _hold(connection: Connection, taken: OwnedResponse) -> bool:
    """Keep it in the hands of its worker until the transaction ends; whether it was there."""
    return bool(
        await connection.fetchval(
            "select true from responses where tenant_id = $1 and id = $2 and worker = $3 for update",
            taken.tenant_id,
            taken.response_id,
            taken.worker,
        )
    )


async def _remove(connection: Connection, taken: OwnedResponse) -> None:
    await connection.execute(
        "delete from queued_responses where tenant_id = $1 and response_id = $2", taken.tenant_id, taken.response_id
    )


async def _end(connection: Connection, tenant_id: UUID, response_id: str, changes: Mapping[str, Any]) -> None:
    row = await connection.fetchrow(
        """update responses set status = $3, worker = null, completed_at = now(), body = body || $4::jsonb
           where tenant_id = $1 and id = $2
           returning body, (select max(sequence_number) from response_events
                            where tenant_id = $1 and response_id = $2) as number""",
        tenant_id,
        response_id,
        changes["status"],
        changes,
    )
    if row is not None and changes["status"] == "failed":  # the events of one that was cancelled just end
        event = wire.response("failed", row["body"]) | {"sequence_number": row["number"] + 1}
        await add_events(connection, tenant_id, response_id, [event])
    await notify_readers(connection, response_id)


async def _tell_workers(connection: Connection) -> None:
    await connection.execute("select pg_notify($1, $2)", CHANNEL, QUEUED)
