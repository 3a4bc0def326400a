"""Restores a turn from what is stored: a queued response, or one that another worker had begun."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast
from uuid import UUID

import orjson

from agents.checkpoint import CannotResume
from inference.trace import Trace
from worker.auth.principal import Via
from worker.auth.secret import Seals, opened
from worker.http.request import check_model
from worker.runs.ledger import Ledger
from worker.runs.run_services import RunServices
from worker.runs.running_store import OwnedResponse
from worker.runs.turn import ResponseTurn, hydrate
from worker.wire.events import WireEvent
from worker.wire.options import priority_of
from worker.wire.response import Dialect, ResponseFrame
from worker.wire.response_request import ResponseRequest


def stored_request(seals: Seals, tenant_id: UUID, body: ResponseRequest) -> dict[str, Any]:
    """The request without its items. What it says about MCP servers contains secrets, so it is encrypted."""
    request = body.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"input"})
    if body.servers:
        request["tools"] = seals.close(tenant_id, orjson.dumps(request["tools"]).decode())
    return request


def _request_of(seals: Seals, tenant_id: UUID, stored: Mapping[str, Any]) -> ResponseRequest:
    """Raises CannotResume if this worker has another secret."""
    tools = stored.get("tools")
    if isinstance(tools, str):
        opened_tools = seals.open(tenant_id, tools)
        if opened_tools is None:
            raise CannotResume("its tools were encrypted with another secret")
        stored = {**stored, "tools": orjson.loads(opened_tools)}
    return ResponseRequest.model_validate(stored)


def job_of(services: RunServices, turn: ResponseTurn, grace_s: float) -> dict[str, Any]:
    """What another worker needs of a turn in addition to what is stored of it anyway. `grace_s` is how long the turn
    continues without a reader."""
    request = stored_request(services.seals, turn.tenant_id, turn.frame.request)
    caller = {"via": turn.principal.via, "subject": turn.principal.subject, "dialect": turn.frame.dialect.value}
    grace = None if grace_s == float("inf") else grace_s
    return {"request": request, "caller": caller, "history": len(turn.history), "grace_s": grace}


# Runs a turn to its end, after the events that were sent before; raises the errors that refuse it.
Complete: TypeAlias = Callable[[ResponseTurn, Ledger, Sequence[WireEvent]], Awaitable[None]]


async def run_queued(services: RunServices, taken: OwnedResponse, complete: Complete) -> None:
    """Run a response that this worker took from the queue. Raises the errors that refuse it: see `restored_turn`."""
    tenant_id, response_id = taken.tenant_id, taken.response_id
    job = await services.queue.job(tenant_id, response_id)
    turn, ledger = await restored_turn(services, tenant_id, response_id, job.request, job.caller)
    told = (await services.running.read(tenant_id, response_id, -1)).events
    await complete(turn, ledger, told)


async def restored_turn(
    services: RunServices,
    tenant_id: UUID,
    response_id: str,
    request: Mapping[str, Any],
    caller: Mapping[str, str],
    history: int | None = None,
) -> tuple[ResponseTurn, Ledger]:
    """The turn of a stored response, for its caller. `history`: the number of items that preceded the request when the
    response was begun; later ones are left out.

    Raises the errors that refuse it: also ApiError 401 when its key is no longer valid, NotFound, and CannotResume.
    """
    principal = await services.authenticator.principal_of(tenant_id, cast(Via, caller["via"]), caller["subject"])
    record = await services.responses.get(tenant_id, response_id)
    model = check_model(record.body["model"], services)
    frame = ResponseFrame(
        _request_of(services.seals, tenant_id, request),
        model,
        response_id,
        record.body["created_at"],
        Dialect(caller["dialect"]),
        services.usual_sampling(request.get("model")),
    )
    trace = Trace(attributes={"background": True})
    with trace.span("hydrate"):
        items = tuple(opened(services.seals, tenant_id, item, "input") for item in record.input)
        turn = replace(await hydrate(services, principal, frame, trace=trace), items=items)
    if history is not None:
        if len(turn.history) < history:
            raise CannotResume("the items before it were deleted")
        turn = replace(turn, history=turn.history[:history])
    metadata, tier = frame.request.metadata, frame.request.service_tier
    priority = priority_of(tier, watched=principal.is_watching)
    return turn, Ledger(services, principal, trace, response_id, turn.conversation_id, model, metadata, priority)
