"""Vector stores as rows, found by id or name; and with their files counted, which reads a row per file."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from migrations.pool import Connection
from retrieval.errors import StoreNotFound
from retrieval.records import CountedStore, VectorStore

STORES_LISTED_MAX = 1000

_COLUMNS = "s.id, s.name, s.embedding_model, s.dimensions, s.metadata, s.created_at, s.chunks, s.likeness"

_FIND = f"""
select {_COLUMNS}
  from vector_stores s
 where s.tenant_id = $1
   and (s.id = any($2)
        or s.name = any($2) and not exists (
           select from vector_stores o
            where o.tenant_id = s.tenant_id and o.name = s.name and (o.created_at, o.id) < (s.created_at, s.id)))
"""

_COUNTED = f"""
select {_COLUMNS}, counted.*
  from vector_stores s
 cross join lateral (
    select count(*) filter (where v.status = 'completed') as files,
           count(*) filter (where v.status = 'in_progress') as waiting,
           count(*) filter (where v.status = 'failed') as failed,
           count(*) filter (where v.status = 'cancelled') as cancelled,
           coalesce(sum(f.bytes) filter (where v.status = 'completed'), 0)::bigint as bytes
      from vector_store_files v join files f on f.tenant_id = v.tenant_id and f.id = v.file_id
     where v.tenant_id = s.tenant_id and v.vector_store_id = s.id) as counted
 where s.tenant_id = $1 and ($2::text is null or s.id = $2)
 order by s.created_at, s.id
 limit {STORES_LISTED_MAX}
"""


async def find(connection: Connection, tenant_id: UUID, stores: Sequence[str]) -> list[VectorStore]:
    """In the order of their ids or names, each once. An id takes precedence over a name that looks like it, and of
    stores with the same name the oldest counts: a newer one never replaces one that is in use.

    Raises StoreNotFound.
    """
    rows = [VectorStore(**row) for row in await connection.fetch(_FIND, tenant_id, list(stores))]
    oldest_last = sorted(rows, key=lambda store: (store.created_at, store.id), reverse=True)
    known = {store.name: store for store in oldest_last} | {store.id: store for store in rows}
    if missing := next((store for store in stores if store not in known), None):
        raise StoreNotFound(missing)
    return list({known[store].id: known[store] for store in stores}.values())


async def counted(connection: Connection, tenant_id: UUID, store_id: str | None = None) -> list[CountedStore]:
    """One store, or all of them, oldest first, at most STORES_LISTED_MAX."""
    return [CountedStore(**row) for row in await connection.fetch(_COUNTED, tenant_id, store_id)]
