"""What is said to a response while it runs, as its successor: a queued response, which starts once it has ended.

The response names its successor, so that the statement that stores its end finds what was said until then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from agents.errors import NotFound, TooMuchSaid, TurnOver
from agents.message import Item, new_id, pictures_in
from agents.payload import from_payload, to_payload
from migrations.pool import Connection, Database
from worker.wire.limits import SAID_MAX, TEXT_CHARS_MAX

SUCCESSOR = "firsttoken_successor"  # in the body of a response
# What a new body keeps of the one before it.
KEPT = f"jsonb_strip_nulls(jsonb_build_object('{SUCCESSOR}', body->'{SUCCESSOR}'))"
SAID_BYTES_MAX = TEXT_CHARS_MAX  # of all that is said to one response


@dataclass(frozen=True, slots=True)
class Successor:
    """`said` are the messages that it answers, behind the response before it."""

    id: str
    said: tuple[Item, ...]


class SaidMeanwhile(Exception):
    """Something was said to a response whose end was to be stored: the end has to name its successor."""

    def __init__(self, successor_id: str) -> None:
        super().__init__(successor_id)
        self.successor_id = successor_id


def check_said(said: tuple[Item, ...]) -> tuple[Item, ...]:
    """What is said in all to one response. Raises TooMuchSaid."""
    size = sum(len(getattr(item, "text", "")) for item in said) + sum(len(each.data) for each in pictures_in(said))
    if len(said) > SAID_MAX or size > SAID_BYTES_MAX:
        raise TooMuchSaid(SAID_MAX, SAID_BYTES_MAX)
    return said


class SteeringStore:
    """Every method sees only the rows of `tenant_id`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def say(self, tenant_id: UUID, response_id: str, said: tuple[Item, ...]) -> str:
        """Store what is said to an unfinished response, once; returns the id of its successor. Raises NotFound,
        TurnOver, TooMuchSaid."""
        check_said(said)
        async with self._database.tenant(tenant_id) as connection:
            row = await connection.fetchrow(
                """update responses set body = jsonb_build_object($3::text, $4::text) || body
                   where tenant_id = $1 and id = $2 and completed_at is null
                   returning body, conversation_id, extract(epoch from now())::bigint as now""",
                tenant_id,
                response_id,
                SUCCESSOR,
                new_id("resp"),
            )
            if row is None:
                known = "select true from responses where tenant_id = $1 and id = $2"
                if await connection.fetchval(known, tenant_id, response_id):
                    raise TurnOver(response_id)
                raise NotFound("response", response_id)
            body = dict(row["body"])
            successor_id = str(body.pop(SUCCESSOR))
            previous = None if row["conversation_id"] else response_id
            began = {"status": "queued", "created_at": row["now"]}
            queued = {**body, **began, "id": successor_id, "previous_response_id": previous, "output": []}
            added = await connection.fetchval(
                """insert into responses as r (tenant_id, id, conversation_id, previous_response_id, status, input,
                                               body)
                   values ($1, $2, $3, $4, 'queued', $5, $6)
                   on conflict (tenant_id, id) do update
                      set input = case when r.input @> excluded.input then r.input else r.input || excluded.input end
                   where r.status = 'queued' and (r.input @> excluded.input
                         or jsonb_array_length(r.input || excluded.input) <= $7
                            and octet_length((r.input || excluded.input)::text) <= $8)
                   returning true""",
                tenant_id,
                successor_id,
                row["conversation_id"],
                previous,
                [to_payload(item) for item in said],
                queued,
                SAID_MAX,
                SAID_BYTES_MAX,
            )
            if not added:
                raise TooMuchSaid(SAID_MAX, SAID_BYTES_MAX)
        return successor_id


async def take_successor(
    connection: Connection, tenant_id: UUID, body: Mapping[str, Any], worker: int
) -> Successor | None:
    """The successor of the response with this body, which the worker owns from now on. None: it has none, or that was
    cancelled. Idempotent."""
    if SUCCESSOR not in body:
        return None
    row = await connection.fetchrow(
        """update responses set worker = $3, status = 'in_progress', body = body || '{"status": "in_progress"}'
           where tenant_id = $1 and id = $2 and completed_at is null and (worker is null or worker = $3)
           returning id, input""",
        tenant_id,
        body[SUCCESSOR],
        worker,
    )
    return Successor(row["id"], tuple(map(from_payload, row["input"]))) if row else None
