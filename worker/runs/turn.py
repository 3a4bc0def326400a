"""One turn of /v1/responses between the request and the store: what stands before it, the turn itself, what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from agents.compaction import since_compaction
from agents.definition import Definition
from agents.errors import NotFound
from agents.events import TurnFinished
from agents.message import FunctionCall, FunctionCallOutput, Item, Message, Reasoning
from agents.store import ResponseRecord
from agents.turn import Turn
from worker.auth.principal import Principal
from worker.auth.seals import opened
from worker.errors import ApiError
from worker.runs.run_services import RunServices
from worker.runs.running_store import Taken
from worker.wire.narrator import shown
from worker.wire.response import ResponseFrame


@dataclass(frozen=True, slots=True)
class ResponseTurn:
    """`items` are the request's own items, `history` what stands before them."""

    principal: Principal
    frame: ResponseFrame
    items: tuple[Item, ...]
    history: tuple[Item, ...]
    agent: Definition

    @property
    def tenant_id(self) -> UUID:
        return self.principal.tenant_id

    @property
    def turn(self) -> Turn:
        watched = self.principal.is_watching
        said = since_compaction((*self.history, *self.items))
        asked = self.frame.request.turn(self.tenant_id, said, (), watched=watched)
        return self.principal.bounded(self.agent.applied(asked))

    @property
    def conversation_id(self) -> str | None:
        conversation = self.frame.request.conversation
        return conversation.id if conversation else None

    def snapshot(self, finished: TurnFinished) -> dict[str, Any]:
        """The final response object, as the caller sees it."""
        with_results = self.frame.request.with_results
        return self.frame.finished(finished, [shown(item, with_results) for item in finished.output])


async def hydrate(
    services: RunServices, principal: Principal, frame: ResponseFrame, remembered: tuple[Item, ...] | None = None
) -> ResponseTurn:
    """Read what stands before the request, unless it is `remembered`. Raises ApiError 404 naming the parameter."""
    request, tenant_id = frame.request, principal.tenant_id
    history: tuple[Item, ...] = remembered or ()
    before = "conversation" if request.conversation is not None else "previous_response_id"
    try:
        if request.conversation is not None:
            history = await services.conversations.history(tenant_id, request.conversation.id)
        elif request.previous_response_id is not None and remembered is None:
            history = await services.responses.history(tenant_id, request.previous_response_id)
    except NotFound as error:
        code = f"{before.removesuffix('_id')}_not_found"
        raise ApiError(404, str(error), type="not_found_error", param=before, code=code) from None
    history = tuple(opened(services.seals, tenant_id, item, before) for item in history)
    items = await services.attachments.items(tenant_id, request.input, "input")
    return ResponseTurn(principal, frame, items, history, services.roster.of(frame.model))


async def begin(services: RunServices, turn: ResponseTurn) -> None:
    """Store that this worker makes the response, unless the caller said to keep nothing."""
    if turn.frame.request.background:
        await services.queue.begin(_taken(services, turn), turn.frame.started())
    elif turn.frame.request.stored:
        record = record_of(turn, turn.frame.started(), ())
        await services.running.begin(turn.tenant_id, record, services.presence.worker)


async def settle(services: RunServices, turn: ResponseTurn) -> None:
    """Store that a response of the background cannot be begun again."""
    await services.queue.settle(_taken(services, turn))


def _taken(services: RunServices, turn: ResponseTurn) -> Taken:
    return Taken(turn.tenant_id, turn.frame.id, services.presence.worker)


async def finish(
    services: RunServices,
    turn: ResponseTurn,
    snapshot: dict[str, Any],
    output: Sequence[Item],
    *,
    in_conversation: bool = True,
) -> None:
    """Keep the response, unless the caller said not to, and its items in the conversation, if there is one."""
    if turn.frame.request.background:
        await settle(services, turn)
    if turn.frame.request.stored:
        record = record_of(turn, snapshot, output)
        record = record if in_conversation else replace(record, conversation_id=None)
        await services.running.finish(turn.tenant_id, record, services.presence.worker)
    elif in_conversation and turn.conversation_id is not None:
        await services.conversations.add_items(turn.tenant_id, turn.conversation_id, (*turn.items, *output))


def finished_half(output: Sequence[Item]) -> tuple[Item, ...]:
    """What is worth keeping of an answer that broke off: no empty text, no call that was never answered."""
    answered = {item.call_id for item in output if isinstance(item, FunctionCallOutput)}
    return tuple(
        item
        for item in output
        if not (isinstance(item, FunctionCall) and item.call_id not in answered)
        and not (isinstance(item, Message | Reasoning) and not item.text)
    )


def record_of(turn: ResponseTurn, snapshot: dict[str, Any], output: Sequence[Item]) -> ResponseRecord:
    return ResponseRecord(
        id=turn.frame.id,
        status=snapshot["status"],
        body=snapshot,
        created_at=datetime.fromtimestamp(snapshot["created_at"], UTC),
        completed_at=datetime.now(UTC),
        input=turn.items,
        output=tuple(output),
        conversation_id=turn.conversation_id,
        previous_response_id=turn.frame.request.previous_response_id,
    )
