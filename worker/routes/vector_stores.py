"""/v1/vector_stores: stores, and searches in them."""

from __future__ import annotations

from aiohttp import web

from inference.errors import UnknownEmbedder
from retrieval.passage import Passage
from retrieval.query import Query
from worker.auth.access import needs
from worker.auth.audit import Act
from worker.auth.scope import USUAL, Scope
from worker.errors import ApiError
from worker.http.checks import path_id
from worker.http.json_response import json_response
from worker.http.request_keys import BODY, PRINCIPAL, TRACE, noted
from worker.http.route_docs import RouteDocs
from worker.services import SERVICES, Services
from worker.wire.page import PAGE, PageQuery, list_object, page_of
from worker.wire.parse import parsed
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
        *needs(
            Scope.INGEST,
            web.post("/v1/vector_stores", create),
            web.post("/v1/vector_stores/{id}", update),
            web.delete("/v1/vector_stores/{id}", delete),
        ),
        *needs(
            USUAL,
            web.get("/v1/vector_stores", list_stores),
            web.get("/v1/vector_stores/{id}", retrieve),
            web.post("/v1/vector_stores/{id}/search", search),
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
        param = "firsttoken_embedding_model"
        raise ApiError(400, f"Invalid '{param}': {error}", param=param, code="invalid_value") from None


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
