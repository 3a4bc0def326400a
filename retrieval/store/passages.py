"""Vector stores, their files and chunks: everything except how a search finds its candidates."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import numpy as np
from numpy.typing import NDArray

from inference.embedding.windows import Windows
from migrations.pool import DATABASE_AWAY, Also, Connection, Database, nothing
from retrieval.candidate import Candidate, ChunkKey, Hit
from retrieval.errors import FileNotFound, StoreNotFound
from retrieval.filter import Filter
from retrieval.records import CountedStore, NewFile, SourceSpan, StoredFile, VectorStore
from retrieval.store.chunks import locked, remove, write
from retrieval.store.search import EXACT_CHUNKS_MAX, SearchResult, search

STORES_LISTED_MAX = 1000
WARM_CONNECTIONS = 4  # when a worker starts: a page sends up to three requests at once

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
           count(*) filter (where v.status = 'in_progress')
             + case when s.unread > 0 and worker_lives(s.reader) then s.unread else 0 end as waiting,
           count(*) filter (where v.status = 'failed') as failed,
           count(*) filter (where v.status = 'cancelled') as cancelled,
           coalesce(sum(f.bytes) filter (where v.status = 'completed'), 0)::bigint as bytes
      from vector_store_files v join files f on f.tenant_id = v.tenant_id and f.id = v.file_id
     where v.tenant_id = s.tenant_id and v.vector_store_id = s.id) as counted
 where s.tenant_id = $1 and ($2::text is null or s.id = $2)
 order by s.created_at, s.id
 limit {STORES_LISTED_MAX}
"""

_WINDOWS = """
select vector_store_id, file_id, ordinal, windows, window_scales
  from unnest($2::text[], $3::text[], $4::integer[]) as k(vector_store_id, file_id, ordinal)
  join chunks c using (vector_store_id, file_id, ordinal)
 where c.tenant_id = $1
"""

_READ = """
select c.vector_store_id, c.file_id, c.ordinal, f.filename, f.title, c.heading, c.text, c.tokens, v.attributes
  from unnest($2::text[], $3::text[], $4::integer[]) as k(vector_store_id, file_id, ordinal)
  join chunks c using (vector_store_id, file_id, ordinal)
  join files f on f.tenant_id = c.tenant_id and f.id = c.file_id
  join vector_store_files v on v.tenant_id = c.tenant_id and v.vector_store_id = c.vector_store_id
   and v.file_id = c.file_id
 where c.tenant_id = $1
"""

_TEXTS = """
select s.file_id, s.begin, s.finish, substr(f.content, s.begin + 1, s.finish - s.begin) as text
  from unnest($2::text[], $3::integer[], $4::integer[]) as s(file_id, begin, finish)
  join files f on f.tenant_id = $1 and f.id = s.file_id
"""

_SAME_CONTENT = """
select true
  from vector_store_files v join files f on f.tenant_id = v.tenant_id and f.id = v.file_id
 where v.tenant_id = $1 and v.vector_store_id = $2 and v.path = $3 and f.sha256 = $4
"""

# A file may be in several stores: it is deleted when it leaves the last one, unless a client uploaded it.
_DELETE_FILES = """
delete from files f
 where f.tenant_id = $1 and f.id = any($2) and not f.uploaded
   and not exists (select from vector_store_files v where v.tenant_id = $1 and v.file_id = f.id)
"""


