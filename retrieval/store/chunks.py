"""The chunks of one file in one store, written and removed with their lexemes, inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID

from migrations.pool import Connection
from retrieval.errors import StoreNotFound
from retrieval.records import EmbeddedChunk

_INSERT_CHUNK = """
insert into chunks (tenant_id, vector_store_id, file_id, ordinal, heading, text, start_char, end_char, tokens,
                    embedding, windows, window_scales)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::real[]::halfvec, $11, $12)
"""

# Counts change in the same transaction as the chunks, so they are always right, even after a crash.
_COUNT_LEXEMES = """
insert into lexeme_counts as l (tenant_id, vector_store_id, lexeme, chunks)
select tenant_id, vector_store_id, lexeme, count(*)
  from chunks cross join unnest(tsvector_to_array(lexemes)) as t(lexeme)
 where tenant_id = $1 and vector_store_id = $2 and file_id = $3
 group by 1, 2, 3
    on conflict (tenant_id, vector_store_id, lexeme) do update set chunks = l.chunks + excluded.chunks
"""

_DISCOUNT_LEXEMES = """
with gone as (
    select lexeme, count(*) as chunks
      from chunks cross join unnest(tsvector_to_array(lexemes)) as t(lexeme)
     where tenant_id = $1 and vector_store_id = $2 and file_id = any($3)
     group by 1
)
update lexeme_counts l set chunks = l.chunks - gone.chunks
  from gone
 where l.tenant_id = $1 and l.vector_store_id = $2 and l.lexeme = gone.lexeme
"""


_ADD = "update vector_stores set chunks = chunks + $3 where tenant_id = $1 and id = $2"

_DELETE_CHUNKS = """
with gone as (
    delete from chunks where tenant_id = $1 and vector_store_id = $2 and file_id = any($3) returning 1
)
update vector_stores set chunks = chunks - (select count(*) from gone) where tenant_id = $1 and id = $2
"""


async def locked(connection: Connection, tenant_id: UUID, store_id: str) -> None:
    """Allow one writer per store until the transaction ends; readers are not blocked. Raises StoreNotFound."""
    if not await connection.fetchval(
        "select true from vector_stores where tenant_id = $1 and id = $2 for no key update", tenant_id, store_id
    ):
        raise StoreNotFound(store_id)


async def write(
    connection: Connection, tenant_id: UUID, store_id: str, file_id: str, chunks: Sequence[EmbeddedChunk]
) -> None:
    """Write the chunks of a file that has none there, into a locked store."""
    await connection.executemany(_INSERT_CHUNK, _rows(tenant_id, store_id, file_id, chunks))
    await connection.execute(_COUNT_LEXEMES, tenant_id, store_id, file_id)
    await connection.execute(_ADD, tenant_id, store_id, len(chunks))


async def remove(connection: Connection, tenant_id: UUID, store_id: str, files: Sequence[str]) -> None:
    """Remove the chunks of these files, and their lexemes, from a locked store."""
    await connection.execute(_DISCOUNT_LEXEMES, tenant_id, store_id, list(files))
    await connection.execute(
        "delete from lexeme_counts where tenant_id = $1 and vector_store_id = $2 and chunks <= 0", tenant_id, store_id
    )
    await connection.execute(_DELETE_CHUNKS, tenant_id, store_id, list(files))


def _rows(
    tenant_id: UUID, store_id: str, file_id: str, chunks: Sequence[EmbeddedChunk]
) -> Iterator[tuple[object, ...]]:
    for ordinal, (chunk, vectors) in enumerate(chunks):
        yield (
            *(tenant_id, store_id, file_id, ordinal),
            *(chunk.heading, chunk.text, chunk.start, chunk.end, chunk.tokens),
            *(vectors.vector.tolist(), vectors.windows.tobytes(), vectors.scales.astype("<f2").tobytes()),
        )
