"""Uploaded files, byte for byte; the text that search finds is in other tables."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from itertools import count
from typing import BinaryIO, TypeAlias
from uuid import UUID

from migrations.pool import Connection, Database
from retrieval.errors import FileNotFound, TooManyFiles
from retrieval.records import Upload

# Called with the id of a new file in the transaction that stores it.
Note: TypeAlias = "Callable[[Connection, str], Awaitable[None]]"

PIECE_BYTES = 1024 * 1024  # of a file in memory at a time
_COLUMNS = "id, filename, purpose, bytes, created_at, uploaded"


async def nothing_of(_: Connection, _id: str) -> None:
    """Does nothing."""


class UploadStore:
    """Every method sees only the files of `tenant_id`."""

    def __init__(self, database: Database, *, tenant_bytes_max: int) -> None:
        self._database = database
        self._tenant_bytes_max = tenant_bytes_max

    async def create(
        self,
        tenant_id: UUID,
        filename: str,
        purpose: str,
        size: int,
        content: BinaryIO,
        *,
        bounded: bool = True,
        also: Note = nothing_of,
    ) -> Upload:
        """Store a file of `size` bytes, atomically; `also` runs in the same transaction.

        Raises TooManyFiles if it exceeds the tenant's limit, unless not `bounded`: then it only counts for later files.
        """
        file_id, digest = f"file_{secrets.token_hex(24)}", hashlib.sha256()
        async with self._database.tenant(tenant_id) as connection:
            await connection.execute("select pg_advisory_xact_lock(hashtextextended($1, 0))", f"uploads {tenant_id}")
            used = await connection.fetchval(
                "select coalesce(sum(bytes), 0)::bigint from files where tenant_id = $1 and uploaded", tenant_id
            )
            if bounded and used + size > self._tenant_bytes_max:
                raise TooManyFiles(used, self._tenant_bytes_max)
            row = await connection.fetchrow(
                "insert into files (tenant_id, id, filename, title, media_type, bytes, sha256, content, purpose, "
                "uploaded) values ($1, $2, $3, $3, 'application/octet-stream', $4, '', '', $5, true) "
                f"returning {_COLUMNS}",
                *(tenant_id, file_id, filename, size, purpose),
            )
            number = 0
            while piece := content.read(PIECE_BYTES):
                digest.update(piece)
                await connection.execute(
                    "insert into file_pieces (tenant_id, file_id, number, data) values ($1, $2, $3, $4)",
                    *(tenant_id, file_id, number, piece),
                )
                number += 1
            await connection.execute(
                "update files set sha256 = $3 where tenant_id = $1 and id = $2", tenant_id, file_id, digest.digest()
            )
            await also(connection, file_id)
        assert row is not None
        return Upload(**row)

    async def get(self, tenant_id: UUID, file_id: str) -> Upload:
        """Raises FileNotFound."""
        row = await self._database.row(
            tenant_id, f"select {_COLUMNS} from files where tenant_id = $1 and id = $2", file_id
        )
        if row is None:
            raise FileNotFound(file_id)
        return Upload(**row)

    async def list(
        self, tenant_id: UUID, *, after: str | None, limit: int, newest_first: bool, purpose: str | None
    ) -> list[Upload]:
        """Files after this one, in order of creation."""
        order, beyond = ("desc", "<") if newest_first else ("asc", ">")
        rows = await self._database.rows(
            tenant_id,
            f"""select {_COLUMNS} from files f
                 where tenant_id = $1 and ($2::text is null or purpose = $2)
                   and ($3::text is null or (created_at, id) {beyond} (
                           select created_at, id from files a where a.tenant_id = $1 and a.id = $3))
                 order by created_at {order}, id {order} limit $4""",
            *(purpose, after, limit),
        )
        return [Upload(**row) for row in rows]

    async def pieces(self, tenant_id: UUID, file_id: str) -> AsyncGenerator[bytes, None]:
        """The file as it was uploaded, piece by piece; no connection is held between pieces."""
        select = "select data from file_pieces where tenant_id = $1 and file_id = $2 and number = $3"
        for number in count():
            if (piece := await self._database.value(tenant_id, select, file_id, number)) is None:
                return
            yield piece

    async def read(self, tenant_id: UUID, file_id: str) -> bytes:
        return b"".join([piece async for piece in self.pieces(tenant_id, file_id)])
