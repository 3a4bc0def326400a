"""POST /v1/chat/completions: one stateless turn for each choice, streamed or whole."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext, suppress

from aiohttp import web

from agents.turn import Turn
from worker.checks import check_model
from worker.errors import ApiError, ClientGone
from worker.reply import reply
from worker.request_keys import PRINCIPAL, TRACE
from worker.runs.choice import Choice, all_of
from worker.runs.event_stream import EventStream
from worker.runs.idempotency import Once
from worker.services import SERVICES
from worker.telemetry import server_timing
from worker.wire import sse
from worker.wire.chat_completion import Completion, failure
from worker.wire.chat_request import ChatRequest
from worker.wire.headers import with_headers
from worker.wire.parse import parse


def routes() -> list[web.RouteDef]:
    return [web.post("/v1/chat/completions", create)]


async def create(request: web.Request) -> web.StreamResponse:
    services, trace = request.app[SERVICES], request[TRACE]
    with trace.span("edge"):
        body = with_headers(parse(ChatRequest, await request.read()), request.headers, services.targets.by_surface)
        model = check_model(body.model, services)
        once = await Once.of(request, services, request[PRINCIPAL].tenant_id)
    completion = Completion(body, model)
    async with once.unstored() if once else nullcontext():
        return await _create(request, body, completion)


async def _create(request: web.Request, body: ChatRequest, completion: Completion) -> web.StreamResponse:
    services, principal = request.app[SERVICES], request[PRINCIPAL]
    with ExitStack() as places:
        for _ in range(body.choices):
            places.enter_context(services.admission.turn(principal.tenant_id))
        asked = body.turns(principal.tenant_id, watched=principal.is_watching)
        agent = services.roster.of(completion.model)
        turns = [principal.bounded(agent.applied(turn)) for turn in asked]
        return await (_stream if body.stream else _whole)(request, completion, turns)


async def _stream(request: web.Request, completion: Completion, turns: list[Turn]) -> web.StreamResponse:
    stream = EventStream(request)
    choices = _choices(request, completion, turns)
    with suppress(ClientGone):  # every choice has been closed and recorded by then
        finished = await all_of([choice.stream(stream, completion.chunk) for choice in choices])
        await stream.write([*map(sse.encode_data, completion.usage(finished))])
    return await stream.close()


async def _whole(request: web.Request, completion: Completion, turns: list[Turn]) -> web.Response:
    choices = _choices(request, completion, turns)
    finished = await all_of([choice.whole() for choice in choices])
    for each in finished:
        if each.status == "failed":
            error = failure(each)
            raise ApiError(500, error["message"], type=error["type"], code=error["code"])
    told = [choice.narrator.whole(each) for choice, each in zip(choices, finished, strict=True)]
    return reply(completion.whole(told, finished), headers={"Server-Timing": server_timing(request[TRACE])})


def _choices(request: web.Request, completion: Completion, turns: list[Turn]) -> list[Choice]:
    services, principal, trace = request.app[SERVICES], request[PRINCIPAL], request[TRACE]
    return [
        Choice.of(services, principal, trace, turn, narrator, completion)
        for turn, narrator in zip(turns, completion.narrators(), strict=True)
    ]
