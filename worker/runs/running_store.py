"""Responses while they are made: their events, the worker that makes them, and their end.

The events of a response are its numbered wire events, kept in batches. Whoever follows one is told by NOTIFY that there
is more to read: the payload is `news` and the response's id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from agents.errors import NotFound
from agents.message import Item
from agents.payload import from_payload, to_payload
from agents.store.conversations import append_items
from agents.store.responses import ResponseRecord
from migrations.pool import Database

if TYPE_CHECKING:
    from migrations.pool import Connection

CHANNEL = "firsttoken_responses"
NEWS = "news"

WireEvent: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """Neighbouring events of one response. `last`: nothing follows, the response belongs to no worker any more."""

    response_id: str
    events: Sequence[bytes]  # JSON, as it was sent
    number: int  # of the last one
    last: bool = False

    @property
    def payload(self) -> str:
        return (b'{"events":[%b]}' % b",".join(self.events)).decode()


@dataclass(frozen=True, slots=True)
class Chapter:
    """Events that follow a number. `body` is the response as it is; when `sealed`, no more events will come.

    `last_type` is the type of the last event stored so far, which need not be among these.
    """

    events: tuple[WireEvent, ...]
    body: dict[str, Any]
    sealed: bool
    last_type: str | None


@dataclass(frozen=True, slots=True)
class Taken:
    """A response in the hands of a worker. Whoever changes it makes sure that it still is: another one may make it."""

    tenant_id: UUID
    response_id: str
    worker: int


class RunningStore:
    """Every method sees the rows of `tenant_id` only; those without a tenant are the housekeeping for all.

    Whoever names a worker changes nothing of a response that is not in its hands: one that was taken for dead comes
    too late, whatever it has made.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, tenant_id: UUID, record: ResponseRecord, worker: int) -> None:
        """Store a response that this worker starts to make, before anybody is told of it.

        Does not wait for the disk, because a first token would: the events and the end that follow do, and they take
        this row along. A server that crashes in between loses a beginning, and the end then cannot be stored and is
        told as a failure.
        """
        async with self._database.tenant(tenant_id) as connection:
            await connection.execute("set local synchronous_commit = off")
            await connection.execute(
                """insert into responses (tenant_id, id, conversation_id, previous_response_id, status, created_at,
                                          input, body, worker)
                   values ($1, $2, $3, $4, $5, $6, $7, $8, $9)""",
                tenant_id,
                record.id,
                record.conversation_id,
                record.previous_response_id,
                record.status,
                record.created_at,
                [to_payload(item) for item in record.input],
                record.body,
                worker,
            )

    async def append(self, tenant_id: UUID, batches: Sequence[Batch], worker: int) -> None:
        """Add events of responses that this worker makes; those of one that was deleted meanwhile are nobody's."""
        written = [batch for batch in batches if batch.events]
        async with self._database.tenant(tenant_id) as connection:
            await connection.execute(
                """insert into response_events (tenant_id, response_id, sequence_number, payload)
                   select $1, r.id, new.number, new.events::jsonb
                   from unnest($2::text[], $3::integer[], $4::text[]) as new (id, number, events)
                   join responses r on r.tenant_id = $1 and r.id = new.id and r.worker = $5
                   for key share of r
                   on conflict do nothing""",
                tenant_id,
                [batch.response_id for batch in written],
                [batch.number for batch in written],
                [batch.payload for batch in written],
                worker,
            )
            ended = [batch.response_id for batch in batches if batch.last]
            if ended:
                await connection.execute(
                    "update responses set worker = null where tenant_id = $1 and id = any($2) and worker = $3",
                    tenant_id,
                    ended,
                    worker,
                )
            await tell_news(connection, *(batch.response_id for batch in batches))

    async def read(self, tenant_id: UUID, response_id: str, after: int) -> Chapter:
        """The events after this number. Raises NotFound."""
        async with self._database.tenant(tenant_id) as connection:
            row = await connection.fetchrow(  # first: what is sealed now has all its events below
                """select body, worker is null and status <> 'queued' as sealed,
                          (select payload->'events'->-1->>'type' from response_events
                           where tenant_id = $1 and response_id = $2
                           order by sequence_number desc limit 1) as last_type
                   from responses where tenant_id = $1 and id = $2""",
                tenant_id,
                response_id,
            )
            if row is None:
                raise NotFound("response", response_id)
            rows = await connection.fetch(
                """select payload from response_events
                   where tenant_id = $1 and response_id = $2 and sequence_number > $3 order by sequence_number""",
                tenant_id,
                response_id,
                after,
            )
        events = (event for row in rows for event in row["payload"]["events"])
        new = tuple(event for event in events if event["sequence_number"] > after)
        return Chapter(new, row["body"], row["sealed"], row["last_type"])

    async def finish(self, tenant_id: UUID, record: ResponseRecord, worker: int) -> None:
        """Store how a response ended and, when it belongs to a conversation, append its items there: all or nothing.

        Raises NotFound when the response or the conversation was deleted meanwhile, or is not this worker's any more.
        """
        async with self._database.tenant(tenant_id) as connection:
            body = {**record.body, "output": [to_payload(item) for item in record.output]}
            updated = await connection.fetchval(
                """update responses set status = $3, completed_at = $4, body = $5
                   where tenant_id = $1 and id = $2 and worker = $6 returning id""",
                tenant_id,
                record.id,
                record.status,
                record.completed_at,
                body,
                worker,
            )
            if updated is None:
                raise NotFound("response", record.id)
            if record.conversation_id is not None:
                items = (*record.input, *record.output)
                await append_items(connection, tenant_id, record.conversation_id, items, record.id)

    async def abandoned(self) -> list[Taken]:
        """Every response whose worker is gone."""
        async with self._database.anonymous() as connection:
            rows = await connection.fetch("select tenant_id, id, worker from abandoned_responses()")
        return [Taken(row["tenant_id"], row["id"], row["worker"]) for row in rows]

    async def give_up(self, taken: Taken, error: Mapping[str, Any], output: Sequence[Item]) -> None:
        """End a response that nobody makes any more: as failed, unless it had ended and only its events were missing.

        What was said stays in the conversation. Nothing happens when somebody else has seen to it.
        """
        tenant_id, response_id = taken.tenant_id, taken.response_id
        failed = {"status": "failed", "error": dict(error), "output": [to_payload(item) for item in output]}
        async with self._database.tenant(tenant_id) as connection:
            await connection.execute(
                """update responses set worker = null
                   where tenant_id = $1 and id = $2 and worker = $3 and completed_at is not null""",
                tenant_id,
                response_id,
                taken.worker,
            )
            row = await connection.fetchrow(
                """update responses set worker = null, status = 'failed', completed_at = now(), body = body || $3::jsonb
                   where tenant_id = $1 and id = $2 and worker = $4
                   returning input, (select c.id from conversations c
                              where c.tenant_id = $1 and c.id = responses.conversation_id) as conversation_id""",
                tenant_id,
                response_id,
                failed,
                taken.worker,
            )
            if row is not None and row["conversation_id"] is not None:
                items = (*map(from_payload, row["input"]), *output)
                await append_items(connection, tenant_id, row["conversation_id"], items, response_id)
            await tell_news(connection, response_id)

    async def forget(self, days: float) -> None:
        """Delete the events of responses that ended longer ago; the responses themselves stay."""
        async with self._database.anonymous() as connection:
            await connection.execute("select forget_response_events($1)", timedelta(days=days))


async def tell_news(connection: Connection, *response_ids: str) -> None:
    """To those who follow these responses, once the transaction is done."""
    await connection.execute(
        "select pg_notify($1, news) from unnest($2::text[]) as news", CHANNEL, [f"{NEWS} {id}" for id in response_ids]
    )
