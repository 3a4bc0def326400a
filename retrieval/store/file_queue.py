"""The files of vector stores as clients added them: queued, read by some worker, completed or failed."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from migrations.pool import Also, Connection, Database, nothing
from retrieval.errors import BatchNotFound, FileNotFound
from retrieval.loaders.document import Document
from retrieval.records import EmbeddedChunk, FileBatch, StoreFile
from retrieval.store.chunks import locked, remove, write

_FILES = """
select v.file_id as id, v.vector_store_id, v.status, v.error, v.attributes, v.created_at, f.bytes, f.filename,
       v.chunks
  from vector_store_files v join files f on f.tenant_id = v.tenant_id and f.id = v.file_id
 where v.tenant_id = $1 and v.vector_store_id = $2
"""
# Of a batch: a file is listed while it is in the store, with how it ended in this batch.
_FILES_OF_BATCH = """
select v.file_id as id, v.vector_store_id, b.status, case when v.status = b.status then v.error end as error,
       v.attributes, v.created_at, f.bytes, f.filename, v.chunks
  from batch_files b join vector_store_files v using (tenant_id, vector_store_id, file_id)
       join files f on f.tenant_id = b.tenant_id and f.id = b.file_id
 where b.tenant_id = $1 and b.vector_store_id = $2 and b.batch_id = $3
"""
_END_IN_BATCHES = """
update batch_files set status = $4
 where tenant_id = $1 and vector_store_id = $2 and file_id = $3 and status = 'in_progress'
