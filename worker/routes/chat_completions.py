"""POST /v1/chat/completions: one stateless turn, streamed or whole."""

from __future__ import annotations

import asyncio

from aiohttp import web

from agents.turn import Turn
from worker import sse
from worker.checks import check_model
from worker.errors import ApiError
from worker.ledger import Ledger
from worker.relay import gather, relay
from worker.reply import reply
from worker.services import PRINCIPAL, SERVICES, TRACE
from worker.stream import ClientGone, EventStream
from worker.telemetry import server_timing
from worker.wire.chat_completion import ChatNarrator, Chunk, failure
from worker.wire.chat_request import ChatRequest
from worker.wire.parse import parse


def routes() -> list[web.RouteDef]:
    return [web.post("/v1/chat/completions", create)]


async def create(request: web.Request) -> web.StreamResponse:
    services, trace, principal = request.app[SERVICES], request[TRACE], request[PRINCIPAL]
    with trace.span("edge"):
        body = parse(ChatRequest, await request.read())
        model = check_model(body.model, services)
    narrator = ChatNarrator(body, model)
    with services.admission.turn(principal.tenant_id):
        turn = services.roster.of(model).applied(body.turn(principal.tenant_id, watched=principal.is_watching))
        return await (_stream if body.stream else _whole)(request, turn, narrator)


async def _stream(request: web.Request, turn: Turn, narrator: ChatNarrator) -> web.StreamResponse:
    trace, stream = request[TRACE], EventStream(request)
    ledger = Ledger.of(request, narrator.id)
    status = "refused"
    try:
        events = request.app[SERVICES].agent.run(turn, trace)
        finished = await relay(events, stream, lambda event: _spell(narrator.tell(event)), trace)
        status = finished.status
        with trace.span("flush", blocked_ms=stream.blocked_ns / 1e6):
            await stream.write(_spell(narrator.conclude(finished)) + sse.DONE)
        ledger.close(finished.status)
    except ClientGone:
        status = "cancelled"
    except asyncio.CancelledError:
        status = "cancelled"
        raise
    finally:
        ledger.record(status)
    return await stream.close()


async def _whole(request: web.Request, turn: Turn, narrator: ChatNarrator) -> web.Response:
    trace = request[TRACE]
    ledger = Ledger.of(request, narrator.id)
    status = "refused"
    try:
        finished = await gather(request.app[SERVICES].agent.run(turn, trace), trace)
        status = finished.status
        ledger.close(finished.status)
    except asyncio.CancelledError:
        status = "cancelled"
        raise
    finally:
        ledger.record(status)
    if finished.status == "failed":
        error = failure(finished)
        raise ApiError(500, error["message"], type=error["type"], code=error["code"])
    return reply(narrator.whole(finished), headers={"Server-Timing": server_timing(trace)})


def _spell(chunks: list[Chunk]) -> bytes:
    return b"".join(map(sse.encode_data, chunks))
