"""One turn of /v1/responses between the request and the store: its history, the turn itself, and what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

from agents.compaction import run_compacted
from agents.errors import NotFound
from agents.events import EventSink, TurnFinished
from agents.message import FunctionCallOutput, Item, with_calls
from agents.progress import Marks
from agents.prompt import since_compaction
from agents.store import ResponseRecord
from agents.turn import Turn, TurnServer
from inference.errors import TextTooLong
from inference.frozen import changed, dataclass
from inference.trace import Trace
from migrations.pool import DATABASE_AWAY
from worker.auth.principal import Principal
from worker.auth.secret import opened, sealed
from worker.errors import ApiError
from worker.runs.continuation import Batch
from worker.runs.run_services import RunServices
from worker.runs.running_store import OwnedResponse
from worker.runs.steering_store import Successor
from worker.telemetry.canaries import Chosen
from worker.wire.response import ResponseFrame, public_item

LEARN_S = 0.5


@dataclass(frozen=True, slots=True)
class ResponseTurn:
    """`items` are the request's own items, `history` those that precede them."""

    principal: Principal
    frame: ResponseFrame
    items: tuple[Item, ...]
    history: tuple[Item, ...]
    choose: Callable[[str, str | None, UUID, str], Chosen]  # the agent of a conversation
    servers: tuple[TurnServer, ...] = ()

    @property
    def tenant_id(self) -> UUID:
        return self.principal.tenant_id

    @property
    def turn(self) -> Turn:
        said = since_compaction((*self.history, *self.items))
        asked = self.frame.request.turn(self.tenant_id, said, ()).using(self.servers)
        approvals = [item for item in self.items if isinstance(item, FunctionCallOutput) and item.approves]
        if approvals:
            asked = changed(asked, approved=frozenset(item.call_id for item in approvals))
        return self.principal.bounded(self._agent.applied(asked))

    @property
    def _agent(self) -> Chosen:
        """A conversation is identified by its id, a chain of responses by the first of all its items."""
        first = self.conversation_id or next((item.id for item in (*self.history, *self.items)), "")
        return self.choose(self.frame.model, self.frame.request.model, self.tenant_id, first)

    @property
    def conversation_id(self) -> str | None:
        return self.frame.request.conversation_id

    def snapshot(self, finished: TurnFinished) -> dict[str, Any]:
        """The final response object, as the caller sees it."""
        with_results, dialect = self.frame.request.with_results, self.frame.dialect
        return self.frame.finished(finished, [public_item(item, with_results, dialect) for item in finished.output])


async def hydrate(
    services: RunServices,
    principal: Principal,
    frame: ResponseFrame,
    remembered: tuple[Item, ...] | None = None,
    trace: Trace | None = None,
) -> ResponseTurn:
    """Read the items that precede the request, unless they are `remembered`, and the tools of its MCP servers. Raises
    ApiError 404 and 403 naming the parameter."""
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
        raise ApiError(404, str(error), param=before, code=code) from None
    history = tuple(opened(services.seals, tenant_id, item, before) for item in with_calls(history))
    items = await services.attachments.items(tenant_id, request.input, "input")
    servers = await services.mcp_servers.opened(principal, request.servers, trace or Trace())
    if (configured := request.configured((*history, *items))) is not request:
        frame = replace(frame, request=configured)
    return ResponseTurn(principal, frame, items, history, services.choose, servers)


async def learn_turns(services: RunServices, turn: Turn) -> None:
    """Where other workers generated the earlier turns: look up their exact tokens, once. Without them the prompt is
    equivalent, only less of it is cached, so a slow database is not waited for. Raises InvalidTurn."""
    if unknown := services.agent.unknown(turn):
        with suppress(*DATABASE_AWAY):
            async with asyncio.timeout(LEARN_S):
                found = await services.running.generated_turns(turn.tenant_id, list(unknown))
                services.agent.learn(turn, unknown, found)


async def run_turn(
    services: RunServices, turn: Turn, trace: Trace, sink: EventSink, marks: Marks | None = None
) -> TurnFinished:
    """Run the turn to its end, after compaction of its history where that is requested. Raises what refuses it."""
    if turn.compacting is None or turn.only_reads:
        return await services.agent.run(turn, trace, sink, marks)
    seal = partial(sealed, services.seals, turn.tenant_id)
    model = services.model_of(turn.model)
    return await run_compacted(services.agent, model, turn, trace, seal, sink)


async def begin(services: RunServices, turn: ResponseTurn, record: ResponseRecord | None) -> None:
    """Store that this worker generates the response, as `begun` describes it. Idempotent."""
    if turn.frame.request.background:
        await services.queue.begin(_taken(services, turn), turn.frame.started())
    elif record is not None:
        await services.running.begin(turn.tenant_id, record, services.presence.worker)


def begun(turn: ResponseTurn) -> ResponseRecord | None:
    """What is stored when it begins: nothing new of one that was queued, nothing at all if the caller said so."""
    request = turn.frame.request
    return record_of(turn, turn.frame.started(), ()) if request.stored and not request.background else None


async def withdraw(services: RunServices, turn: ResponseTurn) -> None:
    """Undo `begin`, whether it succeeded or not, for a response that was refused."""
    if begun(turn) is not None:
        await services.running.withdraw(turn.tenant_id, turn.frame.id, services.presence.worker)


async def settle(services: RunServices, turn: ResponseTurn) -> None:
    """Store that a background response cannot be restarted any more."""
    await services.queue.settle(_taken(services, turn))


def _taken(services: RunServices, turn: ResponseTurn) -> OwnedResponse:
    return OwnedResponse(turn.tenant_id, turn.frame.id, services.presence.worker)


async def finish(services: RunServices, turn: ResponseTurn, record: ResponseRecord, events: Batch) -> Successor | None:
    """Store the response with its events, unless `store` is false, and add its items to the conversation, if there is
    one. Idempotent. Returns its successor, if that is stored."""
    if turn.frame.request.background:
        await settle(services, turn)
    if turn.frame.request.stored:
        return await _finish_stored(services, turn, record, events)
    if record.conversation_id is not None:
        await _add_items(services, turn.tenant_id, record.conversation_id, record)
    return None


async def _finish_stored(
    services: RunServices, turn: ResponseTurn, record: ResponseRecord, events: Batch
) -> Successor | None:
    worker = services.presence.worker
    try:
        return await services.running.finish(turn.tenant_id, record, worker, events)
    except NotFound:
        if (beginning := begun(turn)) is None:
            raise
        await services.running.begin(turn.tenant_id, beginning, worker)  # a crash of Postgres may have lost it
        return await services.running.finish(turn.tenant_id, record, worker, events)


async def _add_items(services: RunServices, tenant_id: UUID, conversation_id: str, record: ResponseRecord) -> None:
    """Idempotent: ids of output items are new, so an existing one was added by a COMMIT whose answer was lost."""
    with suppress(NotFound):
        if record.output:
            await services.conversations.get_item(tenant_id, conversation_id, record.output[-1].id)
            return
    await services.conversations.add_items(tenant_id, conversation_id, (*record.input, *record.output))


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


async def prompt_tokens(services: RunServices, turn: Turn) -> int:
    """For a client, who may ask exactly because the prompt does not fit any context. Without the passages of a search.

    A text that is too long for the model counts as a turn in progress, since its tokenisation takes a thread a while.

    Raises the errors of `Agent.count`, except TextTooLong, and ApiError if the worker is busy.
    """
    try:
        return await services.agent.count(turn)
    except TextTooLong:
        with services.admission.turn(turn.tenant_id):
            return await services.agent.count_all(turn)
