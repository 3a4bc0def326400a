"""A response that is made later: what is kept of its request, and how it becomes a turn again."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

from inference.trace import Trace
from worker.auth.principal import Principal, Via
from worker.auth.seals import opened
from worker.checks import check_model
from worker.runs.disconnect import GO_ON
from worker.runs.ledger import Ledger
from worker.runs.queue_store import Job
from worker.runs.run import Run
from worker.runs.turn import hydrate, record_of
from worker.services import Services
from worker.wire.dialect import Dialect
from worker.wire.narrator import Narrator
from worker.wire.response import ResponseFrame
from worker.wire.response_request import ResponseRequest
from worker.wire.tier import rank_of


async def enqueue(
    services: Services, principal: Principal, body: ResponseRequest, dialect: Dialect, id: str
) -> dict[str, Any]:
    """Store a request for whichever worker has a place for it, and give the response as it is now.

    Raises what refuses the request, as far as that can be known before it is begun, and TooManyQueued.
    """
    frame = ResponseFrame(body, check_model(body.model, services), id, dialect=dialect)
    turn = await hydrate(services, principal, frame)
    await services.agent.count(turn.turn)
    caller = {"via": principal.via, "subject": principal.subject, "dialect": dialect.value}
    request = body.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"input"})
    queued = frame.queued()
    job = Job(request, caller, rank_of(body.service_tier))
    await services.runs.queue.add(turn.tenant_id, record_of(turn, queued, ()), job, Narrator(frame).queue())
    return queued


async def begin_queued(services: Services, tenant_id: UUID, response_id: str) -> Run:
    """Begin a response that this worker took from the queue.

    Raises what refuses it: also ApiError 401 when its key does not count any more, and NotFound.
    """
    job = await services.runs.queue.job(tenant_id, response_id)
    via, subject = cast(Via, job.caller["via"]), job.caller["subject"]
    principal = await services.authenticator.again(tenant_id, via, subject)
    record = await services.responses.get(tenant_id, response_id)
    model = check_model(record.body["model"], services)
    frame = ResponseFrame(
        ResponseRequest.model_validate(job.request),
        model,
        response_id,
        record.body["created_at"],
        Dialect(job.caller["dialect"]),
    )
    trace = Trace(attributes={"background": True})
    with trace.span("hydrate"):
        items = tuple(opened(services.seals, tenant_id, item, "input") for item in record.input)
        turn = replace(await hydrate(services, principal, frame), items=items)
        told = (await services.runs.store.read(tenant_id, response_id, -1)).events
    ledger = Ledger(services, principal, trace, response_id, turn.conversation_id, model, frame.request.metadata)
    return await services.runs.begin(services, turn, ledger, ExitStack(), GO_ON, told)
