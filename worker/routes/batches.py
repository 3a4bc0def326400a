"""/v1/batches: files of requests that are answered when there is time."""

from __future__ import annotations

from functools import partial

from aiohttp import web

from retrieval.errors import FileNotFound
from worker.auth.scope import Scope
from worker.errors import ApiError, invalid
from worker.http.query import PageQuery, list_object
from worker.http.request import PRINCIPAL, Json, Routes, path_id
from worker.services import SERVICES
from worker.wire.batches import PURPOSE, BatchCreate, batch_object

routes = Routes()


@routes.post("/v1/batches", Scope.CHAT)
async def create(request: web.Request, body: BatchCreate) -> Json:
    services, principal = request.app[SERVICES], request[PRINCIPAL]
    try:
        file = await services.uploads.get(principal.tenant_id, body.input_file_id)
    except FileNotFound:
        message = f"There is no file with the id '{body.input_file_id}'."
        raise ApiError(404, message, param="input_file_id", code="not_found") from None
    if file.purpose != PURPOSE:
        raise invalid("input_file_id", f"the file was not uploaded with the purpose '{PURPOSE}'.")
    caller = {"via": principal.via, "subject": principal.subject}
    return batch_object(await services.batches.create(principal.tenant_id, body, caller))


@routes.get("/v1/batches", Scope.CHAT)
async def list_batches(request: web.Request, page: PageQuery) -> Json:
    """Newest first, the only supported order."""
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    batches = await services.batches.list(tenant_id, after=page.after, limit=page.limit + 1)
    await page.check(batches, partial(services.batches.get, tenant_id))
    told = [batch_object(batch) for batch in batches[: page.limit]]
    return list_object(told, has_more=len(batches) > page.limit)


@routes.get("/v1/batches/{id}", Scope.CHAT)
async def retrieve(request: web.Request) -> Json:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    return batch_object(await services.batches.get(tenant_id, path_id(request, "batch")))


@routes.post("/v1/batches/{id}/cancel", Scope.CHAT)
async def cancel(request: web.Request) -> Json:
    """Idempotent. A batch that has ended otherwise cannot be cancelled."""
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    batch = await services.batches.cancel(tenant_id, path_id(request, "batch"))
    if batch.status not in ("cancelling", "cancelled"):
        message = f"The batch is {batch.status}: it cannot be cancelled any more."
        raise ApiError(409, message, code="batch_not_cancellable", headers={"X-Should-Retry": "false"})
    return batch_object(batch)
