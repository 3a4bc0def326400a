"""/v1/vector_stores: stores, searches in them, what is in a store, and what is on its way there."""

from __future__ import annotations

from uuid import UUID

from aiohttp import web

from inference.errors import UnknownEmbedder
from retrieval.embedding import check_model
from retrieval.passage import Passage
from retrieval.query import Query
from worker.auth.access import needs
from worker.auth.audit import Act
from worker.auth.scope import USUAL, Scope
from worker.errors import ApiError, invalid
from worker.http.json_response import json_response
from worker.http.request import BODY, PRINCIPAL, TRACE, noted, path_id
from worker.http.route_docs import RouteDocs
from worker.services import SERVICES, Services
from worker.wire.page import PAGE, PageQuery, list_object, page_of
from worker.wire.parse import parsed
from worker.wire.vector_store import (
    BatchCreate,
    FileAdd,
    FileDescribe,
    StoreCreate,
    StoreSearch,
    StoreUpdate,
    batch_object,
    deleted,
    search_page,
    search_result,
    store_file_object,
    vector_store_object,
)

STATUSES = ("in_progress", "completed", "failed", "cancelled")
FILES, BATCHES = "/v1/vector_stores/{id}/files", "/v1/vector_stores/{id}/file_batches"


def routes() -> list[web.RouteDef]:
    return [
        *needs(
            Scope.INGEST,
            web.post("/v1/vector_stores", create),
            web.post("/v1/vector_stores/{id}", update),
            web.delete("/v1/vector_stores/{id}", delete),
            web.post(FILES, add),
            web.post(FILES + "/{file_id}", describe),
            web.delete(FILES + "/{file_id}", remove),
            web.post(BATCHES, add_batch),
            web.post(BATCHES + "/{batch_id}/cancel", cancel_batch),
        ),
        *needs(
            USUAL,
            web.get("/v1/vector_stores", list_stores),
            web.get("/v1/vector_stores/{id}", retrieve),
            web.post("/v1/vector_stores/{id}/search", search),
            web.get(FILES, list_files),
            web.get(FILES + "/{file_id}", retrieve_file),
            web.get(FILES + "/{file_id}/content", content),
            web.get(BATCHES + "/{batch_id}", retrieve_batch),
            web.get(BATCHES + "/{batch_id}/files", list_files),
        ),
    ]


@RouteDocs(StoreCreate)
async def create(request: web.Request) -> web.Response:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    body = await parsed(StoreCreate, request[BODY])
    model, dimensions = _model(services, body.firsttoken_embedding_model)
    for file_id in body.file_ids or ():  # before anything is made
        await services.uploads.get(tenant_id, file_id)
    store = await services.passages.create(
        tenant_id, body.name, body.metadata or {}, embedding_model=model, dimensions=dimensions
    )
    if body.file_ids:
        await services.file_queue.add(tenant_id, store.id, {file_id: {} for file_id in body.file_ids})
        services.ingest_worker.wake()
    return json_response(vector_store_object(await services.passages.counted(tenant_id, store.id)))


def _model(services: Services, name: str | None) -> tuple[str, int]:
    """Its name and dimensions; the default one without a name. It is not loaded yet. Raises ApiError 400."""
    model = services.aliases.model_of(name or services.embedders.default.name)
    try:
        return model, services.embedders.dimensions(model)
    except UnknownEmbedder as error:
        raise invalid("firsttoken_embedding_model", str(error)) from None


@RouteDocs(query=PAGE)
async def list_stores(request: web.Request) -> web.Response:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    stores = [vector_store_object(store) for store in await services.passages.stores(tenant_id)]
    page, has_more = page_of(stores, PageQuery.parse(request.query))
    return json_response(list_object(page, has_more))


async def retrieve(request: web.Request) -> web.Response:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    return json_response(
        vector_store_object(await services.passages.counted(tenant_id, path_id(request, "vector store")))
    )


@RouteDocs(StoreUpdate)
async def update(request: web.Request) -> web.Response:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    body = await parsed(StoreUpdate, request[BODY])
    store = await services.passages.update(
        tenant_id, path_id(request, "vector store"), name=body.name, metadata=body.metadata
    )
    return json_response(vector_store_object(await services.passages.counted(tenant_id, store.id)))


