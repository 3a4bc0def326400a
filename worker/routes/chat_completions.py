"""POST /v1/chat/completions: one stateless turn for each choice, streamed or whole."""

from __future__ import annotations

from contextlib import nullcontext

from aiohttp import web

from agents.turn import Turn
from worker.auth.principal import Scope
from worker.errors import ClientGone
from worker.http.request import BODY, IGNORED, PRINCIPAL, TRACE, check_model, in_param, json_response
from worker.http.route import EVENTS, JSON, RouteDocs, needs
from worker.runs.choice import Choice, all_of, choices_of, turns_of, whole
from worker.runs.event_stream import EventStream
from worker.runs.idempotency import Once
from worker.services import SERVICES
from worker.telemetry.telemetry import server_timing
from worker.wire import sse
from worker.wire.chat_completion import ChunkEncoder, Completion
from worker.wire.chat_request import ChatRequest
from worker.wire.options import entitled, with_headers
from worker.wire.parse import parsed


def routes() -> list[web.RouteDef]:
    return needs(Scope.CHAT, web.post("/v1/chat/completions", create))


@RouteDocs(ChatRequest, tells=(JSON, EVENTS))
async def create(request: web.Request) -> web.StreamResponse:
    services, trace = request.app[SERVICES], request[TRACE]
    with trace.span("edge"):
        body = await parsed(ChatRequest, request[BODY], request[IGNORED])
        body = with_headers(body, request.headers, services.surface_names)
        body = entitled(body, request[PRINCIPAL].best_class)
        body.note_ignored(services.model_of(body.model).switches, request[IGNORED])
        model = check_model(body.model, services)
        once = Once.of(request, services, request[PRINCIPAL].tenant_id)
    completion = Completion(body, model)
    with in_param("messages"):
        async with once.unstored() if once else nullcontext():
            return await _create(request, body, completion)


async def _create(request: web.Request, body: ChatRequest, completion: Completion) -> web.StreamResponse:
    services, principal = request.app[SERVICES], request[PRINCIPAL]
    ledger = Choice.ledger_of(services, principal, request[TRACE], completion)
    with ledger.entering(body.choices) as entered:
        turns = await turns_of(ledger, completion)
        places = entered.pop_all()
    with places:
        return await (_stream if body.stream else _whole)(request, completion, turns)


async def _stream(request: web.Request, completion: Completion, turns: list[Turn]) -> web.StreamResponse:
    stream = EventStream(request)
    tellers = [ChunkEncoder(completion, narrator) for narrator in completion.narrators()]
    choices = zip(_choices(request, completion, turns), tellers, strict=True)
    try:
        finished = await all_of([choice.stream(stream, teller) for choice, teller in choices])
    except ClientGone:  # every choice has been closed and recorded by now
        return stream.response
    return await stream.close(*map(sse.encode_data, completion.usage(finished)), sse.DONE)


async def _whole(request: web.Request, completion: Completion, turns: list[Turn]) -> web.Response:
    told = await whole(completion, _choices(request, completion, turns))
    return json_response(told, headers={"Server-Timing": server_timing(request[TRACE])})


def _choices(request: web.Request, completion: Completion, turns: list[Turn]) -> list[Choice]:
    return choices_of(request.app[SERVICES], request[PRINCIPAL], request[TRACE], completion, turns)