class PassageStore:
    """Each call reads or writes for one tenant; ids of other tenants are as unknown as ids that never existed."""

    def __init__(self, database: Database, *, exact_chunks_max: int = EXACT_CHUNKS_MAX) -> None:
        self._database = database
        self._exact_chunks_max = exact_chunks_max

    async def open(self, tenant_id: UUID, name: str, *, embedding_model: str, dimensions: int) -> VectorStore:
        """The oldest store of that name, whatever its model; created with this model if there is none."""
        async with self._database.tenant(tenant_id) as connection:
            # Two workers that start at once create one store: the second waits for the first.
            await connection.execute("select pg_advisory_xact_lock(hashtextextended($1, 0))", f"{tenant_id}/{name}")
            await connection.execute(
                "insert into vector_stores (tenant_id, id, name, embedding_model, dimensions) "
                "select $1, $2, $3, $4, $5 "
                "where not exists (select from vector_stores where tenant_id = $1 and name = $3)",
                *(tenant_id, _new_id("vs"), name, embedding_model, dimensions),
            )
            return (await _find(connection, tenant_id, [name]))[0]

    async def create(
        self, tenant_id: UUID, name: str | None, metadata: Mapping[str, Any], *, embedding_model: str, dimensions: int
    ) -> VectorStore:
        """Create a store; without a name, its id is its name. Names may repeat."""
        store_id = _new_id("vs")
        async with self._database.tenant(tenant_id) as connection:
            await connection.execute(
                "insert into vector_stores (tenant_id, id, name, embedding_model, dimensions, metadata) "
                "values ($1, $2, $3, $4, $5, $6)",
                *(tenant_id, store_id, name or store_id, embedding_model, dimensions, dict(metadata)),
            )
            return (await _find(connection, tenant_id, [store_id]))[0]

    async def update(
        self, tenant_id: UUID, store: str, *, name: str | None, metadata: Mapping[str, Any] | None
    ) -> VectorStore:
        """Change a store's name or metadata; None leaves either unchanged. Raises StoreNotFound."""
        async with self._database.tenant(tenant_id) as connection:
            [found] = await _find(connection, tenant_id, [store])
            await connection.execute(
                "update vector_stores set name = coalesce($3, name), metadata = coalesce($4, metadata) "
                "where tenant_id = $1 and id = $2",
                *(tenant_id, found.id, name, None if metadata is None else dict(metadata)),
            )
            return (await _find(connection, tenant_id, [found.id]))[0]

    async def get(self, tenant_id: UUID, store: str) -> VectorStore:
        """By id or by name. Raises StoreNotFound."""
        return (await self.named(tenant_id, [store]))[0]

    async def named(self, tenant_id: UUID, stores: Sequence[str]) -> list[VectorStore]:
        """By ids or names, each once. Raises StoreNotFound."""
        async with self._database.tenant(tenant_id) as connection:
            return await _find(connection, tenant_id, stores)

    async def counted(self, tenant_id: UUID, store: str) -> CountedStore:
        """Like `get`, with its files counted."""
        async with self._database.tenant(tenant_id) as connection:
            [found] = await _find(connection, tenant_id, [store])
            return (await _counted(connection, tenant_id, found.id))[0]

    async def stores(self, tenant_id: UUID) -> list[CountedStore]:
        """Oldest first, at most STORES_LISTED_MAX."""
        async with self._database.tenant(tenant_id) as connection:
            return await _counted(connection, tenant_id)

    async def note_unread(self, tenant_id: UUID, store_id: str, reader: int, files: int) -> None:
        """The worker with this lock has so many files to read, past the queue: while it lives, they are waiting."""
        update = "update vector_stores set unread = $4, reader = $3 where tenant_id = $1 and id = $2"
        await self._database.value(tenant_id, update, store_id, reader, files)

    async def remember(self, tenant_id: UUID, store_id: str, likeness: bytes) -> None:
        """Record, before the first write, which model writes to a store."""
        update = "update vector_stores set likeness = $3 where tenant_id = $1 and id = $2 and likeness is null"
        await self._database.value(tenant_id, update, store_id, likeness)

    async def delete(self, tenant_id: UUID, store: str, *, also: Also = nothing) -> None:
        """Delete the store and those of its files that no other store contains; `also` runs in the same transaction.
        Raises StoreNotFound.
        """
        async with self._database.tenant(tenant_id) as connection:
            [found] = await _find(connection, tenant_id, [store])
            await locked(connection, tenant_id, found.id)
            files = await connection.fetch(
                "delete from vector_store_files where tenant_id = $1 and vector_store_id = $2 returning file_id",
                *(tenant_id, found.id),
            )
            await connection.execute(_DELETE_FILES, tenant_id, [row["file_id"] for row in files])
            await connection.execute("delete from vector_stores where tenant_id = $1 and id = $2", tenant_id, found.id)
            await also(connection)

    async def file(self, tenant_id: UUID, file_id: str) -> StoredFile:
        """With its text. Raises FileNotFound."""
        select = (
            "select id, filename, title, media_type, content, created_at from files where tenant_id = $1 and id = $2"
        )
        row = await self._database.row(tenant_id, select, file_id)
        if row is None:
            raise FileNotFound(file_id)
        return StoredFile(**row)

    async def filenames(self, tenant_id: UUID, store_id: str) -> dict[str, str]:
        """The names of a store's files, by id."""
        rows = await self._database.rows(
            tenant_id,
            "select v.file_id, f.filename from vector_store_files v "
            "join files f on f.tenant_id = v.tenant_id and f.id = v.file_id "
            "where v.tenant_id = $1 and v.vector_store_id = $2 order by f.filename, v.file_id",
            store_id,
        )
        return {row["file_id"]: row["filename"] for row in rows}

    async def sources(self, tenant_id: UUID, store_id: str) -> dict[str, bytes]:
        """The paths that a store was filled from, with the SHA-256 of the content read there."""
        rows = await self._database.rows(
            tenant_id,
            "select v.path, f.sha256 from vector_store_files v "
            "join files f on f.tenant_id = v.tenant_id and f.id = v.file_id "
            "where v.tenant_id = $1 and v.vector_store_id = $2",
            store_id,
        )
        return {row["path"]: row["sha256"] for row in rows}

    async def put(self, tenant_id: UUID, store_id: str, file: NewFile) -> bool:
        """Write a file with its chunks, replacing the version from the same path, atomically.

        Returns False if another worker wrote the same content meanwhile. Raises StoreNotFound.
        """
        file_id = _new_id("file")
        async with self._database.tenant(tenant_id) as connection:
            await locked(connection, tenant_id, store_id)
            if await connection.fetchval(_SAME_CONTENT, tenant_id, store_id, file.path, file.sha256):
                return False
            await _remove(connection, tenant_id, store_id, [file.path])
            await connection.execute(
                "insert into files (tenant_id, id, filename, title, media_type, bytes, sha256, content) "
                "values ($1, $2, $3, $4, $5, $6, $7, $8)",
                *(tenant_id, file_id, file.filename, file.title, file.media_type),
                *(file.size, file.sha256, file.content),
            )
            await connection.execute(
                "insert into vector_store_files (tenant_id, vector_store_id, file_id, path, status, chunks, "
                "attributes) values ($1, $2, $3, $4, 'completed', $5, $6)",
                *(tenant_id, store_id, file_id, file.path, len(file.chunks), dict(file.attributes)),
            )
            await write(connection, tenant_id, store_id, file_id, file.chunks)
        return True

    async def describe(
        self, tenant_id: UUID, store_id: str, paths: Sequence[str], attributes: Mapping[str, Any]
    ) -> None:
        """Replace the attributes of the files from these paths."""
        await self._database.value(
            tenant_id,
            "update vector_store_files set attributes = $4::jsonb "
            "where tenant_id = $1 and vector_store_id = $2 and path = any($3) and attributes <> $4::jsonb",
            *(store_id, list(paths), dict(attributes)),
        )

    async def remove(self, tenant_id: UUID, store_id: str, paths: Sequence[str]) -> None:
        """Remove the files from these paths; a path that is not there is not an error."""
        async with self._database.tenant(tenant_id) as connection:
            await locked(connection, tenant_id, store_id)
            await _remove(connection, tenant_id, store_id, paths)

    async def search(
        self,
        tenant_id: UUID,
        stores: Sequence[VectorStore],
        *,
        query: str,
        vector: NDArray[np.float32] | None,
        limit: int,
        filters: Filter | None = None,
    ) -> SearchResult:
        """The `limit` chunks nearest to the vector and the `limit` with the most of the query's rare words.

        At least one store; all are of the vector's model. Without a vector, only words count.
        """
        async with self._database.tenant(tenant_id) as connection:
            return await search(
                connection,
                tenant_id,
                stores,
                query=query,
                vector=vector,
                limit=limit,
                filters=filters,
                exact_chunks_max=self._exact_chunks_max,
            )

    async def warm_up(self) -> None:
        """Have some connections load the tables' metadata and plan the statements, which takes 20 ms each and would
        delay a first search. Reads no tenant's rows. Uses as many connections as the server has room for."""
        nobody, nothing = UUID(int=0), [[""], [""], [0]]
        store = VectorStore("", "", "", 1, {}, datetime.now(UTC), 0, None)

        async def one() -> None:
            with suppress(*DATABASE_AWAY):
                async with self._database.tenant(nobody) as connection:
                    await search(connection, nobody, [store], query="any", vector=np.ones(1, np.float32), limit=1)
                    await connection.fetch(_WINDOWS, nobody, *nothing)
                    await connection.fetch(_READ, nobody, *nothing)

        await asyncio.gather(*(one() for _ in range(WARM_CONNECTIONS)))

    async def refresh_lexemes(self, chunks_max: int) -> int:
        """Rewrite the words of some chunks of any tenant that an older version wrote; returns how many."""
        [(refreshed,)] = await self._database.fetch("select refresh_lexemes($1)", chunks_max)
        return int(refreshed)

    async def texts(self, tenant_id: UUID, spans: Sequence[SourceSpan]) -> dict[SourceSpan, str]:
        """The text of each span; spans of deleted files are missing."""
        columns = map(list, zip(*spans, strict=True)) if spans else ([], [], [])
        rows = await self._database.rows(tenant_id, _TEXTS, *columns)
        return {SourceSpan(row[0], row[1], row[2]): row["text"] for row in rows}

    async def read(self, tenant_id: UUID, hits: Sequence[Hit]) -> dict[ChunkKey, Candidate]:
        """The hits of a search with their texts; chunks deleted since then are missing."""
        if not hits:
            return {}
        columns = zip(*(hit.key for hit in hits), strict=True)
        rows = await self._database.rows(tenant_id, _READ, *map(list, columns))
        found = {ChunkKey(row[0], row[1], row[2]): row for row in rows}
        return {hit.key: _candidate(hit, found[hit.key]) for hit in hits if hit.key in found}

    async def windows(self, tenant_id: UUID, keys: Sequence[ChunkKey]) -> dict[ChunkKey, Windows]:
        """The late-interaction vectors of these chunks; chunks deleted since the search are missing."""
        columns = zip(*keys, strict=True) if keys else ([], [], [])
        rows = await self._database.rows(tenant_id, _WINDOWS, *map(list, columns))
        return {ChunkKey(row[0], row[1], row[2]): _windows(row["windows"], row["window_scales"]) for row in rows}


