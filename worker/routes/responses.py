"""/v1/responses: one turn, streamed or whole, and its stored response."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic
from typing import Any

from aiohttp import web

from agents.errors import NotFound
from agents.message import new_id
from worker.auth.principal import Scope
from worker.errors import ClientGone, invalid
from worker.http.request import BODY, IGNORED, INCLUDE, PRINCIPAL, TRACE, includes, json_response, path_id
from worker.http.route import EVENTS, JSON, RouteDocs, needs
from worker.runs.disconnect import HEADER, Disconnect
from worker.runs.event_stream import EventStream
from worker.runs.idempotency import COME_BACK, Once, in_use
from worker.runs.idempotency_store import Earlier
from worker.runs.manager import RUNS
from worker.runs.reader import read_run, read_stored
from worker.runs.run import Run
from worker.services import SERVICES
from worker.telemetry.telemetry import server_timing
from worker.wire import sse
from worker.wire.options import RESULTS, with_headers
from worker.wire.parse import parsed
from worker.wire.response import Dialect, public_response
from worker.wire.response_request import ResponseRequest

NUMBER_DIGITS_MAX = 9  # events are counted in 32 bits
BEGIN_S = 5.0  # the longest time until a first request is accepted or refused, with a prompt of a megabyte
LOOK_S = 0.05
END_S = 5.0  # how long the end of a response that is deleted may take

FOLLOW: dict[str, dict[str, Any]] = {
    "stream": {"type": "boolean"},
    "starting_after": {"type": "integer", "minimum": 0, "maximum": 10**NUMBER_DIGITS_MAX - 1},
}


def routes() -> list[web.RouteDef]:
    return needs(
        Scope.CHAT,
        web.post("/v1/responses", create),
        web.get("/v1/responses/{id}", retrieve),
        web.delete("/v1/responses/{id}", delete),
    )


@RouteDocs(ResponseRequest, tells=(JSON, EVENTS))
async def create(request: web.Request) -> web.StreamResponse:
    services = request.app[SERVICES]
    with request[TRACE].span("edge"):
        body = await parsed(ResponseRequest, request[BODY], request[IGNORED])
        body = with_headers(body, request.headers, services.surface_names)
        body.note_ignored(services.model_of(body.model).switches, request[IGNORED])
        once = Once.of(request, services, request[PRINCIPAL].tenant_id)
    id = new_id("resp")
    if once is None:
        return await _respond_with(request, body, await _start(request, body, id), id)
    if not body.stored:
        async with once.unstored():
            return await _respond_with(request, body, await _start(request, body, id), id)
    async with once.first(id) as earlier:
        if earlier is None:
            started = await _start(request, body, id, COME_BACK)
    return await (_respond_with(request, body, started, id) if earlier is None else _repeat(request, body, earlier))


async def _start(
    request: web.Request, body: ResponseRequest, id: str, usual: Disconnect | None = None
) -> Run | dict[str, Any]:
    """The run, or the response as it was queued. Raises what refuses the request."""
    principal, dialect = request[PRINCIPAL], Dialect.of(request.headers)
    if body.background:  # generated independently of this request
        return await request.app[RUNS].backlog.enqueue(principal, body, dialect, id)
    on_disconnect = Disconnect.parse(request.headers.get(HEADER), usual)
    runs, trace = request.app[RUNS], request[TRACE]
    resumable = HEADER in request.headers and on_disconnect.grace_s > 0
    return await runs.create(
        principal, trace, body, dialect=dialect, on_disconnect=on_disconnect, id=id, resumable=resumable
    )


async def _respond_with(
    request: web.Request, body: ResponseRequest, started: Run | dict[str, Any], id: str
) -> web.StreamResponse:
    if isinstance(started, Run):
        return await (_stream if body.stream else _whole)(request, started)
    return await _follow(request, id, -1) if body.stream else json_response(started)


async def _repeat(request: web.Request, body: ResponseRequest, earlier: Earlier) -> web.StreamResponse:
    """The response of the first request with this key, from its start. Raises ApiError 409 if that does not begin."""
    services, tenant_id, id = request.app[SERVICES], request[PRINCIPAL].tenant_id, earlier.response_id
    give_up_at = monotonic() + BEGIN_S
    while id is None or not await services.responses.exists(tenant_id, id):
        if monotonic() >= give_up_at:
            raise in_use()
        await asyncio.sleep(LOOK_S)
    try:
        if body.stream:
            return await _follow(request, id, -1)
        if not body.background:
            await request.app[RUNS].ended(tenant_id, id)
        record = await services.responses.get(tenant_id, id)
    except NotFound:  # it was refused after all, and removed
        raise in_use() from None
    return json_response(public_response(record.body, body.with_results))


async def _stream(request: web.Request, run: Run, number: int = 0) -> web.StreamResponse:
    stream = EventStream(request)
    runs, tenant_id = request.app[RUNS], request[PRINCIPAL].tenant_id
    try:
        number = await read_run(run, stream, number)
        if run.lost:  # another worker resumes it
            await read_stored(runs.services, stream, tenant_id, run.id, number - 1, runs.get)
    except ClientGone:
        return stream.response
    return await stream.close(*(() if run.left and not run.lost else (sse.DONE,)))


async def _whole(request: web.Request, run: Run) -> web.Response:
    with run.readers.reading():
        await run.wait()
    if run.lost:
        tenant_id = request[PRINCIPAL].tenant_id
        await request.app[RUNS].ended(tenant_id, run.id)
        record = await request.app[SERVICES].responses.get(tenant_id, run.id)
        return json_response(public_response(record.body, run.turn.frame.request.with_results))
    if run.error is not None:
        raise run.error
    return json_response(run.snapshot, headers={"Server-Timing": server_timing(request[TRACE])})


@RouteDocs(query=INCLUDE | FOLLOW, tells=(JSON, EVENTS))
async def retrieve(request: web.Request) -> web.StreamResponse:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    response_id = path_id(request, "response")
    if request.query.get("stream") == "true":
        return await _follow(request, response_id, _starting_after(request))
    record = await services.responses.get(tenant_id, response_id)
    return json_response(public_response(record.body, includes(request, RESULTS)))


async def _follow(request: web.Request, response_id: str, after: int) -> web.StreamResponse:
    """All events after a sequence number: the past ones, then new ones as they come."""
    runs, tenant_id = request.app[RUNS], request[PRINCIPAL].tenant_id
    run = runs.get(tenant_id, response_id)
    if run is not None:
        return await _stream(request, run, after + 1)
    stream = EventStream(request)
    try:
        await read_stored(runs.services, stream, tenant_id, response_id, after, runs.get)
    except ClientGone:
        return stream.response
    return await stream.close(sse.DONE)


async def delete(request: web.Request) -> web.Response:
    """Delete the response. One in progress is cancelled first."""
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    response_id = path_id(request, "response")
    await request.app[RUNS].cancel(tenant_id, response_id)
    with suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            await request.app[RUNS].ended(tenant_id, response_id)
    await services.responses.delete(tenant_id, response_id)
    return json_response({"id": response_id, "object": "response", "deleted": True})


def _starting_after(request: web.Request) -> int:
    """The number of the last event seen; -1 for all events. Raises ApiError 400."""
    value = request.query.get("starting_after")
    if value is None:
        return -1
    if not (value.isascii() and value.isdigit() and len(value) <= NUMBER_DIGITS_MAX):
        raise invalid("starting_after", "use the sequence_number of the last event received.")
    return int(value)