"""
_OLDEST_FIRST = "order by v.created_at, v.file_id"


class Claim(NamedTuple):
    tenant_id: UUID
    store_id: str
    file_id: str


class FileQueue:
    """Every method sees only the rows of `tenant_id`, except `claim`, which works across tenants."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(
        self, tenant_id: UUID, store_id: str, files: Mapping[str, Mapping[str, Any]], *, batch: bool = False
    ) -> str | None:
        """Queue files, each with its attributes; one that already exists is read again. Returns the id of the batch, if
        any.

        Raises StoreNotFound, FileNotFound.
        """
        batch_id = f"vsfb_{secrets.token_hex(24)}" if batch else None
        async with self._database.tenant(tenant_id) as connection:
            await locked(connection, tenant_id, store_id)
            for file_id, attributes in files.items():
                if not await connection.fetchval(
                    "select true from files where tenant_id = $1 and id = $2 and uploaded", tenant_id, file_id
                ):
                    raise FileNotFound(file_id)
                await connection.execute(
                    """insert into vector_store_files (tenant_id, vector_store_id, file_id, path, status, attributes,
                                                       batch_id)
                       values ($1, $2, $3, 'upload:' || $3, 'in_progress', $4, $5)
                       on conflict (tenant_id, vector_store_id, file_id) do update
                          set status = 'in_progress', error = null, worker = null, attempts = 0,
                              attributes = excluded.attributes, batch_id = excluded.batch_id""",
                    *(tenant_id, store_id, file_id, dict(attributes), batch_id),
                )
            await connection.execute(
                """insert into batch_files (tenant_id, vector_store_id, batch_id, file_id)
                   select $1, $2, $3::text, unnest($4::text[]) where $3::text is not null""",
                *(tenant_id, store_id, batch_id, list(files)),
            )
        return batch_id

    async def claim(self, worker: int) -> Claim | None:
        """Claim the next file to read, of any tenant; None if there is none. Tenants take turns."""
        rows = await self._database.fetch("select * from claim_file($1)", worker)
        return Claim(*rows[0]) if rows else None

    async def begin(self, claim: Claim) -> int:
        """Record an attempt before any of the file is read; returns its number. Raises FileNotFound."""
        attempts: int | None = await self._database.value(
            claim.tenant_id,
            "update vector_store_files set attempts = attempts + 1, begun_at = now() "
            "where tenant_id = $1 and vector_store_id = $2 and file_id = $3 returning attempts",
            *(claim.store_id, claim.file_id),
        )
        if attempts is None:
            raise FileNotFound(claim.file_id)
        return attempts

    async def give_back(self, claim: Claim) -> None:
        """Release a file that was not read for reasons outside it: the attempt does not count, and any worker may start
        again."""
        await self._database.value(
            claim.tenant_id,
            "update vector_store_files set attempts = greatest(attempts - 1, 0), worker = null "
            "where tenant_id = $1 and vector_store_id = $2 and file_id = $3 and status = 'in_progress'",
            *(claim.store_id, claim.file_id),
        )

    async def fill(self, claim: Claim, document: Document, chunks: Sequence[EmbeddedChunk]) -> None:
        """Store what was read: search finds the passages from now on. Does nothing if the file was removed
        meanwhile."""
        tenant_id, store_id, file_id = claim
        async with self._database.tenant(tenant_id) as connection:
            await locked(connection, tenant_id, store_id)
            if not await _waits(connection, claim):
                return
            await remove(connection, tenant_id, store_id, [file_id])
            await connection.execute(
                "update files set title = $3, media_type = $4, content = $5 where tenant_id = $1 and id = $2",
                *(tenant_id, file_id, document.title, document.media_type, document.text),
            )
            await write(connection, tenant_id, store_id, file_id, chunks)
            await connection.execute(
                "update vector_store_files set status = 'completed', worker = null, chunks = $4 "
                "where tenant_id = $1 and vector_store_id = $2 and file_id = $3",
                *(tenant_id, store_id, file_id, len(chunks)),
            )
            await connection.execute(_END_IN_BATCHES, *claim, "completed")

    async def fail(self, claim: Claim, code: str, message: str) -> None:
        async with self._database.tenant(claim.tenant_id) as connection:
            failed = await connection.fetchval(
                "update vector_store_files set status = 'failed', worker = null, error = $4 "
                "where tenant_id = $1 and vector_store_id = $2 and file_id = $3 and status = 'in_progress' "
                "returning true",
                *claim,
                {"code": code, "message": message},
            )
            if failed:
                await connection.execute(_END_IN_BATCHES, *claim, "failed")

    async def get(self, tenant_id: UUID, store_id: str, file_id: str) -> StoreFile:
        """Raises FileNotFound."""
        row = await self._database.row(tenant_id, f"{_FILES} and v.file_id = $3", store_id, file_id)
        if row is None:
            raise FileNotFound(file_id)
        return StoreFile(**row)

    async def list_batch(self, tenant_id: UUID, store_id: str, batch_id: str) -> list[StoreFile]:
        """The files of a batch that are still in the store, oldest first."""
        rows = await self._database.rows(tenant_id, f"{_FILES_OF_BATCH} {_OLDEST_FIRST}", store_id, batch_id)
        return [StoreFile(**row) for row in rows]

    async def list(self, tenant_id: UUID, store_id: str) -> list[StoreFile]:
        """All files of a store, oldest first."""
        rows = await self._database.rows(tenant_id, f"{_FILES} {_OLDEST_FIRST}", store_id)
        return [StoreFile(**row) for row in rows]

    async def batch(self, tenant_id: UUID, store_id: str, batch_id: str) -> FileBatch:
        """Raises BatchNotFound."""
        rows = await self._database.rows(
            tenant_id,
            "select status, created_at from batch_files "
            "where tenant_id = $1 and vector_store_id = $2 and batch_id = $3",
            *(store_id, batch_id),
        )
        if not rows:
            raise BatchNotFound(batch_id)
        return FileBatch(batch_id, store_id, rows[0]["created_at"], Counter(row["status"] for row in rows))

    async def attributes(self, tenant_id: UUID, store_id: str, files: Collection[str]) -> dict[str, Mapping[str, Any]]:
        """The attributes of these files, by id."""
        rows = await self._database.rows(
            tenant_id,
            "select file_id, attributes from vector_store_files "
            "where tenant_id = $1 and vector_store_id = $2 and file_id = any($3)",
            *(store_id, list(files)),
        )
        return {row["file_id"]: row["attributes"] for row in rows}

    async def describe(self, tenant_id: UUID, store_id: str, file_id: str, attributes: Mapping[str, Any]) -> StoreFile:
        """Replace the attributes of a file. Raises FileNotFound."""
        await self._database.value(
            tenant_id,
            "update vector_store_files set attributes = $4 "
            "where tenant_id = $1 and vector_store_id = $2 and file_id = $3",
            *(store_id, file_id, dict(attributes)),
        )
        return await self.get(tenant_id, store_id, file_id)

    async def remove(self, tenant_id: UUID, store_id: str, file_id: str) -> None:
        """Remove a file from a store; the file itself stays. Raises StoreNotFound, FileNotFound."""
        async with self._database.tenant(tenant_id) as connection:
            await locked(connection, tenant_id, store_id)
            await remove(connection, tenant_id, store_id, [file_id])
            gone = await connection.fetchval(
                "delete from vector_store_files where tenant_id = $1 and vector_store_id = $2 and file_id = $3 "
                "returning true",
                *(tenant_id, store_id, file_id),
            )
            await connection.execute(_END_IN_BATCHES, tenant_id, store_id, file_id, "cancelled")
        if not gone:
            raise FileNotFound(file_id)

    async def cancel(self, tenant_id: UUID, store_id: str, batch_id: str) -> None:
        """Cancel the files of a batch that have not been read yet. Those that were added again since are read for who
        did."""
        async with self._database.tenant(tenant_id) as connection:
            await locked(connection, tenant_id, store_id)
            await connection.execute(
                """update vector_store_files v set status = 'cancelled', worker = null
                   where tenant_id = $1 and vector_store_id = $2 and status = 'in_progress' and batch_id is not null
                     and exists (select from batch_files b where b.tenant_id = $1 and b.vector_store_id = $2
                                 and b.file_id = v.file_id and b.batch_id = $3 and b.status = 'in_progress')
                     and not exists (select from batch_files b where b.tenant_id = $1 and b.vector_store_id = $2
                                     and b.file_id = v.file_id and b.batch_id <> $3 and b.status = 'in_progress')""",
                *(tenant_id, store_id, batch_id),
            )
            await connection.execute(
                """update batch_files set status = 'cancelled'
                   where tenant_id = $1 and vector_store_id = $2 and batch_id = $3 and status = 'in_progress'""",
                *(tenant_id, store_id, batch_id),
            )

    async def delete_file(self, tenant_id: UUID, file_id: str, *, also: Also = nothing) -> None:
        """Delete a file for good, from every store; `also` runs in the same transaction.

        Raises FileNotFound.
        """
        async with self._database.tenant(tenant_id) as connection:
            stores = await connection.fetch(
                "select vector_store_id from vector_store_files where tenant_id = $1 and file_id = $2 order by 1",
                *(tenant_id, file_id),
            )
            for row in stores:
                await locked(connection, tenant_id, row["vector_store_id"])
                await remove(connection, tenant_id, row["vector_store_id"], [file_id])
                await connection.execute(_END_IN_BATCHES, tenant_id, row["vector_store_id"], file_id, "cancelled")
            gone = await connection.fetchval(
                "delete from files where tenant_id = $1 and id = $2 returning true", tenant_id, file_id
            )
            if not gone:
                raise FileNotFound(file_id)
            await also(connection)


async def _waits(connection: Connection, claim: Claim) -> bool:
    return bool(
        await connection.fetchval(
            "select true from vector_store_files "
            "where tenant_id = $1 and vector_store_id = $2 and file_id = $3 and status = 'in_progress' for update",
            *claim,
        )
    )
