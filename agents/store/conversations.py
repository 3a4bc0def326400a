"""Conversations and their items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar
from uuid import UUID

import asyncpg

from agents.errors import HistoryTooLong, InvalidTurn, NotFound
from agents.message import Item, new_id
from agents.payload import from_payload, to_payload
from agents.store.items import items_of
from agents.store.versions import Versions
from migrations.pool import Database

if TYPE_CHECKING:
    from migrations.pool import Connection

# As many as a request may have: with `truncation`, the oldest are dropped. More would be read in vain at each turn.
HISTORY_ITEMS_MAX = 10_000
BEGINNING_CHARS_MAX = 120  # more than a line of a list shows
BEGINNING_ITEMS_MAX = 20  # among which the first question is searched: a list should not read whole conversations
PINNED = "firsttoken:pinned"  # in the metadata: "true" keeps a conversation on top of the list of the page

Order: TypeAlias = Literal["asc", "desc"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Conversation:
    id: str
    created_at: datetime
    updated_at: datetime
    metadata: dict[str, Any]
    beginning: str | None = None  # the first question, for a list, if there is no title


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list. `has_more` says whether anything follows its last entry."""

    data: tuple[T, ...]
    has_more: bool


class ConversationStore:
    """Every method sees the rows of `tenant_id` only; ids that do not exist or belong to others raise NotFound.

    The items of a conversation are those on its chosen path; `versions` knows the others.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.versions = Versions(database)

    async def create(
        self, tenant_id: UUID, metadata: Mapping[str, Any] | None = None, items: Sequence[Item] = ()
    ) -> Conversation:
        conversation_id = new_id("conv")
        async with self._database.tenant(tenant_id) as connection:
            row = await connection.fetchrow(
                """insert into conversations (tenant_id, id, metadata) values ($1, $2, $3)
                   returning id, created_at, updated_at, metadata""",
                tenant_id,
                conversation_id,
                dict(metadata or {}),
            )
            await insert_items(connection, tenant_id, conversation_id, items)
        return _found(row, conversation_id)

    async def get(self, tenant_id: UUID, conversation_id: str) -> Conversation:
        async with self._database.tenant(tenant_id) as connection:
            row = await connection.fetchrow(
                """select id, created_at, updated_at, metadata from conversations
                   where tenant_id = $1 and id = $2""",
                tenant_id,
                conversation_id,
            )
        return _found(row, conversation_id)

    async def list(
        self, tenant_id: UUID, *, after: str | None = None, limit: int = 20, pinned: bool = False
    ) -> Page[Conversation]:
        """Newest activity first; with `pinned`, only pinned ones. `after` is the id of the last conversation of the
        previous page."""
        async with self._database.tenant(tenant_id) as connection:
            rows = await connection.fetch(
                """select id, created_at, updated_at, metadata,
                          case when metadata->>'title' is null then (
                              select left(jsonb_path_query_first(payload, '$.content[*].text') #>> '{}', $6) from (
                                  select payload from items
                                  where tenant_id = $1 and conversation_id = conversations.id
                                  order by position limit $7) first
                              where payload->>'type' = 'message' and payload->>'role' = 'user' limit 1) end as beginning
                   from conversations
                   where tenant_id = $1 and (not $4 or metadata->>$5 = 'true')
                     and ($2::text is null or (updated_at, id) <
                          (select updated_at, id from conversations where tenant_id = $1 and id = $2))
                   order by updated_at desc, id desc limit $3""",
                tenant_id,
                after,
                limit + 1,
                pinned,
                PINNED,
                BEGINNING_CHARS_MAX,
                BEGINNING_ITEMS_MAX,
            )
        listed = [replace(_conversation(row), beginning=row["beginning"]) for row in rows[:limit]]
        return Page(tuple(listed), len(rows) > limit)

    async def update(self, tenant_id: UUID, conversation_id: str, metadata: Mapping[str, Any]) -> Conversation:
        async with self._database.tenant(tenant_id) as connection:
            row = await connection.fetchrow(
                """update conversations set metadata = $3 where tenant_id = $1 and id = $2
                   returning id, created_at, updated_at, metadata""",
                tenant_id,
                conversation_id,
                dict(metadata),
            )
        return _found(row, conversation_id)

    async def delete(self, tenant_id: UUID, conversation_id: str) -> None:
        """Delete a conversation with its items; its responses stay."""
        async with self._database.tenant(tenant_id) as connection:
            deleted = await connection.fetchval(
                "delete from conversations where tenant_id = $1 and id = $2 returning id", tenant_id, conversation_id
            )
        if deleted is None:
            raise NotFound("conversation", conversation_id)

    async def history(self, tenant_id: UUID, conversation_id: str) -> tuple[Item, ...]:
        """All items, oldest first, in one round trip. Raises HistoryTooLong above HISTORY_ITEMS_MAX."""
        rows = await self._database.fetch(
            "select payload from conversation_history($1, $2, $3)", tenant_id, conversation_id, HISTORY_ITEMS_MAX + 1
        )
        if not rows:
            raise NotFound("conversation", conversation_id)
        if len(rows) > HISTORY_ITEMS_MAX:
            raise HistoryTooLong(f"The conversation has more than {HISTORY_ITEMS_MAX} items. Start a new one.")
        return await items_of([row["payload"] for row in rows if row["payload"] is not None])

    async def add_items(self, tenant_id: UUID, conversation_id: str, items: Sequence[Item]) -> None:
        async with self._database.tenant(tenant_id) as connection:
            await append_items(connection, tenant_id, conversation_id, items)

    async def list_items(
        self,
        tenant_id: UUID,
        conversation_id: str,
        *,
        after: str | None = None,
        limit: int = 20,
        order: Order = "desc",
    ) -> Page[Item]:
        """A page of items by age. `after` is the id of the last item of the previous page."""
        statement = _NEWEST_FIRST if order == "desc" else _OLDEST_FIRST
        async with self._database.tenant(tenant_id) as connection:
            rows = await connection.fetch(statement, tenant_id, conversation_id, after, limit + 1)
        if not rows:
            raise NotFound("conversation", conversation_id)
        items = _items(rows)
        return Page(items[:limit], len(items) > limit)

    async def responses_of(self, tenant_id: UUID, item_ids: Sequence[str]) -> dict[str, str]:
        """The id of the response that each item belongs to; items that were added without one are left out."""
        async with self._database.tenant(tenant_id) as connection:
            rows = await connection.fetch(
                """select id, response_id from items
                   where tenant_id = $1 and id = any($2::text[]) and response_id is not null""",
                tenant_id,
                list(item_ids),
            )
        return {row["id"]: row["response_id"] for row in rows}

    async def get_item(self, tenant_id: UUID, conversation_id: str, item_id: str) -> Item:
        async with self._database.tenant(tenant_id) as connection:
            payload = await connection.fetchval(
                "select payload from items where tenant_id = $1 and conversation_id = $2 and id = $3",
                tenant_id,
                conversation_id,
                item_id,
            )
        if payload is None:
            raise NotFound("item", item_id)
        return from_payload(payload)

    async def delete_item(self, tenant_id: UUID, conversation_id: str, item_id: str) -> Conversation:
        """Delete one item and return its conversation. Its successors are attached to its predecessor."""
        async with self._database.tenant(tenant_id) as connection:
            row = await connection.fetchrow(
                """with gone as (delete from items where tenant_id = $1 and conversation_id = $2 and id = $3
                                 returning conversation_id, position, parent),
                   moved as (update items set parent = gone.parent from gone
                              where items.tenant_id = $1 and items.conversation_id = $2
                                and items.parent = gone.position)
                   select c.id, c.created_at, c.updated_at, c.metadata
                   from conversations c join gone on gone.conversation_id = c.id where c.tenant_id = $1""",
                tenant_id,
                conversation_id,
                item_id,
            )
        if row is None:
            raise NotFound("item", item_id)
        return _conversation(row)


async def append_items(
    connection: Connection,
    tenant_id: UUID,
    conversation_id: str,
    items: Sequence[Item],
    response_id: str | None = None,
) -> None:
    """Add items at the end of a conversation, inside the caller's transaction.

    Touching the conversation first locks its row: items of two turns at once never interleave.
    """
    touched = await connection.fetchval(
        "update conversations set updated_at = clock_timestamp() where tenant_id = $1 and id = $2 returning id",
        tenant_id,
        conversation_id,
    )
    if touched is None:
        raise NotFound("conversation", conversation_id)
    await insert_items(connection, tenant_id, conversation_id, items, response_id)


async def insert_items(
    connection: Connection,
    tenant_id: UUID,
    conversation_id: str,
    items: Sequence[Item],
    response_id: str | None = None,
) -> None:
    """Each item follows the one before it, and the first one the last item of the path."""
    if not items:
        return
    payloads = [to_payload(item) for item in items]
    try:
        await connection.execute(
            """with new as materialized (
                   select nextval('items_position_seq') as position, id, payload
                   from (select * from unnest($4::text[], $5::jsonb[]) with ordinality as given (id, payload, n)
                         order by n) given),
               last as (
                   select position from items where tenant_id = $1 and conversation_id = $2 and chosen
                   order by position desc limit 1)
               insert into items (tenant_id, conversation_id, response_id, position, parent, id, type, payload)
               overriding system value
               select $1, $2, $3, position,
                      coalesce(lag(position) over (order by position), (select position from last), 0),
                      id, payload->>'type', payload
               from new""",
            tenant_id,
            conversation_id,
            response_id,
            [item.id for item in items],
            payloads,
        )
    except asyncpg.UniqueViolationError:
        raise InvalidTurn("An item with one of these ids already exists: omit `id` to get a new one.") from None


# A conversation without (further) items gives one row without payload: found, but empty.
_PAGE = """select i.payload from conversations c
    left join lateral (
        select payload, position from items
        where tenant_id = c.tenant_id and conversation_id = c.id and chosen
          and ($3::text is null or position {beyond} (select position from items where tenant_id = $1 and id = $3))
        order by position {direction} limit $4) i on true
    where c.tenant_id = $1 and c.id = $2
    order by i.position {direction}"""
_OLDEST_FIRST = _PAGE.format(beyond=">", direction="asc")
_NEWEST_FIRST = _PAGE.format(beyond="<", direction="desc")


def _found(row: asyncpg.Record | None, conversation_id: str) -> Conversation:
    if row is None:
        raise NotFound("conversation", conversation_id)
    return _conversation(row)


def _conversation(row: asyncpg.Record) -> Conversation:
    return Conversation(row["id"], row["created_at"], row["updated_at"], row["metadata"])


def _items(rows: Sequence[asyncpg.Record]) -> tuple[Item, ...]:
    return tuple(from_payload(row["payload"]) for row in rows if row["payload"] is not None)
