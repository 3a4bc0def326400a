"""The queue of background responses: from waiting for a worker to being in progress, and back.

A row of the queue means that the response may be started, or restarted when its worker died. `settle` removes it before
the first event of the answer is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from agents.errors import NotFound, TooManyQueued
from agents.payload import to_payload
from agents.store.responses import ResponseRecord
from inference.generation import Priority
from migrations.pool import Connection, Database
from worker.runs.running_store import CHANNEL, QUEUED, OwnedResponse, add_events, end_unstarted
from worker.runs.steering_store import KEPT
from worker.wire.events import WireEvent

TENANT_QUEUED_MAX = 100  # about an hour of answers; clients should keep larger backlogs on their side
ATTEMPTS_MAX = 3  # a response that has crashed three workers would crash a fourth


@dataclass(frozen=True, slots=True)
class Job:
    """What is needed to start a response: the body of its request without the input, the caller and the dialect. Those
    of a higher class are started first."""

    request: Mapping[str, Any]
    caller: Mapping[str, str]
    priority: Priority


class QueueStore:
    """Every method sees only the rows of `tenant_id`, except `take`, which is for all tenants."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(
        self, tenant_id: UUID, record: ResponseRecord, job: Job, events: Sequence[WireEvent], *, tell: bool = True
    ) -> None:
        """Queue a response with its events so far, and notify the workers if `tell`. Idempotent. Raises TooManyQueued.

        Concurrent requests may exceed the limit together, by as many as there are connections.
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
                job.priority,
                job.request,
                job.caller,
            )
            if tell:
                await _notify_workers(connection)

    async def notify_workers(self) -> None:
        """Notify the workers that a response may be waiting."""
        async with self._database.anonymous() as connection:
            await _notify_workers(connection)

    async def take(self, worker: int) -> OwnedResponse | None:
        """Take a response, which this worker owns from now on; None when the queue is empty."""
        rows = await self._database.fetch("select tenant_id, id from take_queued_response($1)", worker)
        return OwnedResponse(rows[0]["tenant_id"], rows[0]["id"], worker) if rows else None

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
        return Job(row["request"], row["caller"], Priority(row["class"]))

    async def begin(self, taken: OwnedResponse, body: Mapping[str, Any]) -> None:
        """Mark the response as in progress; no event is sent yet. Raises NotFound also when another worker owns it."""
        async with self._database.tenant(taken.tenant_id) as connection:
            begun = await connection.fetchval(
                f"""update responses set status = 'in_progress', body = {KEPT} || $4
                   where tenant_id = $1 and id = $2 and worker = $3 returning true""",
                *(*taken, body),
            )
        if not begun:
            raise NotFound("response", taken.response_id)

    async def settle(self, taken: OwnedResponse) -> None:
        """An event will be sent: the response cannot be restarted. Raises NotFound when another worker owns it."""
        async with self._database.tenant(taken.tenant_id) as connection:
            if not await _hold(connection, taken):
                raise NotFound("response", taken.response_id)
            await _remove(connection, taken)

    async def put_back(self, taken: OwnedResponse, *, died: bool) -> bool:
        """Put it back for another worker; False where it cannot be restarted: events were sent, or it has had all its
        attempts. True without a change when another worker owns it already.

        `died`: its worker is lost; a worker that had no capacity for it does not count as an attempt.
        """
        async with self._database.tenant(taken.tenant_id) as connection:
            if not await _hold(connection, taken):  # another worker has done so
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
            await _notify_workers(connection)
        return True

    async def cancel(self, tenant_id: UUID, response_id: str) -> bool:
        """Cancel a response that no worker has taken. Whether there was one."""
        async with self._database.tenant(tenant_id) as connection:
            removed = await connection.fetchval(
                """delete from queued_responses where tenant_id = $1 and response_id = $2 and not taken
                   returning true""",
                tenant_id,
                response_id,
            ) or await connection.fetchval(  # one that waits for the end of the response before it
                """select true from responses r where tenant_id = $1 and id = $2 and status = 'queued' and not exists (
                       select from queued_responses q where q.tenant_id = $1 and q.response_id = $2) for update""",
                tenant_id,
                response_id,
            )
            if removed:
                await end_unstarted(connection, tenant_id, response_id, {"status": "cancelled"})
        return bool(removed)

    async def fail(self, taken: OwnedResponse, error: Mapping[str, Any]) -> None:
        """End a response that could not be started."""
        async with self._database.tenant(taken.tenant_id) as connection:
            if await _hold(connection, taken):
                await _remove(connection, taken)
                failed = {"status": "failed", "error": dict(error)}
                await end_unstarted(connection, taken.tenant_id, taken.response_id, failed)


async def _hold(connection: Connection, taken: OwnedResponse) -> bool:
    """Lock it for its worker until the end of the transaction. Whether that worker owns it."""
    return bool(
        await connection.fetchval(
            "select true from responses where tenant_id = $1 and id = $2 and worker = $3 for update", *taken
        )
    )


async def _remove(connection: Connection, taken: OwnedResponse) -> None:
    await connection.execute(
        "delete from queued_responses where tenant_id = $1 and response_id = $2", taken.tenant_id, taken.response_id
    )


async def _notify_workers(connection: Connection) -> None:
    await connection.execute("select pg_notify($1, $2)", CHANNEL, QUEUED)
