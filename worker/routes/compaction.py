"""POST /v1/responses/compact: a conversation as a sealed summary and its newest turns, to go on from."""

from __future__ import annotations

from aiohttp import web

from agents.compaction import compact
from agents.message import Compaction, new_id
from worker.auth.access import needs
from worker.auth.scope import Scope
from worker.auth.seals import sealed
from worker.http.checks import check_model
from worker.http.json_response import json_response
from worker.http.request_keys import BODY, PRINCIPAL, TRACE
from worker.http.route_docs import RouteDocs
from worker.runs.ledger import Ledger
from worker.runs.turn import hydrate
from worker.services import SERVICES
from worker.telemetry.telemetry import server_timing
from worker.wire.compaction import CompactRequest, compaction_object
from worker.wire.parse import parsed
from worker.wire.response import ResponseFrame


def routes() -> list[web.RouteDef]:
    return needs(Scope.CHAT, web.post("/v1/responses/compact", create))


@RouteDocs(CompactRequest)
async def create(request: web.Request) -> web.Response:
    """Nothing is stored: send the output back as the input of the next request."""
    services, trace, principal = request.app[SERVICES], request[TRACE], request[PRINCIPAL]
    with trace.span("edge"):
        body = await parsed(CompactRequest, request[BODY])
        model = check_model(body.model, services)
    ledger = Ledger(services, principal, trace, new_id("resp"), model=model)
    with ledger.recording() as outcome:
        with services.admission.turn(principal.tenant_id):
            with trace.span("hydrate"):
                turn = await hydrate(services, principal, ResponseFrame(body.request, model))
            compacted = await compact(services.agent, services.model_of(body.model), turn.turn, trace)
        outcome.status = "completed"
    summary = Compaction(sealed(services.seals, principal.tenant_id, compacted.summary))
    output = (*compacted.before, summary, *compacted.recent)
    content = compaction_object(ledger.response_id, output, compacted.usage)
    return json_response(content, headers={"Server-Timing": server_timing(trace)})
