"""The search over chunks: exact for small stores, by index for large ones; the choice is not left to the planner.

An exact search takes a microsecond per chunk and misses nothing. The index takes about the same time for any size, but
covers the chunks of all tenants: the smaller a store's share of them, the more of its entries are visited in vain.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import numpy as np
from numpy.typing import NDArray

from migrations.pool import Connection
from retrieval.candidate import ChunkKey, Hit
from retrieval.filter import Filter, condition
from retrieval.records import VectorStore

LEXEMES_MAX = 64  # per query; a pasted page would be compared word by word with every hit
PHRASES_MAX = 8  # per query; each is compared with every hit
HITS_MAX = 250  # chunks looked up by words: 2 ms; more of them find nothing else
VISITS_MAX = 40 * HITS_MAX  # most chunks visited for hits that pass a filter: about 10 ms
NARROW_CHUNKS_MAX = 4 * HITS_MAX  # up to here, weighing all chunks file by file is as fast as an index's hits
EXACT_CHUNKS_MAX = 5000  # 5 ms: below this, the index gains nothing
VISIT_COST = 16  # of a chunk visited through the index, in exact comparisons: pages are read in random order
INDEXED_DIMENSIONS = (384, 512, 768, 1024)  # migrations/0003_search.sql
# Of the 10 nearest in 100,000 chunks the index misses 1 in 60. The scan continues until enough rows pass row-level
# security and the filter, or this many were visited (150 ms). The statement leaves the planner no choice that depends
# on values, so one plan serves all of them: planning again costs a millisecond. The same round trip returns the
# approximate number of chunks; if an exact search then turns out better, these settings do not affect it.
_INDEX_SETTINGS = """
select reltuples::bigint,
       set_config('hnsw.ef_search', '160', true), set_config('hnsw.iterative_scan', 'relaxed_order', true),
       set_config('hnsw.max_scan_tuples', '40000', true), set_config('enable_sort', 'off', true),
       set_config('plan_cache_mode', 'force_generic_plan', true)
  from pg_class
 where oid = 'chunks'::regclass
