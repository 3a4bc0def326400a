"""Complete answers with their full context: no turn in the middle of a conversation is among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from migrations.pool import Database

# The first answer of a conversation has no context that is stored elsewhere.
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
    async with database.tenant(tenant_id) as connection:
        rows = await connection.fetch(ANSWERED, tenant_id, rating, limit)
    return [Answered(**row) for row in rows]
