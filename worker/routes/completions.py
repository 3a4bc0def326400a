"""POST /v1/chat/completions: one stateless turn for each choice. And POST /v1/completions: texts continued as they
stand, each choice of each a turn. Streamed or whole."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import orjson
from aiohttp import web

from agents.events import TurnFinished
from inference.errors import UnknownToken
from inference.language_model import LanguageModel
from inference.prompt import Part, Segment
from worker.auth.scope import Scope
from worker.errors import ApiError, ClientGone
from worker.http.request import (
    BODY,
    EVENTS,
    IGNORED,
    JSON,
    PRINCIPAL,
    TRACE,
    Routes,
    in_param,
    json_bytes,
    json_response,
)
from worker.runs.choice import Choice, all_of, choices_of, turns_of, whole_of
from worker.runs.event_stream import EventStream
from worker.runs.idempotency import Once, unstored
from worker.runs.ledger import Ledger
from worker.services import SERVICES
from worker.telemetry.telemetry import server_timing
from worker.wire.chat_request import ChatRequest
from worker.wire.completion import ChatCompletion, ChunkEncoder, TextCompletion
from worker.wire.completion_request import CompletionRequest
from worker.wire.events import DONE, encode_data
from worker.wire.strict import UNSUPPORTED, parsed

Completion: TypeAlias = ChatCompletion | TextCompletion


routes = Routes()


@routes.post("/v1/chat/completions", Scope.CHAT, takes=ChatRequest, tells=(JSON, EVENTS))
async def complete_chat(request: web.Request) -> web.StreamResponse:
    services, principal = request.app[SERVICES], request[PRINCIPAL]
    with request[TRACE].span("edge"):
        body = await parsed(ChatRequest, request[BODY], request[IGNORED])
        body = body.with_headers(request.headers, services.surface_names).entitled(principal.best_class)
        body.note_ignored(services.model_of(body.model).switches, request[IGNORED])
        completion = ChatCompletion(body, services.checked(body.model))
        once = Once.of(request, services.claims, principal.tenant_id)
    with in_param("messages"):
        async with unstored(once):
            ledger = Ledger(services, principal, request[TRACE], completion)
            with ledger.entering(body.choices) as entered:
                turns = await turns_of(ledger, completion)
                places = entered.pop_all()
            with places:
                return await _answer(request, completion, choices_of(ledger, turns))


@routes.post("/v1/completions", Scope.CHAT, takes=CompletionRequest, tells=(JSON, EVENTS))
async def complete_text(request: web.Request) -> web.StreamResponse:
    services, principal = request.app[SERVICES], request[PRINCIPAL]
    with request[TRACE].span("edge"):
        body = await parsed(CompletionRequest, request[BODY], request[IGNORED])
        body = body.with_headers(request.headers, services.surface_names)
        body.note_ignored(frozenset(), request[IGNORED])  # no template, so no switch of one
        completion = TextCompletion(body, services.checked(body.model))
        if completion.model in services.agent_registry.models:
            raise ApiError(400, "An agent answers messages: ask for a model.", param="model", code="unsupported_value")
        once = Once.of(request, services.claims, principal.tenant_id)
    with in_param("prompt"):
        async with unstored(once):
            return await _continue(request, body, completion)


async def _continue(request: web.Request, body: CompletionRequest, completion: TextCompletion) -> web.StreamResponse:
    services, principal = request.app[SERVICES], request[PRINCIPAL]
    ledger = Ledger(services, principal, request[TRACE], completion)
    reader = services.model_of(completion.model)
    with ledger.entering(len(body.prompts) * body.choices) as entered:
        read = [await _read(reader, body, prompt) for prompt in body.prompts]
        places = entered.pop_all()
    with places:
        agent = services.definition(completion.model, body.model)
        turns = [
            ledger.applied(principal.bounded(agent.applied(turn)))
            for _, prompt in read
            for turn in body.turns(principal.tenant_id, prompt)
        ]
        texts = [text for text, _ in read]
        told = replace(completion, texts=texts, token_bytes=reader.token_bytes)
        return await _answer(request, told, choices_of(ledger, turns))


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
    try:
        return b"".join(await asyncio.to_thread(model.token_bytes, ids)).decode("utf-8", "replace")
    except UnknownToken as error:
        error.param = "prompt"
        raise


async def _answer(request: web.Request, completion: Completion, choices: Sequence[Choice]) -> web.StreamResponse:
    if completion.request.stream:
        return await _stream(request, completion, choices)
    finished, headers = await whole_of(choices), {"Server-Timing": server_timing(request[TRACE])}
    if isinstance(completion, TextCompletion):
        return json_bytes(await asyncio.to_thread(_encoded, completion, finished), headers=headers)
    return json_response(completion.whole(finished), headers=headers)


async def _stream(request: web.Request, completion: Completion, choices: Sequence[Choice]) -> web.StreamResponse:
    stream = EventStream(request)
    encoders = [ChunkEncoder(completion, choice) for choice in completion.choices]
    try:
        finished = await all_of(
            [choice.stream(stream, encoder) for choice, encoder in zip(choices, encoders, strict=True)]
        )
    except ClientGone:  # every choice has been closed and recorded by now
        return stream.response
    return await stream.close(*map(encode_data, completion.usage(finished)), DONE)


def _encoded(completion: TextCompletion, finished: Sequence[TurnFinished]) -> bytes:
    """The scores of long prompts are many: between two choices, other threads get the GIL."""
    told = completion.whole(finished)
    return orjson.dumps({**told, "choices": [orjson.Fragment(orjson.dumps(each)) for each in told["choices"]]})
