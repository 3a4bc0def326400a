"""POST /v1/completions: texts continued as they stand, each choice of each a turn; streamed or whole."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import orjson
from aiohttp import web

from agents.events import TurnFinished
from agents.turn import Turn
from inference.errors import UnknownToken
from inference.language_model import LanguageModel
from inference.prompt import Segment
from inference.prompt_cache import Part
from worker.auth.principal import Scope
from worker.errors import ApiError, ClientGone
from worker.http.request import BODY, IGNORED, PRINCIPAL, TRACE, check_model, in_param, json_bytes
from worker.http.route import EVENTS, JSON, RouteDocs, needs
from worker.runs.choice import Choice, all_of, whole_of
from worker.runs.event_stream import EventStream
from worker.runs.idempotency import Once
from worker.services import SERVICES
from worker.telemetry.telemetry import server_timing
from worker.wire import sse
from worker.wire.completion_reply import TextChunkEncoder, TextCompletion
from worker.wire.completion_request import CompletionRequest
from worker.wire.options import with_headers
from worker.wire.parse import parsed
from worker.wire.strict import UNSUPPORTED


def routes() -> list[web.RouteDef]:
    return needs(Scope.CHAT, web.post("/v1/completions", create))


@RouteDocs(CompletionRequest, tells=(JSON, EVENTS))
async def create(request: web.Request) -> web.StreamResponse:
    services, trace, principal = request.app[SERVICES], request[TRACE], request[PRINCIPAL]
    with trace.span("edge"):
        body = await parsed(CompletionRequest, request[BODY], request[IGNORED], bulk="prompt")
        body = with_headers(body, request.headers, services.surface_names)
        body.note_ignored(frozenset(), request[IGNORED])  # no template, so no switch of one
        model = check_model(body.model, services)
        if model in services.agent_registry.models:
            raise ApiError(400, "An agent answers messages: ask for a model.", param="model", code="unsupported_value")
        once = Once.of(request, services, principal.tenant_id)
    with in_param("prompt"):
        async with once.unstored() if once else nullcontext():
            return await _create(request, body, model)


async def _create(request: web.Request, body: CompletionRequest, model: str) -> web.StreamResponse:
    services, principal = request.app[SERVICES], request[PRINCIPAL]
    completion = TextCompletion(body, model)
    ledger, reader = Choice.ledger_of(services, principal, request[TRACE], completion), services.model_of(model)
    with ledger.entering(len(body.prompts) * body.choices) as entered:
        read = [await _read(reader, body, prompt) for prompt in body.prompts]
        places = entered.pop_all()
    with places:
        completion = replace(completion, texts=[text for text, _ in read], token_bytes=reader.token_bytes)
        agent = services.definition(model, body.model)
        turns = [
            ledger.applied(principal.bounded(agent.applied(turn)))
            for _, prompt in read
            for turn in body.turns(principal.tenant_id, prompt, watched=principal.is_watching)
        ]
        return await (_stream if body.stream else _whole)(request, completion, turns)


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


async def _stream(request: web.Request, completion: TextCompletion, turns: list[Turn]) -> web.StreamResponse:
    stream = EventStream(request)
    choices = enumerate(_choices(request, completion, turns))
    try:
        finished = await all_of(
            [choice.stream(stream, TextChunkEncoder(completion, index)) for index, choice in choices]
        )
    except ClientGone:  # every choice has been closed and recorded by now
        return stream.response
    return await stream.close(*map(sse.encode_data, completion.usage(finished)), sse.DONE)


async def _whole(request: web.Request, completion: TextCompletion, turns: list[Turn]) -> web.Response:
    finished = await whole_of(_choices(request, completion, turns))
    whole = await asyncio.to_thread(_encoded, completion, finished)
    return json_bytes(whole, headers={"Server-Timing": server_timing(request[TRACE])})


def _encoded(completion: TextCompletion, finished: Sequence[TurnFinished]) -> bytes:
    """The scores of long prompts are many: between two choices, other threads get the GIL."""
    told = completion.whole(finished)
    return orjson.dumps({**told, "choices": [orjson.Fragment(orjson.dumps(each)) for each in told["choices"]]})


def _choices(request: web.Request, completion: TextCompletion, turns: list[Turn]) -> list[Choice]:
    services, principal, trace = request.app[SERVICES], request[PRINCIPAL], request[TRACE]
    return [Choice.of(services, principal, trace, turn, completion, index) for index, turn in enumerate(turns)]
