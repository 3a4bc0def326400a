"""POST /v1/chat/completions: one stateless turn for each choice. And POST /v1/completions: texts continued as they
stand, each choice of each a turn. Streamed or whole."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from aiohttp import web

from agents.turn import Turn
from inference.language_model import LanguageModel
from inference.prompt import Part, Segment
from worker.auth.scope import Scope
from worker.errors import ApiError
from worker.http.request import EVENTS, JSON, PRINCIPAL, TRACE, Routes, in_param
from worker.runs.choice import read_request, respond, turns_of
from worker.runs.ledger import Ledger
from worker.services import SERVICES
from worker.wire.chat_request import ChatRequest
from worker.wire.completion import ChatCompletion, TextCompletion
from worker.wire.completion_request import CompletionRequest
from worker.wire.strict import UNSUPPORTED

routes = Routes()


@routes.post("/v1/chat/completions", Scope.CHAT, takes=ChatRequest, tells=(JSON, EVENTS))
async def complete_chat(request: web.Request) -> web.StreamResponse:
    with request[TRACE].span("edge"):
        body, once = await read_request(request, ChatRequest)
        body = body.entitled(request[PRINCIPAL].best_class)
        completion = ChatCompletion(body, request.app[SERVICES].checked(body.model))

    async def prepare(ledger: Ledger) -> tuple[ChatCompletion, Sequence[Turn]]:
        return completion, await turns_of(ledger, completion)

    return await respond(request, completion, once, prepare)


@routes.post("/v1/completions", Scope.CHAT, takes=CompletionRequest, tells=(JSON, EVENTS))
async def complete_text(request: web.Request) -> web.StreamResponse:
    services = request.app[SERVICES]
    with request[TRACE].span("edge"):
        body, once = await read_request(request, CompletionRequest)
        completion = TextCompletion(body, services.checked(body.model))
        if completion.model in services.agent_registry.models:
            raise ApiError(400, "An agent answers messages: ask for a model.", param="model", code="unsupported_value")

    async def prepare(ledger: Ledger) -> tuple[TextCompletion, Sequence[Turn]]:
        principal, reader = ledger.principal, services.model_of(completion.model)
        read = [await _read(reader, body, prompt) for prompt in body.prompts]
        agent = services.definition(completion.model, body.model)
        turns = [turn for _, prompt in read for turn in body.turns(principal.tenant_id, prompt)]
        told = replace(completion, texts=[text for text, _ in read], token_bytes=reader.token_bytes)
        return told, [ledger.applied(principal.bounded(agent.applied(turn))) for turn in turns]

    return await respond(request, completion, once, prepare)


async def _read(
    model: LanguageModel, body: CompletionRequest, prompt: str | list[int]
) -> tuple[str, tuple[Segment, ...]]:
    """The text of a prompt, and what the model reads. Raises ApiError 400, and UnknownToken."""
    text = prompt if isinstance(prompt, str) else await _text(model, prompt)
    if body.suffix is not None:
        filled = model.infill(text, body.suffix)
        if filled is None:
            message = (
                f"Unsupported parameter: 'suffix'. The model '{model.name}' was not trained to fill in: leave it out."
            )
            raise ApiError(400, message, param="suffix", code=UNSUPPORTED)
        return text, tuple(filled)
    if isinstance(prompt, str):
        return text, (Segment(prompt, trusted=body.parse_special is not False, part=Part.QUESTION),)
    return text, (Segment("", trusted=True, ids=tuple(prompt), part=Part.QUESTION),)


async def _text(model: LanguageModel, ids: list[int]) -> str:
    with in_param("prompt", of="logit_bias"):
        return b"".join(await asyncio.to_thread(model.token_bytes, ids)).decode("utf-8", "replace")