async def delete(request: web.Request) -> web.Response:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    store = await services.passages.get(tenant_id, path_id(request, "vector store"))
    also = noted(request, Act.STORE_DELETED, store.id, name=store.name)
    await services.passages.delete(tenant_id, store.id, also=also)
    return json_response(deleted("vector_store", store.id))


@RouteDocs(StoreSearch)
async def search(request: web.Request) -> web.Response:
    """The passages of all queries, best first, without duplicates."""
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    body = await parsed(StoreSearch, request[BODY])
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
    return json_response(search_page(body.query, results))


@RouteDocs(FileAdd)
async def add(request: web.Request) -> web.Response:
    services, tenant_id, store_id = await _fillable(request)
    body = await parsed(FileAdd, request[BODY])
    await services.file_queue.add(tenant_id, store_id, {body.file_id: body.attributes or {}})
    services.ingest_worker.wake()
    return json_response(store_file_object(await services.file_queue.get(tenant_id, store_id, body.file_id)))


@RouteDocs(query=PAGE | {"filter": {"type": "string"}})
async def list_files(request: web.Request) -> web.Response:
    """The files of a store or of one batch; `filter` is a status."""
    services, tenant_id, store_id = await _opened(request)
    batch_id = path_id(request, "batch", "batch_id") if "batch_id" in request.match_info else None
    status = request.query.get("filter")
    if status is not None and status not in STATUSES:
        raise invalid("filter", f"it must be {', '.join(STATUSES[:-1])} or {STATUSES[-1]}.")
    files = await services.file_queue.list(tenant_id, store_id, batch_id=batch_id)
    shown = [store_file_object(file) for file in files if status in (None, file.status)]
    page, has_more = page_of(shown, PageQuery.parse(request.query))
    return json_response(list_object(page, has_more))


async def retrieve_file(request: web.Request) -> web.Response:
    services, tenant_id, store_id = await _opened(request)
    return json_response(store_file_object(await services.file_queue.get(tenant_id, store_id, _file_id(request))))


@RouteDocs(FileDescribe)
async def describe(request: web.Request) -> web.Response:
    services, tenant_id, store_id = await _opened(request)
    body = await parsed(FileDescribe, request[BODY])
    file = await services.file_queue.describe(tenant_id, store_id, _file_id(request), body.attributes or {})
    return json_response(store_file_object(file))


async def remove(request: web.Request) -> web.Response:
    """Out of this store; the file stays."""
    services, tenant_id, store_id = await _opened(request)
    file_id = _file_id(request)
    await services.file_queue.remove(tenant_id, store_id, file_id)
    return json_response(deleted("vector_store.file", file_id))


async def content(request: web.Request) -> web.Response:
    """The extracted text of a file."""
    services, tenant_id, store_id = await _opened(request)
    file = await services.file_queue.get(tenant_id, store_id, _file_id(request))
    text = (await services.passages.file(tenant_id, file.id)).content
    page = {"object": "vector_store.file_content.page", "has_more": False, "next_page": None}
    return json_response({**page, "data": [{"type": "text", "text": text}]})


@RouteDocs(BatchCreate)
async def add_batch(request: web.Request) -> web.Response:
    services, tenant_id, store_id = await _fillable(request)
    body = await parsed(BatchCreate, request[BODY])
    batch_id = await services.file_queue.add(tenant_id, store_id, body.added, batch=True)
    services.ingest_worker.wake()
    return await _batch(services, tenant_id, store_id, str(batch_id))


async def retrieve_batch(request: web.Request) -> web.Response:
    services, tenant_id, store_id = await _opened(request)
    return await _batch(services, tenant_id, store_id, path_id(request, "batch", "batch_id"))


async def cancel_batch(request: web.Request) -> web.Response:
    services, tenant_id, store_id = await _opened(request)
    batch_id = path_id(request, "batch", "batch_id")
    await services.file_queue.cancel(tenant_id, store_id, batch_id)
    return await _batch(services, tenant_id, store_id, batch_id)


async def _batch(services: Services, tenant_id: UUID, store_id: str, batch_id: str) -> web.Response:
    files = await services.file_queue.list(tenant_id, store_id, batch_id=batch_id)
    if not files:
        raise ApiError(404, "There is no batch with this id.", code="not_found")
    return json_response(batch_object(batch_id, store_id, files))


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
