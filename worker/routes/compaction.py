"""POST /v1/responses/compact: a conversation as a sealed summary and its newest turns, to go on from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

from aiohttp import web
from pydantic import BeforeValidator, StringConstraints

from agents.compaction import compact
from agents.events import Usage
from agents.message import Compaction, Item, new_id
from agents.payload import to_payload
from worker.auth.access import needs
from worker.auth.scope import Scope
from worker.auth.seals import sealed
from worker.http.json_response import json_response
from worker.http.request import BODY, PRINCIPAL, TRACE, check_model
from worker.http.route_docs import RouteDocs
from worker.runs.ledger import Ledger
from worker.runs.turn import hydrate
from worker.services import SERVICES
from worker.telemetry.telemetry import server_timing
from worker.wire import limits
from worker.wire.items import InputItem, as_items
from worker.wire.options import CacheRetention, PromptCacheOptions, ServiceTier
from worker.wire.parse import parsed
from worker.wire.response import ResponseFrame, usage_object
from worker.wire.response_request import ResponseRequest, ShortKey
from worker.wire.strict import Id, Strict, Text, Unsupported, up_to


class CompactRequest(Strict):
    model: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    input: Annotated[list[InputItem], up_to(limits.ITEMS_MAX), BeforeValidator(as_items)] | None = None
    instructions: Text | None = None
    previous_response_id: Id | None = None
    prompt_cache_key: ShortKey | None = None
    service_tier: ServiceTier | None = None
    prompt_cache_retention: CacheRetention = None
    prompt_cache_options: PromptCacheOptions | None = None
    image: Unsupported = None

    @property
    def request(self) -> ResponseRequest:
        """The request whose conversation should be compacted."""
        return ResponseRequest.model_construct(
            model=self.model,
            input=self.input or [],
            instructions=self.instructions,
            previous_response_id=self.previous_response_id,
            service_tier=self.service_tier,
            store=False,
        )


def compaction_object(id: str, output: Sequence[Item], usage: Usage) -> dict[str, Any]:
    return {
        "id": id,
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [to_payload(item) for item in output],
        "usage": usage_object(usage),
    }


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
