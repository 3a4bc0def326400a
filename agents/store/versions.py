"""Versions of a conversation: its items form a tree, and the chosen path is the current conversation.

Asking a question again goes back to the item before it; what is added then becomes another version beside the first,
which stays unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from agents.errors import ConversationBusy, InvalidTurn, NotFound
from migrations.pool import Database

if TYPE_CHECKING:
    from migrations.pool import Connection

VERSIONS_MAX = 50  # of one item: nobody pages through more, and each keeps its rows


class Versions:
    """Every method sees the rows of `tenant_id` only; ids that do not exist or belong to others raise NotFound, and
    changes raise ConversationBusy while an answer of the conversation is in progress: it would end on another path.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def choose(self, tenant_id: UUID, conversation_id: str, item_id: str) -> None:
        """Make the path that of this item: its ancestors, and after it the newest version of what follows."""
        async with self._database.tenant(tenant_id) as connection:
            await _lock(connection, tenant_id, conversation_id)
            position = await _position(connection, tenant_id, conversation_id, item_id)
            await connection.execute(_CHOOSE, tenant_id, conversation_id, position)

    async def rewind(self, tenant_id: UUID, conversation_id: str, after: str | None) -> None:
        """End the conversation at this item of its path, or before its first one. What followed stays, as a version.

        Raises InvalidTurn if VERSIONS_MAX versions follow the item, or if it is not on the path.
        """
        async with self._database.tenant(tenant_id) as connection:
            await _lock(connection, tenant_id, conversation_id)
            position = 0 if after is None else await _position(connection, tenant_id, conversation_id, after)
            row = await connection.fetchrow(
                """select (select count(*) from items
                            where tenant_id = $1 and conversation_id = $2 and parent = $3) as versions,
                          $3 = 0 or exists (select from items where tenant_id = $1 and conversation_id = $2
                                            and position = $3 and chosen) as chosen""",
                tenant_id,
                conversation_id,
                position,
            )
            if row is None or not row["chosen"]:
                raise InvalidTurn(f"The item '{after}' is in another version: choose that one first.", param="after")
            if row["versions"] >= VERSIONS_MAX:
                message = f"There are {VERSIONS_MAX} versions of what follows, which is the limit. Delete one first."
                raise InvalidTurn(message, param="after")
            await connection.execute(
                """update items set chosen = false
                   where tenant_id = $1 and conversation_id = $2 and position > $3 and chosen""",
                tenant_id,
                conversation_id,
                position,
            )

    async def of(self, tenant_id: UUID, item_ids: Sequence[str]) -> dict[str, list[str]]:
        """The versions of those items that have several, oldest first, each including the item's own id."""
        async with self._database.tenant(tenant_id) as connection:
            rows = await connection.fetch(
                """select i.id, v.ids from items i
                   cross join lateral (
                       select array_agg(s.id order by s.position) as ids from items s
                       where s.tenant_id = i.tenant_id and s.conversation_id = i.conversation_id
                         and s.parent = i.parent) v
                   where i.tenant_id = $1 and i.id = any($2::text[]) and cardinality(v.ids) > 1""",
                tenant_id,
                list(item_ids),
            )
        return {row["id"]: row["ids"] for row in rows}


async def _lock(connection: Connection, tenant_id: UUID, conversation_id: str) -> None:
    """The same lock as when items are added."""
    busy = await connection.fetchval(
        """select exists (select from responses r
                          where r.tenant_id = $1 and r.conversation_id = $2
                            and r.worker is not null and r.completed_at is null)
           from conversations where tenant_id = $1 and id = $2 for update""",
        tenant_id,
        conversation_id,
    )
    if busy is None:
        raise NotFound("conversation", conversation_id)
    if busy:
        raise ConversationBusy


async def _position(connection: Connection, tenant_id: UUID, conversation_id: str, item_id: str) -> int:
    position: int | None = await connection.fetchval(
        "select position from items where tenant_id = $1 and conversation_id = $2 and id = $3",
        tenant_id,
        conversation_id,
        item_id,
    )
    if position is None:
        raise NotFound("item", item_id)
    return position


_CHOOSE = """with recursive before as (
        select position, parent from items where tenant_id = $1 and conversation_id = $2 and position = $3
        union all
        select i.position, i.parent from before b join items i
            on i.tenant_id = $1 and i.conversation_id = $2 and i.position = b.parent),
    after as (
        select $3::bigint as position
        union all
        select i.position from after a cross join lateral (
            select position from items where tenant_id = $1 and conversation_id = $2 and parent = a.position
            order by position desc limit 1) i),
    path as (select position from before union select position from after)
    update items i set chosen = not i.chosen
     where i.tenant_id = $1 and i.conversation_id = $2
       and i.chosen <> (i.position in (select position from path))"""
