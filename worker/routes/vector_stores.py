"""/v1/vector_stores: stores, searches in them, what is in a store, and what is on its way there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, get_args
from uuid import UUID

from aiohttp import web
from pydantic import Field, StringConstraints, model_validator

from inference.errors import UnknownEmbedder
from retrieval.config import SCORE_THRESHOLD
from retrieval.embedding import check_model
from retrieval.filter import Attributes, Filter
from retrieval.passage import Passage
from retrieval.query import Query
from retrieval.records import CountedStore, FileBatch, StoreFile
from worker.auth.audit import Act
from worker.auth.scope import USUAL, Scope
from worker.errors import invalid
from worker.http.query import PageQuery
from worker.http.request import PRINCIPAL, TRACE, Json, Routes, noted, path_id
from worker.services import SERVICES, Services
from worker.wire import limits
from worker.wire.options import Metadata
from worker.wire.strict import Id, Strict, Unsupported, only, short_for
from worker.wire.tools import RankingOptions

FILES_MAX = 500  # of one batch, the limit of the public contract
ATTRIBUTES_MAX = 16
QUERIES_MAX = 8  # of one search: each is embedded
QUERY_CHARS_MAX = 8_000

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
FileAttributes = Annotated[Attributes, Field(max_length=ATTRIBUTES_MAX)]
Status: TypeAlias = Literal["in_progress", "completed", "failed", "cancelled"]
FILES, BATCHES = "/v1/vector_stores/{id}/files", "/v1/vector_stores/{id}/file_batches"


class ChunkingStrategy(Strict):
    """Documents are split by their structure: the sizes of a static strategy are ignored."""

    type: Annotated[str, only("auto")] = "auto"


class StoreCreate(Strict):
    name: Name | None = None
    file_ids: Annotated[list[Id], Field(max_length=FILES_MAX)] | None = None
    metadata: Metadata | None = None
    chunking_strategy: ChunkingStrategy | None = None
    firsttoken_embedding_model: Name | None = None
    description: Annotated[Any, only(None, instead="Put it into 'metadata'.")] = None
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


class StoreSearch(Strict):
    query: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=QUERY_CHARS_MAX)]],
        short_for(lambda query: [query]),
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


def batch_object(batch: FileBatch) -> dict[str, Any]:
    counts = {status: batch.files.get(status, 0) for status in get_args(Status)}
    ended = "cancelled" if counts["cancelled"] else "completed"
    return {
        "id": batch.id,
        "object": "vector_store.files_batch",
        "created_at": int(batch.created_at.timestamp()),
        "vector_store_id": batch.vector_store_id,
        "status": "in_progress" if counts["in_progress"] else ended,
        "file_counts": {**counts, "total": sum(counts.values())},
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


routes = Routes()


@routes.post("/v1/vector_stores", Scope.INGEST)
async def create(request: web.Request, body: StoreCreate) -> Json:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    model, dimensions = _model(services, body.firsttoken_embedding_model)
    for file_id in body.file_ids or ():  # before anything is made
        await services.uploads.get(tenant_id, file_id)
    store = await services.passages.create(
        tenant_id, body.name, body.metadata or {}, embedding_model=model, dimensions=dimensions
    )
    if body.file_ids:
        await services.file_queue.add(tenant_id, store.id, {file_id: {} for file_id in body.file_ids})
        services.ingest_worker.wake()
    return vector_store_object(await services.passages.counted(tenant_id, store.id))


def _model(services: Services, name: str | None) -> tuple[str, int]:
    """Its name and dimensions; the default one without a name. It is not loaded yet. Raises ApiError 400."""
    model = services.aliases.model_of(name or services.embedders.default.name)
    try:
        return model, services.embedders.dimensions(model)
    except UnknownEmbedder as error:
        raise invalid("firsttoken_embedding_model", str(error)) from None


@routes.get("/v1/vector_stores", USUAL)
async def list_stores(request: web.Request, page: PageQuery) -> Json:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    return page.of([vector_store_object(store) for store in await services.passages.stores(tenant_id)])


@routes.get("/v1/vector_stores/{id}", USUAL)
async def retrieve(request: web.Request) -> Json:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    return vector_store_object(await services.passages.counted(tenant_id, path_id(request, "vector store")))


@routes.post("/v1/vector_stores/{id}", Scope.INGEST)
async def update(request: web.Request, body: StoreUpdate) -> Json:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    store = await services.passages.update(
        tenant_id, path_id(request, "vector store"), name=body.name, metadata=body.metadata
    )
    return vector_store_object(await services.passages.counted(tenant_id, store.id))


@routes.delete("/v1/vector_stores/{id}", Scope.INGEST)
async def delete(request: web.Request) -> Json:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    store = await services.passages.get(tenant_id, path_id(request, "vector store"))
    also = noted(request, Act.STORE_DELETED, store.id, name=store.name)
    await services.passages.delete(tenant_id, store.id, also=also)
    return deleted("vector_store", store.id)


@routes.post("/v1/vector_stores/{id}/search", USUAL)
async def search(request: web.Request, body: StoreSearch) -> Json:
    """The passages of all queries, best first, without duplicates."""
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    store = await services.passages.get(tenant_id, path_id(request, "vector store"))
    found: dict[tuple[str, int], Passage] = {}
    with services.admission.turn(tenant_id):
        for query in body.query:
            asked = Query(tenant_id, query, (store.id,), body.limit, body.score_threshold, body.filters)
            for passage in await services.retriever.retrieve(asked, request[TRACE]):
                key = passage.file_id, passage.start_char
                if key not in found or found[key].score < passage.score:
                    found[key] = passage
    best = sorted(found.values(), key=lambda passage: -passage.score)[: body.limit]
    attributes = await services.file_queue.attributes(tenant_id, store.id, {passage.file_id for passage in best})
    results = [search_result(passage, attributes.get(passage.file_id, {})) for passage in best]
    page = {"object": "vector_store.search_results.page", "search_query": body.query, "data": results}
    return {**page, "has_more": False, "next_page": None}


@routes.post(FILES, Scope.INGEST)
async def add(request: web.Request, body: FileAdd) -> Json:
    services, tenant_id, store_id = await _fillable(request)
    await services.file_queue.add(tenant_id, store_id, {body.file_id: body.attributes or {}})
    services.ingest_worker.wake()
    return store_file_object(await services.file_queue.get(tenant_id, store_id, body.file_id))


class FilesQuery(PageQuery):
    filter: Status | None = None


@routes.get(FILES, USUAL)
@routes.get(BATCHES + "/{batch_id}/files", USUAL)
async def list_files(request: web.Request, page: FilesQuery) -> Json:
    """The files of a store or of one batch; `filter` is a status."""
    services, tenant_id, store_id = await _opened(request)
    batch_id = path_id(request, "batch", "batch_id") if "batch_id" in request.match_info else None
    if batch_id is None:
        files = await services.file_queue.list(tenant_id, store_id)
    else:
        await services.file_queue.batch(tenant_id, store_id, batch_id)
        files = await services.file_queue.list_batch(tenant_id, store_id, batch_id)
    return page.of([store_file_object(file) for file in files if page.filter in (None, file.status)])


@routes.get(FILES + "/{file_id}", USUAL)
async def retrieve_file(request: web.Request) -> Json:
    services, tenant_id, store_id = await _opened(request)
    return store_file_object(await services.file_queue.get(tenant_id, store_id, _file_id(request)))


@routes.post(FILES + "/{file_id}", Scope.INGEST)
async def describe(request: web.Request, body: FileDescribe) -> Json:
    services, tenant_id, store_id = await _opened(request)
    file = await services.file_queue.describe(tenant_id, store_id, _file_id(request), body.attributes or {})
    return store_file_object(file)


@routes.delete(FILES + "/{file_id}", Scope.INGEST)
async def remove(request: web.Request) -> Json:
    """Out of this store; the file stays."""
    services, tenant_id, store_id = await _opened(request)
    file_id = _file_id(request)
    await services.file_queue.remove(tenant_id, store_id, file_id)
    return deleted("vector_store.file", file_id)


@routes.get(FILES + "/{file_id}/content", USUAL)
async def content(request: web.Request) -> Json:
    """The extracted text of a file."""
    services, tenant_id, store_id = await _opened(request)
    file = await services.file_queue.get(tenant_id, store_id, _file_id(request))
    text = (await services.passages.file(tenant_id, file.id)).content
    page = {"object": "vector_store.file_content.page", "has_more": False, "next_page": None}
    return {**page, "data": [{"type": "text", "text": text}]}


@routes.post(BATCHES, Scope.INGEST)
async def add_batch(request: web.Request, body: BatchCreate) -> Json:
    services, tenant_id, store_id = await _fillable(request)
    batch_id = await services.file_queue.add(tenant_id, store_id, body.added, batch=True)
    services.ingest_worker.wake()
    return await _batch(services, tenant_id, store_id, str(batch_id))


@routes.get(BATCHES + "/{batch_id}", USUAL)
async def retrieve_batch(request: web.Request) -> Json:
    services, tenant_id, store_id = await _opened(request)
    return await _batch(services, tenant_id, store_id, path_id(request, "batch", "batch_id"))


@routes.post(BATCHES + "/{batch_id}/cancel", Scope.INGEST)
async def cancel_batch(request: web.Request) -> Json:
    services, tenant_id, store_id = await _opened(request)
    batch_id = path_id(request, "batch", "batch_id")
    await services.file_queue.cancel(tenant_id, store_id, batch_id)
    return await _batch(services, tenant_id, store_id, batch_id)


async def _batch(services: Services, tenant_id: UUID, store_id: str, batch_id: str) -> Json:
    return batch_object(await services.file_queue.batch(tenant_id, store_id, batch_id))


async def _opened(request: web.Request) -> tuple[Services, UUID, str]:
    """The store of the address, by its id or name. Raises StoreNotFound."""
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    return services, tenant_id, (await services.passages.get(tenant_id, path_id(request, "vector store"))).id


async def _fillable(request: web.Request) -> tuple[Services, UUID, str]:
    """As `_opened`. Raises EmbeddingModelMissing where its files could not be read."""
    services, tenant_id, store_id = await _opened(request)
    check_model(await services.passages.get(tenant_id, store_id), services.embedders)
    return services, tenant_id, store_id


def _file_id(request: web.Request) -> str:
    return path_id(request, "file", "file_id")
