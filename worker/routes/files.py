"""/v1/files: what callers send, and what a citation points at."""

from __future__ import annotations

from contextlib import aclosing
from urllib.parse import quote

from aiohttp import web

from worker.auth.audit import Act
from worker.auth.principal import USUAL, Scope
from worker.edge.body import BUDGET
from worker.http.request import PRINCIPAL, json_response, noted, path_id
from worker.http.route import BYTES, PLAIN, RouteDocs, needs
from worker.runs.attachments import receive
from worker.services import SERVICES
from worker.wire.file import deleted_file_object, file_object
from worker.wire.page import PAGE, PageQuery, list_object

# The text of a file never changes under its id; it is its tenant's own, so no shared cache may keep it.
CACHING = "private, max-age=3600"


def routes() -> list[web.RouteDef]:
    return [
        *needs(Scope.INGEST, web.post("/v1/files", create), web.delete("/v1/files/{id}", delete)),
        *needs(
            USUAL,
            web.get("/v1/files", list_files),
            web.get("/v1/files/{id}", retrieve),
            web.get("/v1/files/{id}/content", content),
        ),
    ]


@RouteDocs(form={"file": {"type": "string", "format": "binary"}, "purpose": {"type": "string"}})
async def create(request: web.Request) -> web.Response:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    bytes_max = services.config.request_mb * 2**18  # a quarter of what may be buffered
    with request.app[BUDGET].reserve(tenant_id) as holding:
        async with receive(request, holding, bytes_max=bytes_max) as arrived:
            file = await services.uploads.create(
                tenant_id, arrived.filename, arrived.purpose, arrived.size, arrived.content
            )
    return json_response(file_object(file))


@RouteDocs(query=PAGE | {"purpose": {"type": "string"}})
async def list_files(request: web.Request) -> web.Response:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    page = PageQuery.parse(request.query)
    files = await services.uploads.list(
        tenant_id,
        after=page.after,
        limit=page.limit + 1,
        newest_first=page.order == "desc",
        purpose=request.query.get("purpose"),
    )
    return json_response(
        list_object([file_object(file) for file in files[: page.limit]], has_more=len(files) > page.limit)
    )


async def retrieve(request: web.Request) -> web.Response:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    return json_response(file_object(await services.uploads.get(tenant_id, path_id(request, "file"))))


@RouteDocs(query={"form": {"enum": ["text"]}}, tells=(BYTES, PLAIN))
async def content(request: web.Request) -> web.StreamResponse:
    """The file as it was uploaded. With `form=text`, and for files ingested from disk, its extracted text."""
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    file_id = path_id(request, "file")
    file = await services.uploads.get(tenant_id, file_id)
    if file.uploaded and request.query.get("form") != "text":
        name = quote(file.filename, safe="")
        response = web.StreamResponse(headers={"Content-Disposition": f"attachment; filename*=UTF-8''{name}"})
        response.content_type, response.content_length = "application/octet-stream", file.bytes
        await response.prepare(request)
        async with aclosing(services.uploads.pieces(tenant_id, file_id)) as pieces:
            async for piece in pieces:
                await response.write(piece)
        return response
    text = (await services.passages.file(tenant_id, file_id)).content
    return web.Response(text=text, content_type="text/plain", charset="utf-8", headers={"Cache-Control": CACHING})


async def delete(request: web.Request) -> web.Response:
    """Delete the file, also from every vector store that contains it."""
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    file_id = path_id(request, "file")
    await services.file_queue.delete_file(tenant_id, file_id, also=noted(request, Act.FILE_DELETED, file_id))
    return json_response(deleted_file_object(file_id))
