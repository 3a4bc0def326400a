"""Vector stores, the files in them, and searches in them, as clients see and write them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from retrieval.config import SCORE_THRESHOLD
from retrieval.filter import Attributes, Filter
from retrieval.passage import Passage
from retrieval.records import CountedStore, StoreFile
from worker.wire import limits
from worker.wire.options import Metadata
from worker.wire.strict import Id, Strict, Unsupported, only
from worker.wire.tools import RankingOptions

FILES_MAX = 500  # of one batch, the limit of the public contract
ATTRIBUTES_MAX = 16
QUERIES_MAX = 8  # of one search: each is embedded
QUERY_CHARS_MAX = 8_000

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
FileAttributes = Annotated[Attributes, Field(max_length=ATTRIBUTES_MAX)]


class ChunkingStrategy(Strict):
    """Documents are split by their structure: the sizes of a static strategy are ignored."""

    type: Annotated[str, only("auto")] = "auto"


class StoreCreate(Strict):
    name: Name | None = None
    file_ids: Annotated[list[Id], Field(max_length=FILES_MAX)] | None = None
    metadata: Metadata | None = None
    chunking_strategy: ChunkingStrategy | None = None
    firsttoken_embedding_model: Name | None = None
    description: Unsupported = None
    expires_after: Unsupported = None


class StoreUpdate(Strict):
    name: Name | None = None
    metadata: Metadata | None = None
    expires_after: Unsupported = None


class FileAdd(Strict):
    file_id: Id
    attributes: FileAttributes | None = None
    chunking_strategy: ChunkingStrategy | None = None


class FileDescribe(Strict):
    attributes: FileAttributes | None


class BatchCreate(Strict):
    """Either `file_ids`, all with the same attributes, or `files`, each with its own."""

    file_ids: Annotated[list[Id], Field(min_length=1, max_length=FILES_MAX)] | None = None
    files: Annotated[list[FileAdd], Field(min_length=1, max_length=FILES_MAX)] | None = None
    attributes: FileAttributes | None = None
    chunking_strategy: ChunkingStrategy | None = None

    @model_validator(mode="after")
    def _is_one_of_two(self) -> BatchCreate:
        if (self.file_ids is None) == (self.files is None):
            raise ValueError("give either file_ids or files")
        return self

    @property
    def added(self) -> dict[str, Attributes]:
        if self.files is not None:
            return {file.file_id: file.attributes or {} for file in self.files}
        return {file_id: self.attributes or {} for file_id in self.file_ids or ()}


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class StoreSearch(Strict):
    query: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=QUERY_CHARS_MAX)]],
        BeforeValidator(_as_list),
        Field(min_length=1, max_length=QUERIES_MAX),
    ]
    max_num_results: Annotated[int, Field(ge=1, le=limits.RESULTS_MAX)] | None = None
    filters: Filter | None = None
    ranking_options: RankingOptions | None = None
    rewrite_query: Annotated[bool | None, only(None, False)] = None

    @property
    def limit(self) -> int:
        return self.max_num_results or 10

    @property
    def score_threshold(self) -> float:
        return self.ranking_options.score_threshold if self.ranking_options else 0.0


def vector_store_object(store: CountedStore) -> dict[str, Any]:
    return {
        "id": store.id,
        "object": "vector_store",
        "created_at": int(store.created_at.timestamp()),
        "last_active_at": None,
        "name": store.name,
        "status": "in_progress" if store.waiting else "completed",
        "usage_bytes": store.bytes,
        "file_counts": {
            "in_progress": store.waiting,
            "completed": store.files,
            "failed": store.failed,
            "cancelled": store.cancelled,
            "total": store.waiting + store.files + store.failed + store.cancelled,
        },
        "expires_after": None,
        "expires_at": None,
        "metadata": dict(store.metadata),
        "firsttoken_embedding_model": store.embedding_model,
        "firsttoken_score_threshold": SCORE_THRESHOLD,
    }


def store_file_object(file: StoreFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "vector_store.file",
        "created_at": int(file.created_at.timestamp()),
        "vector_store_id": file.vector_store_id,
        "status": file.status,
        "last_error": dict(file.error) if file.error else None,
        "usage_bytes": file.bytes if file.status == "completed" else 0,
        "attributes": dict(file.attributes),
        "chunking_strategy": {"type": "other"},
        "firsttoken_filename": file.filename,
        "firsttoken_passages": file.chunks,
    }


def batch_object(batch_id: str, store_id: str, files: Sequence[StoreFile]) -> dict[str, Any]:
    """A batch is the set of its files."""
    counts = Counter(file.status for file in files)
    ended = "cancelled" if counts["cancelled"] else "completed"
    return {
        "id": batch_id,
        "object": "vector_store.files_batch",
        "created_at": int(min(file.created_at for file in files).timestamp()),
        "vector_store_id": store_id,
        "status": "in_progress" if counts["in_progress"] else ended,
        "file_counts": {
            **{status: counts[status] for status in ("in_progress", "completed", "failed", "cancelled")},
            "total": len(files),
        },
    }


def search_page(queries: Sequence[str], results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "object": "vector_store.search_results.page",
        "search_query": list(queries),
        "data": list(results),
        "has_more": False,
        "next_page": None,
    }


def search_result(passage: Passage, attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "file_id": passage.file_id,
        "filename": passage.filename,
        "score": passage.score,
        "attributes": dict(attributes),
        "content": [{"type": "text", "text": passage.text}],
    }


def deleted(kind: str, id: str) -> dict[str, Any]:
    return {"id": id, "object": f"{kind}.deleted", "deleted": True}
