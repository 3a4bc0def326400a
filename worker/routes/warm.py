"""/v1/conversations/{id}/warm: somebody is about to ask, so the model reads what stands before the question, and as
much of the question as is written, with its passages.

A hint: it never takes the place of a turn, and where it would not help nothing is done.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from aiohttp import web

from agents.search import search
from agents.turn import Turn
from inference.generation import Generation
from inference.trace import Trace
from worker.auth.principal import Scope
from worker.errors import ApiError
from worker.http.request import BODY, PRINCIPAL, check_model, json_response, path_id
from worker.http.route import RouteDocs, needs
from worker.runs.ledger import Ledger
from worker.runs.turn import hydrate, learn_turns
from worker.services import SERVICES
from worker.wire.parse import parsed
from worker.wire.response import ResponseFrame
from worker.wire.response_request import ConversationReference, ResponseRequest

# What a request says that stands in front of its question.
PARAMETERS = frozenset({"model", "instructions", "tools", "tool_choice", "text", "reasoning", "chat_template_kwargs"})
DRAFT = "input"  # the question as far as it is written: its search and its prefill may run ahead


def routes() -> list[web.RouteDef]:
    return needs(
        Scope.CHAT, web.post("/v1/conversations/warm", warm_new), web.post("/v1/conversations/{id}/warm", warm)
    )


@RouteDocs(ResponseRequest, status=202)
async def warm_new(request: web.Request) -> web.Response:
    """For a conversation that its first question will begin."""
    return await _warm(request, None)


@RouteDocs(ResponseRequest, status=202)
async def warm(request: web.Request) -> web.Response:
    return await _warm(request, path_id(request, "conversation"))


async def _warm(request: web.Request, conversation_id: str | None) -> web.Response:
    services, principal = request.app[SERVICES], request[PRINCIPAL]
    written = await _body(request[BODY], conversation_id)
    frame = ResponseFrame(written.model_copy(update={DRAFT: []}), check_model(written.model, services))
    place, speculative_search = (principal.tenant_id, principal.subject, conversation_id), services.speculative_search
    draft: Turn | None = None
    if speculative_search is not None and written.input:
        due = Ledger(services, principal, Trace(), "", conversation_id, frame.model).due  # as if it were sent now
        draft = replace((await hydrate(services, principal, ResponseFrame(written, frame.model))).turn, due=due)
        await search(draft, speculative_search.at(place), Trace())
    elif speculative_search is not None:
        speculative_search.forget(place)  # the next key

    async def start() -> Generation | None:
        asked = await hydrate(services, principal, frame)
        if search := asked.turn.file_search:
            await services.retriever.prepare(tenant_id=principal.tenant_id, stores=search.vector_store_ids)
        return await services.agent.warm(asked.turn)

    reads = await services.prewarm_limits.read((principal.tenant_id, conversation_id), start)
    if draft is not None and speculative_search is not None:
        await learn_turns(services, draft)
        reads = await speculative_search.read(place, partial(services.agent.read_draft, draft)) or reads
    status = "reading" if reads else "skipped"
    return json_response({"object": "conversation.warm", "conversation": conversation_id, "status": status}, status=202)


async def _body(raw: bytes, conversation_id: str | None) -> ResponseRequest:
    """The turn that will come, as far as it is known. Raises ApiError 400."""
    body = await parsed(ResponseRequest, raw)
    for name in sorted(body.model_fields_set - PARAMETERS - {DRAFT}):
        raise ApiError(400, f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")
    conversation = ConversationReference(id=conversation_id) if conversation_id else None
    return body.model_copy(update={"conversation": conversation})
