"""/v1/responses: one turn, streamed or whole, and what is kept of it."""

from __future__ import annotations

from aiohttp import web

from worker.checks import includes_results, path_id
from worker.errors import ApiError
from worker.reply import reply
from worker.runs import Run
from worker.runs.background import enqueue
from worker.runs.disconnect import HEADER, Disconnect
from worker.runs.reading import read_run, read_stored
from worker.runs.starting import start
from worker.services import PRINCIPAL, SERVICES, TRACE
from worker.stream import ClientGone, EventStream
from worker.telemetry import server_timing
from worker.wire.dialect import Dialect
from worker.wire.headers import with_headers
from worker.wire.narrator import without_results
from worker.wire.parse import parse
from worker.wire.response_request import ResponseRequest

NUMBER_DIGITS_MAX = 9  # events are counted in 32 bits


def routes() -> list[web.RouteDef]:
    return [
        web.post("/v1/responses", create),
        web.get("/v1/responses/{id}", retrieve),
        web.delete("/v1/responses/{id}", delete),
    ]


async def create(request: web.Request) -> web.StreamResponse:
    services, trace, principal = request.app[SERVICES], request[TRACE], request[PRINCIPAL]
    with trace.span("edge"):
        body = with_headers(parse(ResponseRequest, await request.read()), request.headers)
        dialect, on_disconnect = Dialect.of(request.headers), Disconnect.parse(request.headers.get(HEADER))
    if body.background:
        return await _queue(request, body, dialect)
    run = await start(services, principal, trace, body, dialect=dialect, on_disconnect=on_disconnect)
    return await (_stream if body.stream else _whole)(request, run)


async def _queue(request: web.Request, body: ResponseRequest, dialect: Dialect) -> web.StreamResponse:
    """One that is made without us, sooner or later: the answer is its beginning, or all of it as a stream."""
    queued = await enqueue(request.app[SERVICES], request[PRINCIPAL], body, dialect)
    return await _follow(request, queued["id"], -1) if body.stream else reply(queued)


async def _stream(request: web.Request, run: Run, number: int = 0) -> web.StreamResponse:
    stream = EventStream(request)
    try:
        await read_run(run, stream, number)
    except ClientGone:
        return stream.response
    return await stream.close()


async def _whole(request: web.Request, run: Run) -> web.Response:
    with run.reading():
        await run.wait()
    if run.error is not None:
        raise run.error
    return reply(run.snapshot, headers={"Server-Timing": server_timing(request[TRACE])})


async def retrieve(request: web.Request) -> web.StreamResponse:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    response_id = path_id(request, "response")
    if request.query.get("stream") == "true":
        return await _follow(request, response_id, _starting_after(request))
    record = await services.responses.get(tenant_id, response_id)
    return reply(record.body if includes_results(request) else without_results(record.body))


async def _follow(request: web.Request, response_id: str, after: int) -> web.StreamResponse:
    """All events after a number: what was told already, then the rest as it is told."""
    runs, tenant_id = request.app[SERVICES].runs, request[PRINCIPAL].tenant_id
    run = runs.get(tenant_id, response_id)
    if run is not None:
        return await _stream(request, run, after + 1)
    stream = EventStream(request)
    try:
        await read_stored(runs, stream, tenant_id, response_id, after)
    except ClientGone:
        return stream.response
    return await stream.close()


async def delete(request: web.Request) -> web.Response:
    """One that is being made is stopped first."""
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    response_id = path_id(request, "response")
    await services.runs.cancel(tenant_id, response_id)
    await services.responses.delete(tenant_id, response_id)
    return reply({"id": response_id, "object": "response", "deleted": True})


def _starting_after(request: web.Request) -> int:
    """The number of the last event seen; -1 for all events. Raises ApiError 400."""
    value = request.query.get("starting_after")
    if value is None:
        return -1
    if not (value.isascii() and value.isdigit() and len(value) <= NUMBER_DIGITS_MAX):
        message = "Invalid 'starting_after': it is the sequence_number of the last event seen."
        raise ApiError(400, message, param="starting_after", code="invalid_value")
    return int(value)
