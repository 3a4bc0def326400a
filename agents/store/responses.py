"""Responses: their input and output, and the chain of previous responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from agents.errors import HistoryTooLong, InvalidTurn, NotFound
from agents.message import Item
from agents.payload import from_payload
from agents.store.conversations import items_of
from inference.frozen import dataclass
from migrations.pool import Connection, Database

CHAIN_RESPONSES_MAX = 1000  # a longer chain fits no context; the walk must terminate


@dataclass(frozen=True, slots=True)
class ResponseRecord:
    """`body` is the response object of the public contract, `input` and `output` the items of its turn."""

    id: str
    status: str
    body: dict[str, Any]
    created_at: datetime
    completed_at: datetime | None = None
    input: tuple[Item, ...] = ()
    output: tuple[Item, ...] = ()
    conversation_id: str | None = None
    previous_response_id: str | None = None
    remembered: tuple[tuple[bytes, tuple[int, ...]], ...] = ()  # exact tokens of its turns, by their digests


class ResponseStore:
    """Every method sees the rows of `tenant_id` only; ids that do not exist or belong to others raise NotFound."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, tenant_id: UUID, response_id: str) -> ResponseRecord:
        row = await self._database.row(
            tenant_id,
            """select id, status, body, created_at, completed_at, input, conversation_id, previous_response_id
               from responses where tenant_id = $1 and id = $2""",
            response_id,
        )
        if row is None:
            raise NotFound("response", response_id)
        return ResponseRecord(**{**row, "input": _items(row["input"]), "output": _items(row["body"]["output"])})

    async def delete(self, tenant_id: UUID, response_id: str) -> None:
        """Raises NotFound, and InvalidTurn while a worker makes it: that worker would consider it lost and store it
        again.
        """
        async with self._database.tenant(tenant_id) as connection:
            deleted = await connection.fetchval(
                "delete from responses where tenant_id = $1 and id = $2 and worker is null returning id",
                tenant_id,
                response_id,
            )
            is_made = not deleted and await connection.fetchval(
                "select true from responses where tenant_id = $1 and id = $2", tenant_id, response_id
            )
        if is_made:
            raise _still_generated(response_id)
        if deleted is None:
            raise NotFound("response", response_id)

    async def annotate(self, tenant_id: UUID, response_id: str, notes: Mapping[str, str | None]) -> None:
        """Set these keys of its metadata, or remove those that are None. Raises NotFound, and InvalidTurn while it is
        in progress: its final state would overwrite them.
        """
        kept = {key: value for key, value in notes.items() if value is not None}
        done = await self._database.value(
            tenant_id,
            """update responses
                  set body = case when completed_at is null then body else jsonb_set(body, '{metadata}',
                          (coalesce(nullif(body->'metadata', 'null'), '{}') - $3::text[]) || $4) end
                where tenant_id = $1 and id = $2 returning completed_at is not null""",
            *(response_id, list(notes), kept),
        )
        if done is None:
            raise NotFound("response", response_id)
        if not done:
            raise _still_generated(response_id)

    async def notes(
        self, tenant_id: UUID, response_ids: Sequence[str], keys: Sequence[str]
    ) -> dict[str, dict[str, str]]:
        """The values of these keys that `annotate` has set, by response; responses without any are left out."""
        rows = await self._database.rows(
            tenant_id,
            """select id, body->'metadata' as metadata from responses
               where tenant_id = $1 and id = any($2) and body->'metadata' ?| $3""",
            *(list(response_ids), list(keys)),
        )
        return {row["id"]: {key: row["metadata"][key] for key in keys if key in row["metadata"]} for row in rows}

    async def history(self, tenant_id: UUID, response_id: str) -> tuple[Item, ...]:
        """Everything up to and including this response, oldest first, by walking `previous_response_id`.

        A chain that starts inside a conversation includes the items of the conversation before it. Raises NotFound,
        also for a deleted link of the chain: skipping it would silently truncate the history. Raises InvalidTurn while
        the response runs.
        """
        async with self._database.tenant(tenant_id) as connection:
            rows = await connection.fetch(
                """with recursive chain as (
                       select id, previous_response_id, conversation_id, status, input, body->'output' as output,
                              1 as depth
                       from responses where tenant_id = $1 and id = $2
                       union all
                       select r.id, r.previous_response_id, r.conversation_id, r.status, r.input, r.body->'output',
                              depth + 1
                       from chain c join responses r on r.tenant_id = $1 and r.id = c.previous_response_id
                       where depth <= $3)
                   select id, previous_response_id, conversation_id, status, input, output
                   from chain order by depth desc""",
                tenant_id,
                response_id,
                CHAIN_RESPONSES_MAX,
            )
            if not rows:
                raise NotFound("response", response_id)
            if len(rows) > CHAIN_RESPONSES_MAX:
                raise HistoryTooLong(f"More than {CHAIN_RESPONSES_MAX} responses precede this one. Start a new chain.")
            if rows[-1]["status"] in ("queued", "in_progress"):
                message = f"The response '{response_id}' is still being generated: wait for it to finish, or cancel it."
                raise InvalidTurn(message, param="previous_response_id")
            first = rows[0]
            if first["previous_response_id"] is not None:
                raise NotFound("response", first["previous_response_id"])
            before = await _before(connection, tenant_id, first["conversation_id"], first["id"])
        turns = [payload for row in rows for payload in (*row["input"], *row["output"])]
        return await items_of([*before, *turns])


async def _before(
    connection: Connection, tenant_id: UUID, conversation_id: str | None, response_id: str
) -> list[dict[str, Any]]:
    """Payloads of the conversation before the response, on the path that leads to it."""
    if conversation_id is None:
        return []
    rows = await connection.fetch(
        """with recursive path as (
               (select parent from items
                where tenant_id = $1 and conversation_id = $2 and response_id = $3 order by position limit 1)
               union all
               select i.parent from path p join items i
                 on i.tenant_id = $1 and i.conversation_id = $2 and i.position = p.parent)
           select i.payload from path p join items i
             on i.tenant_id = $1 and i.conversation_id = $2 and i.position = p.parent
           order by i.position""",
        tenant_id,
        conversation_id,
        response_id,
    )
    return [row["payload"] for row in rows]


def _still_generated(response_id: str) -> InvalidTurn:
    message = f"The response '{response_id}' is still being generated: try again in a moment."
    return InvalidTurn(message, param=None)


def _items(payloads: Sequence[dict[str, Any]]) -> tuple[Item, ...]:
    return tuple(map(from_payload, payloads))


# Complete answers with their full context: the first of a conversation has none that is stored elsewhere.
ANSWERED = """
select r.id, r.input, r.body from responses r
 where r.tenant_id = $1 and r.status = 'completed' and r.previous_response_id is null
   and ($2::text is null or r.body->'metadata'->>'firsttoken:rating' = $2)
   and (r.conversation_id is null or not exists (
        select from responses before
         where before.tenant_id = r.tenant_id and before.conversation_id = r.conversation_id
           and (before.created_at, before.id) < (r.created_at, r.id)))
 order by r.created_at desc, r.id limit $3
"""


@dataclass(frozen=True, slots=True)
class Answered:
    """`input` are the items of the request, `body` is the response object."""

    id: str
    input: list[Mapping[str, Any]]
    body: Mapping[str, Any]


async def answered(database: Database, tenant_id: UUID, rating: str | None, limit: int) -> list[Answered]:
    """The newest of one tenant, of any rating or of one."""
    return [Answered(**row) for row in await database.rows(tenant_id, ANSWERED, rating, limit)]
