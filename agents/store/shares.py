"""Conversations shared by a link: whoever has it reads what was said until then, and nothing else."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from agents.errors import NotFound
from agents.message import Item
from agents.payload import from_payload
from migrations.pool import Also, Database

TOKEN_BYTES = 32  # nobody guesses one, so an unkeyed hash is enough to look it up
ITEMS_MAX = 1_000  # that a visitor sees, the newest: more than anybody reads


@dataclass(frozen=True, slots=True)
class SharedConversation:
    title: str | None
    shared_at: datetime
    items: tuple[Item, ...]


class ShareStore:
    """A conversation has one link at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, tenant_id: UUID, conversation_id: str, *, also: Also) -> str:
        """The token of a new link, which cannot be read again; the previous link stops working. Raises NotFound."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        async with self._database.tenant(tenant_id) as connection:
            made = await connection.fetchval(
                """insert into shared_conversations (tenant_id, conversation_id, hash, last_position)
                   select $1, id, $3, coalesce((select max(position) from items
                                                where tenant_id = $1 and conversation_id = $2 and chosen), 0)
                   from conversations where tenant_id = $1 and id = $2
                   on conflict (tenant_id, conversation_id) do update
                      set hash = excluded.hash, last_position = excluded.last_position, created_at = now()
                   returning true""",
                tenant_id,
                conversation_id,
                _hash(token),
            )
            if not made:
                raise NotFound("conversation", conversation_id)
            await also(connection)
        return token

    async def shared_at(self, tenant_id: UUID, conversation_id: str) -> datetime | None:
        select = "select created_at from shared_conversations where tenant_id = $1 and conversation_id = $2"
        at: datetime | None = await self._database.value(tenant_id, select, conversation_id)
        return at

    async def revoke(self, tenant_id: UUID, conversation_id: str, *, also: Also) -> bool:
        """Whether there was a link."""
        async with self._database.tenant(tenant_id) as connection:
            gone = await connection.fetchval(
                "delete from shared_conversations where tenant_id = $1 and conversation_id = $2 returning true",
                tenant_id,
                conversation_id,
            )
            if gone:
                await also(connection)
        return bool(gone)

    async def open(self, token: str) -> SharedConversation | None:
        """What the link shows: messages only, not the output of tools and searches. None if it is not valid."""
        async with self._database.anonymous() as connection:
            row = await connection.fetchrow("select * from shared_conversation($1)", _hash(token))
        if row is None:
            return None
        tenant_id, conversation_id = row["tenant_id"], row["conversation_id"]
        async with self._database.tenant(tenant_id) as connection:
            share = await connection.fetchrow(
                """select c.metadata->>'title' as title, s.created_at, s.last_position
                   from shared_conversations s join conversations c on c.tenant_id = $1 and c.id = s.conversation_id
                   where s.tenant_id = $1 and s.conversation_id = $2 and s.hash = $3""",
                tenant_id,
                conversation_id,
                _hash(token),
            )
            if share is None:  # revoked at this moment
                return None
            rows = await connection.fetch(_PATH, tenant_id, conversation_id, share["last_position"], ITEMS_MAX)
        return SharedConversation(
            share["title"], share["created_at"], tuple(from_payload(row["payload"]) for row in rows)
        )


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


_PATH = """with recursive path as (
        select position, parent, type, payload, 1 as depth from items
         where tenant_id = $1 and conversation_id = $2 and position = $3
        union all
        select i.position, i.parent, i.type, i.payload, depth + 1 from path p join items i
            on i.tenant_id = $1 and i.conversation_id = $2 and i.position = p.parent
         where depth < $4)
    select payload from path
     where type = 'message' and payload->>'role' in ('user', 'assistant')
     order by position"""
