"""Conversations and their items."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Generic, Literal, TypeAlias, TypeVar
from uuid import UUID

import asyncpg

from agents.errors import ConversationBusy, HistoryTooLong, InvalidTurn, NotFound
from agents.message import Item, new_id
from agents.payload import from_payload, to_payload
from migrations.pool import Connection, Database

_COLUMNS = "id, created_at, updated_at, metadata"
FEW = 200  # read in a millisecond; thousands would hold up all other requests


async def items_of(payloads: Sequence[Mapping[str, Any]]) -> tuple[Item, ...]:
    """The items of a history, read in a thread where they are many."""
    if len(payloads) <= FEW:
        return tuple(map(from_payload, payloads))
    return await asyncio.to_thread(lambda: tuple(map(from_payload, payloads)))


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
                f"insert into conversations (tenant_id, id, metadata) values ($1, $2, $3) returning {_COLUMNS}",
                *(tenant_id, conversation_id, dict(metadata or {})),
            )
            await insert_items(connection, tenant_id, conversation_id, items)
        return _found(row, conversation_id)

    async def get(self, tenant_id: UUID, conversation_id: str) -> Conversation:
        row = await self._database.row(
            tenant_id, f"select {_COLUMNS} from conversations where tenant_id = $1 and id = $2", conversation_id
        )
        return _found(row, conversation_id)

    async def list(
        self, tenant_id: UUID, *, after: str | None = None, limit: int = 20, pinned: bool = False
    ) -> Page[Conversation]:
        """Newest activity first; with `pinned`, only pinned ones. `after` is the id of the last conversation of the
        previous page."""
        beginning = BEGINNING_CHARS_MAX, BEGINNING_ITEMS_MAX
        rows = await self._database.rows(tenant_id, _LIST, after, limit + 1, pinned, PINNED, *beginning)
        listed = [replace(_conversation(row), beginning=row["beginning"]) for row in rows[:limit]]
        return Page(tuple(listed), len(rows) > limit)

    async def update(self, tenant_id: UUID, conversation_id: str, metadata: Mapping[str, Any]) -> Conversation:
        update = f"update conversations set metadata = $3 where tenant_id = $1 and id = $2 returning {_COLUMNS}"
        return _found(await self._database.row(tenant_id, update, conversation_id, dict(metadata)), conversation_id)

    async def delete(self, tenant_id: UUID, conversation_id: str) -> None:
        """Delete a conversation with its items; its responses stay."""
        delete = "delete from conversations where tenant_id = $1 and id = $2 returning id"
        if await self._database.value(tenant_id, delete, conversation_id) is None:
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
        rows = await self._database.rows(tenant_id, statement, conversation_id, after, limit + 1)
        if not rows:
            raise NotFound("conversation", conversation_id)
        items = tuple(from_payload(row["payload"]) for row in rows if row["payload"] is not None)
        return Page(items[:limit], len(items) > limit)

    async def responses_of(self, tenant_id: UUID, item_ids: Sequence[str]) -> dict[str, str]:
        """The id of the response that each item belongs to; items that were added without one are left out."""
        rows = await self._database.rows(
            tenant_id,
            "select id, response_id from items where tenant_id = $1 and id = any($2) and response_id is not null",
            list(item_ids),
        )
        return {row["id"]: row["response_id"] for row in rows}

    async def find_items(self, tenant_id: UUID, ids: Sequence[str]) -> dict[str, Item]:
        """Those of these items that belong to the tenant, by their ids, wherever they are: in conversations and in the
        output of responses."""
        async with self._database.tenant(tenant_id) as connection:
            rows = await connection.fetch("select payload from stored_items($1)", list(ids))
        return {row["payload"]["id"]: from_payload(row["payload"]) for row in rows}

    async def get_item(self, tenant_id: UUID, conversation_id: str, item_id: str) -> Item:
        select = "select payload from items where tenant_id = $1 and conversation_id = $2 and id = $3"
        payload = await self._database.value(tenant_id, select, conversation_id, item_id)
        if payload is None:
            raise NotFound("item", item_id)
        return from_payload(payload)

    async def delete_item(self, tenant_id: UUID, conversation_id: str, item_id: str) -> Conversation:
        """Delete one item and return its conversation. Its successors are attached to its predecessor."""
        row = await self._database.row(tenant_id, _DELETE_ITEM, conversation_id, item_id)
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


_LIST = f"""select {_COLUMNS},
           case when metadata->>'title' is null then (
               select left(jsonb_path_query_first(payload, '$.content[*].text') #>> '{{}}', $6) from (
                   select payload from items where tenant_id = $1 and conversation_id = conversations.id
                   order by position limit $7) first
               where payload->>'type' = 'message' and payload->>'role' = 'user' limit 1) end as beginning
    from conversations
    where tenant_id = $1 and (not $4 or metadata->>$5 = 'true')
      and ($2::text is null or (updated_at, id) <
           (select updated_at, id from conversations where tenant_id = $1 and id = $2))
    order by updated_at desc, id desc limit $3"""
_DELETE_ITEM = """with gone as (
        delete from items where tenant_id = $1 and conversation_id = $2 and id = $3
        returning conversation_id, position, parent),
    moved as (
        update items set parent = gone.parent from gone
        where items.tenant_id = $1 and items.conversation_id = $2 and items.parent = gone.position)
    select c.id, c.created_at, c.updated_at, c.metadata
    from conversations c join gone on gone.conversation_id = c.id where c.tenant_id = $1"""
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


VERSIONS_MAX = 50  # of one item: nobody pages through more, and each keeps its rows


class Versions:
    """The items of a conversation form a tree, and the chosen path is the current conversation. Asking a question again
    goes back to the item before it; what is added then becomes another version beside the first, which stays unchanged.

    Every method sees the rows of `tenant_id` only; ids that do not exist or belong to others raise NotFound, and
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
                *(tenant_id, conversation_id, position),
            )
            if row is None or not row["chosen"]:
                raise InvalidTurn(f"The item '{after}' is in another version: choose that one first.", param="after")
            if row["versions"] >= VERSIONS_MAX:
                message = f"There are {VERSIONS_MAX} versions of what follows, which is the limit. Delete one first."
                raise InvalidTurn(message, param="after")
            await connection.execute(
                """update items set chosen = false
                   where tenant_id = $1 and conversation_id = $2 and position > $3 and chosen""",
                *(tenant_id, conversation_id, position),
            )

    async def of(self, tenant_id: UUID, item_ids: Sequence[str]) -> dict[str, list[str]]:
        """The versions of those items that have several, oldest first, each including the item's own id."""
        rows = await self._database.rows(
            tenant_id,
            """select i.id, v.ids from items i
               cross join lateral (
                   select array_agg(s.id order by s.position) as ids from items s
                   where s.tenant_id = i.tenant_id and s.conversation_id = i.conversation_id
                     and s.parent = i.parent) v
               where i.tenant_id = $1 and i.id = any($2) and cardinality(v.ids) > 1""",
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
