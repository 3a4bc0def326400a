"""/v1/responses: one turn, streamed or whole, and what is kept of it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

from aiohttp import web

from agents.events import TurnFinished, Usage
from agents.message import Item
from worker import sse
from worker.checks import check_model, includes_results, path_id
from worker.errors import ApiError
from worker.failures import to_api_error
from worker.ledger import Ledger
from worker.relay import BROKE, gather, relay
from worker.reply import reply
from worker.response_turn import ResponseTurn, finished_half, hydrate, store
from worker.services import PRINCIPAL, SERVICES, TRACE, Services
from worker.stream import ClientGone, EventStream
from worker.telemetry import server_timing
from worker.wire.events import WireEvent
from worker.wire.narrator import Narrator, without_results
from worker.wire.parse import parse
from worker.wire.response import ResponseFrame
from worker.wire.response_request import ResponseRequest
from worker.wire.strict import UNSUPPORTED

log = logging.getLogger("firsttoken.responses")

ABANDON_S = 5.0  # how long keeping half an answer may take after its client left


def routes() -> list[web.RouteDef]:
    return [
        web.post("/v1/responses", create),
        web.get("/v1/responses/{id}", retrieve),
        web.delete("/v1/responses/{id}", delete),
    ]


async def create(request: web.Request) -> web.StreamResponse:
    services, trace, principal = request.app[SERVICES], request[TRACE], request[PRINCIPAL]
    with trace.span("edge"):
        body = parse(ResponseRequest, await request.read())
        model = check_model(body.model, services)
    with services.admission.turn(principal.tenant_id):
        with trace.span("hydrate") as span:
            turn = await hydrate(services, principal, ResponseFrame(body, model))
            span.attributes["items"] = len(turn.history)
        return await (_stream if body.stream else _whole)(request, turn)


async def _stream(request: web.Request, turn: ResponseTurn) -> web.StreamResponse:
    services, trace = request.app[SERVICES], request[TRACE]
    ledger = Ledger.of(request, turn.frame.id, turn.conversation_id)
    narrator, stream = Narrator(turn.frame), EventStream(request)
    status = "refused"
    try:
        events = services.agent.run(turn.turn, trace)
        finished = await relay(events, stream, lambda event: _spell(narrator.tell(event)), trace)
        with trace.span("flush", blocked_ms=stream.blocked_ns / 1e6):
            finished, snapshot = await _keep(services, turn, finished)
        status = finished.status
        account = narrator.trace(ledger.close(finished.status))
        await stream.write(_spell(account) + _spell(narrator.conclude(snapshot)) + sse.DONE)
    except (ClientGone, asyncio.CancelledError) as gone:
        if status == "refused" and stream.is_open:
            status = "cancelled"
            await _keep_half(services, turn, narrator.output)
        if isinstance(gone, asyncio.CancelledError):
            raise
    finally:
        ledger.record(status)
    return await stream.close()


async def _whole(request: web.Request, turn: ResponseTurn) -> web.Response:
    services, trace = request.app[SERVICES], request[TRACE]
    ledger = Ledger.of(request, turn.frame.id, turn.conversation_id)
    status = "refused"
    try:
        finished = await gather(services.agent.run(turn.turn, trace), trace)
        status = "failed"  # unless it can be stored
        with trace.span("flush"):
            snapshot = turn.snapshot(finished)
            await store(services, turn, snapshot, finished.output)
        status = finished.status
        ledger.close(finished.status)
    except asyncio.CancelledError:
        status = "cancelled"
        raise
    finally:
        ledger.record(status)
    return reply(snapshot, headers={"Server-Timing": server_timing(trace)})


async def _keep(services: Services, turn: ResponseTurn, finished: TurnFinished) -> tuple[TurnFinished, dict[str, Any]]:
    """Store the turn before its end is told, so that what was acknowledged survives. A failure to do so is its end."""
    snapshot = turn.snapshot(finished)
    try:
        await store(services, turn, snapshot, finished.output)
    except Exception as error:  # the boundary: headers are out, so the stream must say what happened
        log.exception("a response could not be stored")
        answer = to_api_error(error)
        message = answer.message if answer else BROKE
        finished = replace(finished, status="failed", error_code="server_error", error_message=message)
        snapshot = turn.snapshot(finished)
    return finished, snapshot


async def _keep_half(services: Services, turn: ResponseTurn, output: tuple[Item, ...]) -> None:
    """Keep what a client saw before it left: a person who stops an answer goes on from there."""
    half = finished_half(output)
    snapshot = turn.snapshot(TurnFinished("cancelled", half, Usage()))
    try:
        async with asyncio.timeout(ABANDON_S):
            await store(services, turn, snapshot, half)
    except Exception as error:  # the boundary: nobody is left to tell
        log.warning("half an answer could not be stored: %r", error)


async def retrieve(request: web.Request) -> web.Response:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    if request.query.get("stream") == "true":
        message = "Unsupported parameter: 'stream'. A stored response is read whole."
        raise ApiError(400, message, param="stream", code=UNSUPPORTED)
    record = await services.responses.get(tenant_id, path_id(request, "response"))
    return reply(record.body if includes_results(request) else _without_results(record.body))


async def delete(request: web.Request) -> web.Response:
    services, tenant_id = request.app[SERVICES], request[PRINCIPAL].tenant_id
    response_id = path_id(request, "response")
    await services.responses.delete(tenant_id, response_id)
    return reply({"id": response_id, "object": "response", "deleted": True})


def _without_results(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "output": [without_results(item) for item in body["output"]]}


def _spell(events: list[WireEvent]) -> bytes:
    return b"".join(map(sse.encode, events))
