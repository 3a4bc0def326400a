"""/v1/vector_stores: stores, and searches in them."""

from __future__ import annotations

from aiohttp import web

from inference.embedding.registry import Embedders
from inference.errors import UnknownEmbedder
from retrieval.passage import Passage
from worker.checks import path_id
from worker.errors import ApiError
from worker.reply import reply
from worker.request_keys import PRINCIPAL, TRACE
from worker.services import SERVICES
from worker.wire.page import PageQuery, list_object, page_of
from worker.wire.parse import parse
from worker.wire.vector_store import (
    StoreCreate,
    StoreSearch,
    StoreUpdate,
    deleted,
    search_page,
    search_result,
    vector_store_object,
)


def routes() -> list[web.RouteDef]:
    return [
        web.post("/v1/vector_stores", create),
        web.get("/v1/vector_stores", list_stores),
        web.get("/v1/vector_stores/{id}", retrieve),
        web.post("/v1/vector_stores/{id}", update),
        web.delete("/v1/vector_stores/{id}", delete),
        web.post("/v1/vector_stores/{id}/search", search),
    ]


async def create(request: web.Request) -> web.Response:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    body = parse(StoreCreate, await request.read())
    model, dimensions = _model(services.embedders, body.firsttoken_embedding_model)
    for file_id in body.file_ids or ():  # before anything is made
        await services.uploads.get(tenant_id, file_id)
    store = await services.passages.create(
        tenant_id, body.name, body.metadata or {}, embedding_model=model, dimensions=dimensions
    )
    if body.file_ids:
        await services.file_queue.add(tenant_id, store.id, {file_id: {} for file_id in body.file_ids})
        services.ingest_worker.wake()
    return reply(vector_store_object(await services.passages.counted(tenant_id, store.id)))


def _model(embedders: Embedders, name: str | None) -> tuple[str, int]:
    """Its name and dimensions; the default one without a name. It is not loaded yet. Raises ApiError 400."""
    model = name or embedders.default.name
    try:
        return model, embedders.dimensions(model)
    except UnknownEmbedder as error:
        param = "firsttoken_embedding_model"
        raise ApiError(400, f"Invalid '{param}': {error}.", param=param, code="invalid_value") from None


async def list_stores(request: web.Request) -> web.Response:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    stores = [vector_store_object(store) for store in await services.passages.stores(tenant_id)]
    page, has_more = page_of(stores, PageQuery.parse(request.query))
    return reply(list_object(page, has_more))


async def retrieve(request: web.Request) -> web.Response:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    return reply(vector_store_object(await services.passages.counted(tenant_id, path_id(request, "vector store"))))


async def update(request: web.Request) -> web.Response:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    body = parse(StoreUpdate, await request.read())
    store = await services.passages.update(
        tenant_id, path_id(request, "vector store"), name=body.name, metadata=body.metadata
    )
    return reply(vector_store_object(await services.passages.counted(tenant_id, store.id)))


async def delete(request: web.Request) -> web.Response:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    store = await services.passages.get(tenant_id, path_id(request, "vector store"))
    await services.passages.delete(tenant_id, store.id)
    return reply(deleted("vector_store", store.id))


async def search(request: web.Request) -> web.Response:
    """The passages of all queries together, best first; one that two of them find counts once."""
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    body = parse(StoreSearch, await request.read())
    store = await services.passages.get(tenant_id, path_id(request, "vector store"))
    found: dict[tuple[str, int], Passage] = {}
    with services.admission.turn(tenant_id):
        for query in body.query:
            for passage in await services.retriever.retrieve(
                query,
                tenant_id=tenant_id,
                stores=[store.id],
                limit=body.limit,
                score_threshold=body.score_threshold,
                trace=request[TRACE],
                filters=body.filters,
            ):
                key = passage.file_id, passage.start_char
                if key not in found or found[key].score < passage.score:
                    found[key] = passage
    best = sorted(found.values(), key=lambda passage: -passage.score)[: body.limit]
    attributes = await services.file_queue.attributes(tenant_id, store.id, {passage.file_id for passage in best})
    results = [search_result(passage, attributes.get(passage.file_id, {})) for passage in best]
    return reply(search_page(body.query, results))
