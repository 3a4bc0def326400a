"""/v1/files and /v1/vector_stores, to read: what a citation points at, and which stores there are to search."""

from __future__ import annotations

from aiohttp import web

from worker.checks import path_id
from worker.reply import reply
from worker.services import PRINCIPAL, SERVICES
from worker.wire.file import file_object, vector_store_object
from worker.wire.page import list_object

# The text of a file never changes under its id; it is its tenant's own, so no shared cache may keep it.
CACHING = "private, max-age=3600"


def routes() -> list[web.RouteDef]:
    return [
        web.get("/v1/files/{id}", retrieve),
        web.get("/v1/files/{id}/content", content),
        web.get("/v1/vector_stores", list_stores),
        web.get("/v1/vector_stores/{id}", retrieve_store),
    ]


async def retrieve(request: web.Request) -> web.Response:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    return reply(file_object(await services.passages.file(tenant_id, path_id(request, "file"))))


async def content(request: web.Request) -> web.Response:
    """The extracted text, into which the offsets of citations point."""
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    file = await services.passages.file(tenant_id, path_id(request, "file"))
    return web.Response(
        text=file.content, content_type="text/plain", charset="utf-8", headers={"Cache-Control": CACHING}
    )


async def list_stores(request: web.Request) -> web.Response:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    stores = await services.passages.stores(tenant_id)
    return reply(list_object([vector_store_object(store) for store in stores], has_more=False))


async def retrieve_store(request: web.Request) -> web.Response:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    store = await services.passages.get(tenant_id, path_id(request, "vector store"))
    return reply(vector_store_object(store))