"""

_QUOTED = re.compile('"([^"]+)"|“([^”]+)”|„([^“]+)“|«([^»]+)»|`([^`]+)`')

_SEARCH = resources.files("retrieval.store").joinpath("search.sql").read_text("utf-8")
# "is true" keeps this a condition on each row: as a join, it would lose the order of the index.
_ALLOWED = "((vector_store_id, file_id) in (select vector_store_id, file_id from allowed)) is true"
_ALL = "chunks where tenant_id = $1 and vector_store_id = any($2)"
_OF_ALLOWED = """allowed cross join lateral (
        select c.ordinal, c.embedding from chunks c
         where c.tenant_id = $1 and c.vector_store_id = allowed.vector_store_id and c.file_id = allowed.file_id
        offset 0) as c  -- file by file, whatever the planner thinks of the filter
     where true"""
_BY_WORD = (
    "lookup cross join lateral worded_chunks($2, lookups, beside, words, weights, $8::integer, {visits}, {files})"
)
_IN_ALLOWED = (
    "(select array_agg(vector_store_id) from allowed), (select coalesce(array_agg(file_id), '{}') from allowed)"
)
_BY_FILE = """(
        select c.vector_store_id, c.file_id, c.ordinal,
               (select sum(idf * word_weight(c.lexemes, word)) from weighty) as weight
          from allowed cross join lateral (
            select c.vector_store_id, c.file_id, c.ordinal, c.lexemes from chunks c
             where c.tenant_id = $1 and c.vector_store_id = allowed.vector_store_id and c.file_id = allowed.file_id
            offset 0) as c
     ) as c"""


class SearchResult(NamedTuple):
    candidates: list[Hit]  # in no order, each chunk once
    chunks: int  # that passed the filter
    by_index: bool


def index_is_better(chunks: int, total: int, rows: int, *, exact_chunks_max: int = EXACT_CHUNKS_MAX) -> bool:
    """Whether the index finds the `rows` nearest of `chunks` searched, of `total` (approximate), in less time."""
    visits = rows * max(total, chunks) / max(chunks, 1)
    return chunks > exact_chunks_max and visits * VISIT_COST < chunks


async def search(
    connection: Connection,
    tenant_id: UUID,
    stores: Sequence[VectorStore],
    *,
    query: str,
    vector: NDArray[np.float32] | None,
    limit: int,
    filters: Filter | None = None,
    exact_chunks_max: int = EXACT_CHUNKS_MAX,
) -> SearchResult:
    """The `limit` chunks nearest to the vector and the `limit` with the most of the query's rare words.

    All stores are of one embedding model.
    """
    values: list[Any] = [
        *(tenant_id, [store.id for store in stores], query, None if vector is None else vector.tolist()),
        *(limit, LEXEMES_MAX, sum(store.chunks for store in stores), HITS_MAX, phrases(query)),
    ]
    allowed = None if filters is None else condition(filters, "attributes", values)
    chunks = values[6] if filters is None else await _count(connection, tenant_id, stores, filters)
    dimensions = stores[0].dimensions
    by_index = dimensions in INDEXED_DIMENSIONS and vector is not None and chunks > exact_chunks_max
    if by_index:
        total = await connection.fetchval(_INDEX_SETTINGS)
        by_index = index_is_better(chunks, total, limit, exact_chunks_max=exact_chunks_max)
    is_narrow = chunks <= NARROW_CHUNKS_MAX
    rows = await connection.fetch(statement(allowed, dimensions if by_index else None, narrow=is_narrow), *values)
    return SearchResult([_hit(row, stores[0].embedding_model) for row in rows], chunks, by_index)


def statement(allowed: str | None, indexed: int | None, *, narrow: bool = False) -> str:
    """`allowed` is the filter's condition, `indexed` the dimensions of the index to use; `narrow`: few chunks pass."""
    within = _ALLOWED if allowed else "true"
    if indexed:
        searched = f"{_ALL} and vector_dims(embedding) = {indexed} and {within}"
        distance = f"embedding::halfvec({indexed}) <#> $4::real[]::halfvec({indexed})"
    else:
        searched = _OF_ALLOWED if allowed else _ALL
        distance = "(embedding <#> $4::real[]::halfvec) + 0"  # no index matches a sum
    if allowed:
        weighed = _BY_FILE if narrow else _BY_WORD.format(visits=VISITS_MAX, files=_IN_ALLOWED)
    else:
        weighed = _BY_WORD.format(visits="$8::integer", files="null, null")
    return _SEARCH.format(filter=allowed or "true", weighed=weighed, searched=searched, distance=distance)


def phrases(query: str) -> list[str]:
    """What stands in quotation marks or backticks, and is meant word for word."""
    return [match[match.lastindex or 0] for match in islice(_QUOTED.finditer(query), PHRASES_MAX)]


async def _count(connection: Connection, tenant_id: UUID, stores: Sequence[VectorStore], filters: Filter) -> int:
    values: list[Any] = [tenant_id, [store.id for store in stores]]
    allowed = condition(filters, "attributes", values)
    found: int = await connection.fetchval(
        "select coalesce(sum(chunks), 0) from vector_store_files "
        f"where tenant_id = $1 and vector_store_id = any($2) and {allowed}",
        *values,
    )
    return found


def _hit(row: asyncpg.Record, model: str) -> Hit:
    return Hit(
        key=ChunkKey(row["vector_store_id"], row["file_id"], row["ordinal"]),
        start=row["start_char"],
        end=row["end_char"],
        cosine=row["cosine"],
        coverage=row["weight"] / (row["query_weight"] or 1.0),
        exact=row["exact_weight"] / (row["query_weight"] or 1.0),
        model=model,
    )
