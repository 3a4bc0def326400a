"""The answer to a line of a batch: as its endpoint gives it, in the lowest priority class, to be read later."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

from agents.turn import Owner, Turn
from inference.trace import Trace
from worker.auth.principal import Principal
from worker.errors import invalid
from worker.http.request import in_param
from worker.lifecycle.process import TimeSlice
from worker.runs.choice import DiscardingSink, choices_of, succeeded, turns_of, whole_of
from worker.runs.embed_inputs import check_inputs, embed_inputs
from worker.runs.ledger import Ledger
from worker.runs.turn import hydrate, run_turn
from worker.services import Services
from worker.wire.batches import Endpoint
from worker.wire.chat_request import ChatRequest
from worker.wire.completion import ChatCompletion
from worker.wire.response_request import ResponseRequest
from worker.wire.strict import parsed
from worker.wire.text_inputs import EmbeddingsRequest

# A line may wait in the engine for as long as interactive requests are served first; its own limit is that of its slot.
ANSWER_S = 3600.0

Body: TypeAlias = dict[str, Any]


async def answer_body(
    services: Services, principal: Principal, endpoint: Endpoint, raw: bytes, trace: Trace, time_slice: TimeSlice
) -> Body:
    """The body of the answer. Raises if the request is refused or fails; `to_api_error` knows all of these errors."""
    match endpoint:
        case "/v1/embeddings":
            body = check_inputs(services, await parsed(EmbeddingsRequest, raw))
            return await embed_inputs(services, principal.tenant_id, trace, body, time_slice)
        case "/v1/chat/completions":
            return await _completion(services, principal, raw, trace)
        case "/v1/responses":
            return await _response(services, principal, raw, trace)


async def _completion(services: Services, principal: Principal, raw: bytes, trace: Trace) -> Body:
    body = await parsed(ChatRequest, raw)
    _refuse("stream", body.stream)
    completion = ChatCompletion(body, services.checked(body.model))
    with in_param("messages"):
        ledger = Ledger(services, principal, trace, completion, later=True)
        turns = [_patient(turn) for turn in await turns_of(ledger, completion)]
        return completion.whole(await whole_of(choices_of(ledger, turns)))


async def _response(services: Services, principal: Principal, raw: bytes, trace: Trace) -> Body:
    body = await parsed(ResponseRequest, raw)
    for name in ("stream", "background", "store"):
        _refuse(name, getattr(body, name))
    _refuse("conversation", body.conversation)  # lines are answered in any order, some of them more than once
    frame = services.frame(body.model_copy(update={"store": False}))
    turn = await hydrate(services, principal, frame)
    ledger = Ledger(services, principal, trace, frame, later=True)
    with ledger.recording() as outcome:
        finished = await run_turn(services, _patient(ledger.applied(turn.turn)), trace, DiscardingSink(trace))
        outcome.status = finished.status
    return turn.snapshot(succeeded(finished))


def _refuse(name: str, value: object) -> None:
    """Raises ApiError 400 for parameters that a line of a batch cannot use."""
    if value:
        raise invalid(name, "a line of a batch cannot have it.")


def _patient(turn: Turn) -> Turn:
    """Not shed because all interactive requests come first, unless a time limit was set."""
    limits = turn.limits
    if limits.seconds_by is not Owner.SERVER:
        return turn
    return replace(turn, limits=replace(limits, seconds=ANSWER_S, answer_s=max(ANSWER_S, limits.answer_s)))
