"""Stored answers that were accepted: rated up, from the winner of a canary, or from the model that a step was escalated
to."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, TypeAlias, get_args
from uuid import UUID

from agents.store.answered import Answered
from migrations.pool import Database

Why: TypeAlias = Literal["up", "canary", "escalated"]
WHYS: tuple[Why, ...] = get_args(Why)

# First answers of conversations, whose complete context is stored with them. Nobody rated them down, and none of them
# says that it does not know, unless somebody rated that up.
ACCEPTED = """
with known as (
    select r.id, r.input, r.body, r.created_at, r.body->'metadata'->>'firsttoken:rating' as rating, t.attributes
      from responses r
      left join lateral (select attributes from traces
                          where tenant_id = $1 and response_id = r.id limit 1) t on true
     where r.tenant_id = $1 and r.status = 'completed' and r.previous_response_id is null
       and (r.conversation_id is null or not exists (
            select from responses before
             where before.tenant_id = r.tenant_id and before.conversation_id = r.conversation_id
               and (before.created_at, before.id) < (r.created_at, r.id)))
)
select id, input, body from known
 where rating is distinct from 'down'
   and (rating = 'up' or coalesce(attributes->>'firsttoken.declined', 'false') <> 'true')
   and (('up' = any($2) and rating = 'up')
     or ('escalated' = any($2) and (attributes->>'firsttoken.escalations')::int > 0)
     or ('canary' = any($2) and exists (
         select from canaries c
          where c.name = attributes->>'canary'
            and (case when c.promoted_at is not null then 'treatment' when c.state = 'rolled_back' then 'control' end)
                = attributes->>'canary_arm')))
 order by created_at desc, id limit $3
"""


async def accepted_answers(database: Database, tenant_id: UUID, why: Collection[Why], limit: int) -> list[Answered]:
    """The newest accepted answers of one tenant, for any of these reasons."""
    async with database.tenant(tenant_id) as connection:
        rows = await connection.fetch(ACCEPTED, tenant_id, list(why), limit)
    return [Answered(**row) for row in rows]
