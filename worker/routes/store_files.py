"""/v1/vector_stores/{id}/files and /file_batches: what is in a store, and what is on its way."""

from __future__ import annotations

from uuid import UUID

from aiohttp import web

from retrieval.embedding import check_model
from worker.auth.access import needs
from worker.auth.scope import USUAL, Scope
from worker.errors import ApiError
from worker.http.checks import path_id
from worker.http.json_response import json_response
from worker.http.request_keys import BODY, PRINCIPAL
from worker.http.route_docs import RouteDocs
from worker.services import SERVICES, Services
from worker.wire.page import PAGE, PageQuery, list_object, page_of
from worker.wire.parse import parsed
from worker.wire.vector_store import (
    BatchCreate,
    FileAdd,
    FileDescribe,
    batch_object,
    deleted,
    store_file_object,
)

STATUSES = ("in_progress", "completed", "failed", "cancelled")
FILES, BATCHES = "/v1/vector_stores/{id}/files", "/v1/vector_stores/{id}/file_batches"


def routes() -> list[web.RouteDef]:
    return [
        *needs(
            Scope.INGEST,
            web.post(FILES, add),
            web.post(FILES + "/{file_id}", describe),
            web.delete(FILES + "/{file_id}", remove),
            web.post(BATCHES, add_batch),
            web.post(BATCHES + "/{batch_id}/cancel", cancel_batch),
        ),
        *needs(
            USUAL,
            web.get(FILES, list_files),
            web.get(FILES + "/{file_id}", retrieve),
            web.get(FILES + "/{file_id}/content", content),
            web.get(BATCHES + "/{batch_id}", retrieve_batch),
            web.get(BATCHES + "/{batch_id}/files", list_files),
        ),
    ]


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
        message = f"Invalid 'filter': it must be {', '.join(STATUSES[:-1])} or {STATUSES[-1]}."
        raise ApiError(400, message, param="filter", code="invalid_value")
    files = await services.file_queue.list(tenant_id, store_id, batch_id=batch_id)
    shown = [store_file_object(file) for file in files if status in (None, file.status)]
    page, has_more = page_of(shown, PageQuery.parse(request.query))
    return json_response(list_object(page, has_more))


async def retrieve(request: web.Request) -> web.Response:
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
        raise ApiError(404, "There is no batch with this id.", type="not_found_error", code="not_found")
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
