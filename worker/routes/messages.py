"""POST /v1/messages: one stateless turn, as Anthropic's clients ask for it; and what its prompt would cost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from aiohttp import web

from agents.turn import Turn
from inference.trace import Trace
from worker.auth.scope import Scope
from worker.errors import ApiError
from worker.http.request import EVENTS, JSON, PRINCIPAL, TRACE, Json, Routes, in_param
from worker.runs.cache_diagnostics import MessageDiagnosis, PromptDigest
from worker.runs.choice import read_request, respond
from worker.runs.ledger import Ledger
from worker.runs.turn import prompt_tokens
from worker.services import SERVICES
from worker.telemetry.canaries import first_question
from worker.wire.messages_reply import Reply
from worker.wire.messages_request import MessagesInput, MessagesRequest
from worker.wire.response_request import ResponseRequest
from worker.wire.strict import converted

routes = Routes()


@routes.post("/v1/messages", Scope.CHAT, takes=MessagesRequest, tells=(JSON, EVENTS))
async def create(request: web.Request) -> web.StreamResponse:
    with request[TRACE].span("edge"):
        body, once = await read_request(request, MessagesRequest)
        answer = Reply(body, request.app[SERVICES].checked(body.model))

    async def prepare(ledger: Ledger) -> tuple[Reply, Sequence[Turn]]:
        turn = ledger.applied(await _turn(request, body, answer.model))
        if body.diagnostics is None:
            return answer, [turn]
        diagnosis = await _diagnosis(request, turn, answer, body.diagnostics.previous_message_id)
        return replace(answer, diagnose=diagnosis.diagnose), [turn]

    return await respond(request, answer, once, prepare)


async def _diagnosis(request: web.Request, turn: Turn, answer: Reply, previous_id: str | None) -> MessageDiagnosis:
    prompt = await asyncio.to_thread(PromptDigest.of, turn, answer.model)
    recent, tenant_id = request.app[SERVICES].recent_prompts, request[PRINCIPAL].tenant_id
    return MessageDiagnosis(recent, tenant_id, request[TRACE], answer.id, prompt, previous_id)


@routes.post("/v1/messages/count_tokens", Scope.CHAT)
async def count_tokens(request: web.Request, body: MessagesInput) -> Json:
    """How many tokens the model would read first."""
    services, principal = request.app[SERVICES], request[PRINCIPAL]
    options = ResponseRequest(model=body.model).with_headers(request.headers, services.surface_names)
    with in_param(MessagesInput.PROMPT_PARAM):
        sent = Ledger(services, principal, Trace(), services.frame(options))  # as if it were sent now
        turn = sent.applied(await _turn(request, body, services.checked(body.model)))
        return {"input_tokens": await prompt_tokens(services, turn)}


async def _turn(request: web.Request, body: MessagesInput, model: str) -> Turn:
    services, principal = request.app[SERVICES], request[PRINCIPAL]
    messages = await services.attachments.read(principal.tenant_id, body.messages, "messages")
    if messages is not body.messages:
        body = body.model_copy(update={"messages": messages})
    servers = await services.mcp_servers.opened(principal, body.servers, request[TRACE])
    for param, server in zip(body.servers, servers, strict=True):
        if server.listing.error:  # this API has no other place to tell it
            message = f"The tools of the MCP server '{server.label}' are not known: {server.listing.error}."
            raise ApiError(400, message, param=param, code="mcp_server_failed")
    entries = len(messages) + len(body.tools or ())
    asked = await converted(entries, lambda: body.turn(principal.tenant_id, servers))
    agent = services.choose(model, body.model, principal.tenant_id, first_question(asked.input))
    return principal.bounded(agent.applied(asked))