async def _find(connection: Connection, tenant_id: UUID, stores: Sequence[str]) -> list[VectorStore]:
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


async def _counted(connection: Connection, tenant_id: UUID, store_id: str | None = None) -> list[CountedStore]:
    """One store, or all of them, oldest first, at most STORES_LISTED_MAX."""
    return [CountedStore(**row) for row in await connection.fetch(_COUNTED, tenant_id, store_id)]


async def _remove(connection: Connection, tenant_id: UUID, store_id: str, paths: Sequence[str]) -> None:
    rows = await connection.fetch(
        "select file_id from vector_store_files where tenant_id = $1 and vector_store_id = $2 and path = any($3)",
        *(tenant_id, store_id, list(paths)),
    )
    files = [row["file_id"] for row in rows]
    if not files:
        return
    await remove(connection, tenant_id, store_id, files)
    await connection.execute(
        "delete from vector_store_files where tenant_id = $1 and vector_store_id = $2 and file_id = any($3)",
        *(tenant_id, store_id, files),
    )
    await connection.execute(_DELETE_FILES, tenant_id, files)


def _candidate(hit: Hit, row: asyncpg.Record) -> Candidate:
    return Candidate(
        key=hit.key,
        start=hit.start,
        end=hit.end,
        cosine=hit.cosine,
        coverage=hit.coverage,
        exact=hit.exact,
        model=hit.model,
        filename=row["filename"],
        title=row["title"],
        heading=row["heading"],
        text=row["text"],
        tokens=row["tokens"],
        attributes=row["attributes"],
    )


def _windows(vectors: bytes, scales: bytes) -> Windows:
    factors = np.frombuffer(scales, "<f2")
    return Windows(np.frombuffer(vectors, np.int8).reshape(len(factors), -1), factors)


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(24)}"
